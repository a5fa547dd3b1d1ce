"""The parts of a batch that replicas and their micro-batches have: equal runs of its first axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import GROUP_SUM
from ipu_core.ir.pytree import flatten, map_leaves
from ipu_core.train.arguments import check_integer


def check_parts(rows: int, micro_batches: int, replicas: int) -> None:
    """Refuses rows that replicas and their micro-batches cannot share equally.

    Raises:
        ValueError: with how many there are of each.
    """
    # Parts of unequal size would weigh their rows unequally in the mean of gradients.
    if rows % (micro_batches * replicas):
        raise ValueError(f"{rows} rows cannot be cut into {_parts(micro_batches, replicas, 'equal ')}")


def _parts(micro_batches: int, replicas: int, equal: str = "") -> str:
    """The parts of a batch in words."""
    each = f"{micro_batches} {equal}micro-batches"
    if replicas == 1:
        return each
    return f"{replicas} {equal}replicas" + (f" of {each}" if micro_batches > 1 else "")


def check_groups(block: Block, replicas: int) -> None:
    """Refuses sums over neighbours that there are not.

    Raises:
        ValueError: with how many there are and should be.
    """
    for size in sorted({int(e.params["replicas"]) for e in equations_of(block) if e.op == GROUP_SUM}):
        if replicas % size:
            raise ValueError(
                f"batch_norm(replicas={size}) is of groups of {size}, into which {replicas} replica"
                f"{'s' * (replicas > 1)} cannot be cut: replicas={size} of the training, or a multiple"
            )


def part_of(batch: Any, micro_batches: int, replicas: int) -> Any:
    """The first of the equal parts of a batch, one for each micro-batch of each replica, cut along its first axis.

    Raises:
        ValueError: fewer than one part; the axis is no multiple of the count, or there is none.
    """
    check_integer("micro_batches", micro_batches, least=1)
    if (count := micro_batches * check_integer("replicas", replicas, least=1)) == 1:
        return batch
    parts = _parts(micro_batches, replicas)

    rows = {len(x) for x in map(np.asarray, flatten(batch)[0]) if x.ndim}
    if len(rows) > 1:
        # Cut into as many parts each, arrays of other lengths would be shared out too, row by row.
        raise ValueError(
            f"arrays of {' and '.join(map(str, sorted(rows)))} rows cannot be cut into {parts}: what all parts read "
            "whole is no part of a batch"
        )

    def part(x: Any) -> Any:
        shape = np.shape(x)
        if not shape:
            raise ValueError(f"a number without axes cannot be cut into {parts}")
        check_parts(shape[0], micro_batches, replicas)
        return np.asarray(x)[: shape[0] // count]

    return map_leaves(part, batch)
