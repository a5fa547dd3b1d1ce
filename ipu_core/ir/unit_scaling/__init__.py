"""Unit scaling: factors with which every value and every gradient of a Block begins with a standard deviation near 1.

After Blake, Orr and Luschi (arXiv 2303.11257): each operation gets a factor for its result and others for the gradients
of its operands. The factors of results are a matter of each operation (`results`): they change the model, whose weights
are to begin as normal numbers of deviation 1. Those of gradients change only by how much the gradient of each value is
multiplied, a number for each value (`gradients`): whatever these are, every gradient is right up to it.
"""

from ipu_core.ir.unit_scaling.scaled import UnitScaled, unit_scale

__all__ = ["UnitScaled", "unit_scale"]
