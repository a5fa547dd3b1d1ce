"""The sizes of a language model."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Size:
    """The sizes of a language model.

    Attributes:
        width: of the residual stream.
        layers: blocks of attention and perceptron.
        heads: of each attention; they divide the width.
        context: bytes that a row holds.

    Raises:
        ValueError: sizes below 1, or heads that do not divide the width.
    """

    width: int = 128
    layers: int = 2
    heads: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.width}")
