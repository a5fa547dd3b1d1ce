"""PopTorch's `DataLoader`: batches for all iterations and micro-batches of a call."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ipu_core.poptorch.options import Options
from ipu_core.poptorch.words import DataLoaderMode
from lowprec.checks import expect, integer
from lowprec.extras import optional


class DataLoader:
    """A `torch.utils.data.DataLoader` whose batches are batch_size x deviceIterations x gradientAccumulation rows.

    Args:
        options: of the model; they are fixed then.
        dataset: of torch.
        batch_size: rows of a micro-batch, which the operations of the model see.
        shuffle: as torch's.
        num_workers: as torch's.
        drop_last: whether rows that do not fill a call are left out, as in PopTorch by default.
        mode: Async loads one batch ahead, by a thread.
        others: of torch's DataLoader, such as `collate_fn`, which makes a batch of all rows of a call.

    Raises:
        TypeError: arguments of another kind.
        NotImplementedError: `batch_sampler`, `async_options`.
    """

    def __init__(
        self, options: Options, dataset: Any, batch_size: int = 1, shuffle: bool = False, num_workers: int = 0,
        drop_last: bool = True, mode: DataLoaderMode = DataLoaderMode.Sync, **others: Any,
    ) -> None:  # fmt: skip
        expect(Options, options=options)
        expect(DataLoaderMode, mode=mode)
        for name in ("batch_sampler", "async_options", "rebatched_worker_size", "auto_distributed_partitioning"):
            if name in others:
                raise NotImplementedError(f"DataLoader({name}=) is not here: sampler= and collate_fn= are torch's")
        # the batch has the size that they say now
        self.options, self._mode = options.fixed(), mode
        self.combinedBatchSize = integer("batch_size", batch_size, 1) * options.combined
        data = optional("torch.utils.data", extra="torch")
        self._loader = data.DataLoader(
            dataset, self.combinedBatchSize, shuffle=shuffle, num_workers=num_workers, drop_last=drop_last, **others
        )

    def __len__(self) -> int:
        """Calls of a pass."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader) if self._mode == DataLoaderMode.Sync else _ahead(iter(self._loader))

    def terminate(self) -> None:
        """Nothing is left running behind a pass."""


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches, of which the next is loaded while one is worked with."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch
