"""The bytes of the fullest tile against cycles, as one part of a model after another is made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

from ipu_core.ir.passes.checkpoint_names import checkpointed
from ipu_core.ir.passes.checkpoints import checkpoints_of
from ipu_core.study.plot import GREY, Picture
from ipu_core.train.arguments import check_recompute
from ipu_core.train.execution import Execution
from ipu_core.train.fullest import billed
from ipu_core.train.keywords import LoopOptions, takes
from ipu_core.train.loop import TrainLoop
from ipu_core.train.options import options_of
from ipu_core.train.step import Loss
from ipu_core.train.table import Table
from ipu_core.train.training import Training
from lowprec.checks import integer, listed
from lowprec.extras import optional


class CurvePoint(NamedTuple):
    """One choice of what is made again.

    Attributes:
        parts: how many parts are, the first of the model.
        bytes: of the fullest tile, vertices and code with it.
        cycles: of a step.
    """

    parts: int
    bytes: int
    cycles: int


@dataclass(frozen=True)
class RecomputeCurve:
    """What `recompute_curve` found. Printed it is a table.

    Attributes:
        names: of the parts, in the order of the forward pass.
        points: by how many of them are made again.
        available: bytes that a tile has.
        title: what is trained, and on which chip.
    """

    names: tuple[str, ...]
    points: tuple[CurvePoint, ...]
    available: int
    title: str

    @property
    def table(self) -> Table:
        """A row for each point, with what it has more than the first."""
        first = self.points[0]
        rows = tuple(
            (str(one.parts), f"{one.bytes:,}", f"{one.bytes / first.bytes:.3f}", f"{one.cycles:,}",
             f"{one.cycles / first.cycles:.3f}", "yes" if one.bytes <= self.available else "no")
            for one in self.points
        )  # fmt: skip
        columns = ("parts made again", "fullest tile, bytes", "ratio", "cycles", "ratio", "fits")
        return Table(self.title, columns, rows, f"a tile has {self.available:,} bytes", left=0)

    def __str__(self) -> str:
        return str(self.table)

    def plot(self) -> Picture:
        """Fullest tile against cycles, a dot for each choice, and what a tile has (needs matplotlib)."""
        figure = optional("matplotlib.figure", extra="study").Figure(
            (7.2, 4.8), layout="constrained", facecolor="white"
        )
        axes = figure.add_subplot()
        axes.plot([one.cycles for one in self.points], [one.bytes for one in self.points], "o-", color="black")
        for one in self.points:
            axes.annotate(str(one.parts), (one.cycles, one.bytes), xytext=(5, 5), textcoords="offset points")
        axes.axhline(self.available, color=GREY, linestyle="--", linewidth=1)
        axes.set(xlabel="cycles of a step", ylabel="bytes of the fullest tile", title=self.title)
        return Picture(figure)


@takes(LoopOptions, Training, Execution)
def recompute_curve(
    loss: Loss,
    params: Any,
    batch: Any,
    *,
    regions: str | Sequence[str] = "layers",
    counts: Sequence[int] | None = None,
    training: Training | None = None,
    execution: Execution | None = None,
    model_state: Any = None,
    **options: Unpack[LoopOptions],
) -> RecomputeCurve:
    """What a step needs of the fullest tile and of time if 0, 1, ... n parts of a model are made again.

    They are the first parts: what these keep lies longest, and is there when the gradients begin, where most lives.
    Nothing is trained. What does not fit a tile is counted as if it did.

    Args:
        loss, params, batch, model_state: As of a `TrainLoop`.
        regions: The parts, as `Execution(recompute=...)` names them.
        counts: How many of them are made again, ascending; None: every number from 0 to all.
        training, execution: As of a `TrainLoop`, or what they are made of. `recompute` is what is varied.

    Raises:
        ValueError: a name of nothing, or a count that is not from 0 to the number of parts.
    """
    training, execution = options_of(training, execution, **options)
    execution = replace(execution, engine="tiles", recompute=False)
    direct = replace(execution, engine="direct")
    made = TrainLoop(loss, params, batch, training=training, execution=direct, model_state=model_state)
    asked = check_recompute(regions)
    marked = checkpointed(made.ideal, asked) if isinstance(asked, tuple) else made.ideal
    own = checkpoints_of(made.ideal)  # which are made again in any case
    names = tuple(part.name for part in checkpoints_of(marked) if part not in own)
    if not names:
        raise ValueError(f"regions must be names of parts such as 'blocks.*' or 'layers', not {regions!r}")
    found = (
        range(len(names) + 1) if counts is None else [integer("counts", each, 0) for each in listed("counts", counts)]
    )
    if not found or max(found) > len(names):
        raise ValueError(f"counts must be numbers from 0 to the {len(names)} parts that there are, not {counts!r}")
    points = []
    for count in found:
        how = replace(execution, recompute=names[:count] or False)
        bill = billed(made.ideal, made.training, how, allow_out_of_memory=True).done
        points.append(CurvePoint(count, bill.memory.peak_bytes, bill.cycles))
    title = f"{made.training}; {execution.target.name}"
    return RecomputeCurve(names, tuple(points), execution.target.tile_memory, title)
