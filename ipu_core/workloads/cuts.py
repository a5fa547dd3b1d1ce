"""Where a workload is cut into the stages of a pipeline that nobody published."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ipu_core.ir.pytree import flatten
from ipu_core.workloads.published import Part, Stage, Workload
from lowprec.checks import expect, integer


def parameters_of(parts: Sequence[Part]) -> int:
    """How many parameters some parts have of their own."""
    return sum(int(leaf.size) for part in parts for leaf in flatten(part.params)[0])


def cut(workload: Workload, stages: int) -> Workload:
    """The workload as a pipeline of so many stages, the slowest first: as published where that many were, else ours.

    Ours: what follows in the model stays together, a part that reads another's parameters stands on that one's chip
    (a head that shares the embeddings), and the chip with the most parameters has as few as possible. Memory is what
    decides in these models; of BERT-Large on 8 chips the slowest has 7 halves of layers by this rule, as published.

    Args:
        workload: that can be cut.
        stages: chips of a replica.

    Raises:
        ValueError: a workload that is never cut or not trained, or fewer parts than stages.
    """
    expect(Workload, workload=workload)
    if integer("stages", stages, 1) == workload.pipeline and workload.pipeline > 1:
        return workload
    if stages == 1:
        whole = Stage("the whole model", tuple(part.name for part in workload.parts))
        return workload if workload.pipeline == 1 else workload.changed(stages=(whole,), pipeline=1)
    if workload.between is None or workload.optimizer is None:
        raise ValueError(f"{workload.name} is never cut: it is one chip a replica, stages=1")
    groups = _together(workload.parts)
    if len(groups) < stages:
        raise ValueError(f"{workload.name} has {len(groups)} parts that can be cut: stages={len(groups)} at most")
    sizes = [parameters_of(group) for group in groups]
    found = []
    for place, (low, high) in enumerate(_fewest(sizes, stages)):
        parts = [part for group in groups[low:high] for part in group]
        names = {part.name for part in parts}
        ordered = tuple(part.name for part in workload.parts if part.name in names)
        found.append((high - low, Stage(_words(parts), ordered, stashes=2 * (stages - 1 - place))))
    # as many layers: the earlier keeps more
    found.sort(key=lambda each: (-each[0], -each[1].stashes))
    return workload.changed(stages=tuple(stage for _, stage in found), pipeline=stages)


def _together(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in order, each in one group with those whose parameters it reads."""
    groups: list[list[Part]] = []
    for part in parts:
        shared = next((group for group in groups for other in group if other.name in part.shares), None)
        if shared is None:
            groups.append([part])
        else:
            shared.append(part)
    return groups


def _fewest(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Runs of neighbours, so many: the largest sum as small as can be, then the most even ones."""
    # best[n][end]: (largest sum, sum of squares, begin of the last run) of n runs that hold sizes[:end]
    totals = [0]
    for size in sizes:
        totals.append(totals[-1] + size)
    best: list[dict[int, tuple[int, int, int]]] = [{0: (0, 0, 0)}]
    for runs in range(1, count + 1):
        row = {}
        for end in range(runs, len(sizes) - count + runs + 1):
            options = []
            for begin, (largest, squares, _) in best[-1].items():
                if begin < end:
                    run = totals[end] - totals[begin]
                    options.append((max(largest, run), squares + run * run, begin))
            row[end] = min(options)
        best.append(row)
    ends = [len(sizes)]
    for runs in range(count, 0, -1):
        ends.append(best[runs][ends[-1]][2])
    ends.reverse()
    return list(pairwise(ends))


def _words(parts: Sequence[Part]) -> str:
    """What a stage holds, as "3 attention, 4 feed_forward": parts without a number are named."""
    counts: dict[str, int] = {}
    for part in parts:
        kind = part.name.partition(".")[2] or ("layers" if part.name.isdecimal() else part.name)
        counts[kind] = counts.get(kind, 0) + 1
    named = [kind if count == 1 and kind in {part.name for part in parts} else f"{count} {kind}"
             for kind, count in counts.items()]  # fmt: skip
    return ", ".join(named)
