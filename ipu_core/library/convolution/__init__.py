"""Convolutions and their weight gradients on tiles."""

from ipu_core.library.convolution.build import ConvolutionTensors, convolve, windows_of

__all__ = ["ConvolutionTensors", "convolve", "windows_of"]
