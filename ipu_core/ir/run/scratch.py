"""Memory for what calls make on the way to their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ipu_core.chip.arrays import aligned
from ipu_core.ir.block import Array


class Scratch:
    """One memory for calls that run one after another: as large as the call that needs most, not as all together.

    It is made when the first of them runs. What is in it is of the call that runs, which uses it for one array.
    """

    def __init__(self) -> None:
        self._bytes, self._memory = 0, aligned(0, np.dtype(np.uint8))

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Callable[[], Array]:
        """What gives a call its array there, of any numbers.

        Args:
            shape, dtype: of the array.
        """
        kind, size = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        self._bytes = max(self._bytes, size * kind.itemsize)

        def there() -> Array:
            if self._memory.nbytes < self._bytes:
                self._memory = aligned(self._bytes, np.dtype(np.uint8))
            return self._memory[: size * kind.itemsize].view(kind).reshape(shape)

        return there
