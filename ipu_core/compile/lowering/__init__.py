"""Lowering: a Block and its plan to a graph on tiles and the program of one step."""

from ipu_core.compile.lowering.lower import Lowered, lower

__all__ = ["Lowered", "lower"]
