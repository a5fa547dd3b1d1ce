"""Batches drawn from a data set whose rows are asked for by number, such as PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.eager import as_array
from ipu_core.ir.pytree import map_leaves
from ipu_core.train.data import shuffled
from lowprec.checks import shown


class Dataset(Protocol):
    """Samples by number: arrays, tensors or numbers, nested; all alike."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, number: int, /) -> Any:
        """One of them."""


class Samples:
    """A data set as batches, for `compare` and for `TrainLoop.run`; there of seed 0, or of any by `samples.seeded(1)`.

    Every pass has an order of its own, drawn from the seed; samples that do not fill a batch are dropped. A sample is
    asked for whenever its batch is.

    Args:
        dataset: such as a `torch.utils.data.Dataset` that has a length.
        rows: samples in a batch.

    Raises:
        TypeError: a data set without a length, or without samples by number.
        ValueError: an empty batch, or one that is larger than the data set.
    """

    def __init__(self, dataset: Dataset, rows: int) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(f"samples are drawn by number from a data set that has a length, not from {dataset!r}")
        try:
            count = len(dataset)
        except TypeError:  # such as of an array without axes
            raise TypeError(f"samples are drawn from a data set that has a length, not from {shown(dataset)}") from None
        self.dataset, self.rows = dataset, rows
        self._orders = functools.partial(shuffled, count, rows)
        self._orders(0)

    def seeded(self, seed: int) -> Callable[[int], Any]:
        """The batch of every step, for one seed."""
        order = self._orders(seed)
        return lambda step: self._batch(order(step))

    def __call__(self, seed: int, step: int) -> Any:
        """The batch of a step, for a seed."""
        return self._batch(self._orders(seed)(step))

    def _batch(self, numbers: Array) -> Any:
        samples = [self.dataset[int(number)] for number in numbers]
        return map_leaves(lambda *rows: np.stack([as_array(row) for row in rows]), *samples)
