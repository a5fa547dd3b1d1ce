"""A workload as it was published: its parts as shapes and functions, how they were cut, and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipu_core import nn
from ipu_core.ir.pytree import flatten
from ipu_core.train.optim import Optimizer
from lowprec.checks import integer, shown

NORMS_OF_HALVES = "of norms only the statistics are float32: PopNN, the library these runs used, computes them so"
RECOMPUTE = ("none", "layers")
Run = Callable[[Mapping[str, Any], Any, Any], Any]
"""(parameters by part, what the part before gives or None, batch) -> what this one gives; of the last one the loss."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model, which is never cut.

    Attributes:
        name: such as "3.attention".
        params: its parameters as stand-ins of their shapes, nested.
        run: what it computes.
        shares: names of parts whose parameters it reads too.
        layer: whether it is made again for its gradients where the layers are.
        reads: names in the batch that it reads.
    """

    name: str
    params: Any
    run: Run
    shares: tuple[str, ...] = ()
    layer: bool = False
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """What one chip of a pipeline holds.

    Attributes:
        name: in words.
        parts: names of the parts, in the order of the model.
        stashes: inputs of earlier micro-batches that it keeps beside the one in use.
    """

    name: str
    parts: tuple[str, ...]
    stashes: int = 0


@dataclass(frozen=True)
class Measured:
    """What a machine took.

    Attributes:
        cycles: of one micro-batch on the chip of this stage, at least and at most.
        target: the chip.
        stage: number of the stage, from 1.
        rows: of the micro-batch.
        source: where that is published, and how it is found from what is.
    """

    cycles: tuple[float, float]
    target: str
    stage: int
    rows: int
    source: str


@dataclass(frozen=True, eq=False)
class Workload:
    """A model with the shapes, the cut and the precision with which it ran; nothing of it is allocated.

    Attributes:
        name: on the command line.
        title: in words.
        parts: of the model, in order; the first reads the batch alone, the last gives the loss (or, where nothing is
            trained, the result).
        batch: the micro-batch, nested `Type`s.
        between: shape of what parts hand on, of one micro-batch; None: it is never cut.
        stages: as published, the slowest first.
        target: the chip it ran on.
        precision: its name.
        optimizer: that of the update; None: nothing is trained.
        rows: of a micro-batch.
        micro_batches: of an update.
        pipeline: chips of one replica.
        recompute: "layers" or "none".
        lean_norms: whether a norm's gradient reads what went into the norm alone, as PopNN's does, and makes the rest
            again; so is all else that is made element by element.
        samples: of a micro-batch: more than its rows where these are packed.
        update_overhead: seconds of an update that no model here explains, fitted to a run on `target`; 0: none is.
        overhead_run: to which.
        logged: its name in the public logs; "": it is in none.
        sources: where the shapes and settings are from, and what is not known.
        measured: what it took.
        model_state: what the model carries from step to step, nested stand-ins; None: nothing.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    batch: Any
    stages: tuple[Stage, ...]
    target: str
    precision: str
    optimizer: Optimizer | None
    rows: int
    sources: tuple[str, ...]
    between: tuple[int, ...] | None = None
    micro_batches: int = 1
    pipeline: int = 1
    recompute: str = "none"
    lean_norms: bool = False
    samples: int = 0
    update_overhead: float = 0.0
    overhead_run: str = ""
    logged: str = ""
    measured: tuple[Measured, ...] = ()
    model_state: Any = None

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        object.__setattr__(self, "samples", self.samples or self.rows)

    @property
    def params(self) -> dict[str, Any]:
        """Stand-ins of all parameters, by part."""
        return {part.name: part.params for part in self.parts if part.params}

    @property
    def size(self) -> str:
        """How many parameters it has, in words."""
        count = sum(int(leaf.size) for leaf in flatten(self.params)[0])
        return f"{count / 1e6:,.1f} M parameters"

    def loss(self, params: Mapping[str, Any], *batch: Any) -> Any:
        """What the whole model gives: its loss, or where nothing is trained its result.

        ``loss(params, batch)``, or of a model with a state ``loss(params, state, batch)`` -> (loss, new state).
        """
        if self.model_state is None:
            return self.run(self.parts, params, None, batch[0])
        state, given = batch
        made: dict[str, Any] = {}
        value = self.run(self.parts, params, None, given, state, made)
        return value, {**state, **made}

    def run(
        self, parts: Sequence[Part], params: Mapping[str, Any], x: Any, batch: Any, state: Any = None,
        made: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """What some parts in a row give of what comes before them."""
        for part in parts:
            own = {name: params[name] for name in (part.name, *part.shares) if name in params}
            run = _stateful(part, state[part.name], made) if state is not None and part.name in state else part.run
            with nn.name_scope(part.name, (own, x, batch)):
                again = part.layer and self.recompute == "layers"
                x = (nn.checkpoint(run) if again else run)(own, x, batch)
        return x

    def stage(self, number: int | None = None) -> Stage:
        """A stage by its number, from 1; None: the slowest that is published.

        Raises:
            ValueError: there is none.
        """
        count = len(self.stages)
        if number is None:
            return self.stages[0]
        if not 1 <= integer("stage", number) <= count:
            there = "; ".join(f"{i}: {stage.name}" for i, stage in enumerate(self.stages, 1))
            raise ValueError(f"{self.name} has no stage {number}; there is {there}")
        return self.stages[number - 1]

    def parts_of(self, stage: Stage) -> list[list[Part]]:
        """The parts of a stage, those that follow each other together."""
        runs: list[list[Part]] = []
        last = -2
        for number, part in enumerate(self.parts):
            if part.name in stage.parts:
                if number != last + 1:
                    runs.append([])
                runs[-1].append(part)
                last = number
        return runs

    def changed(self, **fields: Any) -> Workload:
        """With other fields, checked."""
        return replace(self, **fields)


def _stateful(part: Part, state: Any, made: dict[str, Any] | None) -> Run:
    def run(params: Mapping[str, Any], x: Any, batch: Any) -> Any:
        value, new = part.run({**params, "state": state}, x, batch)
        if made is not None:
            made[part.name] = new
        return value

    return run


def check_recompute(recompute: str) -> str:
    """Refuses another way than those of RECOMPUTE.

    Raises:
        ValueError: it is none of them.
    """
    if not isinstance(recompute, str) or recompute not in RECOMPUTE:
        raise ValueError(f"recompute is {' or '.join(map(repr, RECOMPUTE))}, not {shown(recompute)}")
    return recompute
