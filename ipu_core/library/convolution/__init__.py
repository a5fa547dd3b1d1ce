"""Convolutions and their weight gradients on tiles."""

from ipu_core.library.convolution.build import convolve, windows_of

__all__ = ["convolve", "windows_of"]
