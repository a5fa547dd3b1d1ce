"""`Execution`: where a training runs and at what cost. Frozen, hashable and printed in words."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Unpack

from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.train.arguments import (
    Recompute,
    check_engine,
    check_integer,
    check_names,
    check_overhead,
    check_recompute,
    check_schedule,
    check_stages,
    chip_and_system,
)
from ipu_core.train.digests import described
from ipu_core.train.fields import fill, keep, unusual
from ipu_core.train.keywords import ExecutionOptions, takes
from lowprec.checks import truth


@dataclass(frozen=True, init=False, kw_only=True)
class Execution:
    """Where a training runs and at what cost: nothing here changes a bit.

    ``Execution(engine="tiles", target="bow", streamed="optimizer.*")``; frozen, hashable, printable. The tiles' own
    generators are the exception (`Training(random="hardware")`): what they draw depends on all of this.

    Attributes:
        engine: "tiles", planned onto the chip, in its memory and with its account, or "direct". Both
            compute on whole arrays; `Machine` runs the tiles' vertices, to the same bits, as tiles do here where
            exceptions are enabled.
        target: The modelled chip, a `Target`; its name is taken too, and a `System`, or the name of one, of whose chips
            there are then as many. Of another family than the Training's it runs that
            one's orders of sums, with its own figures, and says so.
        system: The chips, links and hosts over which replicas meet, a `System`, of chips as `target` says; None: one
            with as many chips as there are replicas, see `System`.
        sharded: What of the state replicas share out, by dotted name with * for anything: "optimizer.*", "params.*".
            Each keeps one of as many shards as there are replicas and updates that: gradients are reduced and
            scattered, weights gathered. What is streamed besides is each chip's share. A parameter whose update goes
            over more than its elements stays whole.
        stages: Chips of a pipeline, over which the layers of a replica are cut: how many, so that the slowest is as
            fast as can be, or the names of the first layer of each, as rules of a precision have them ("blocks.6"):
            each chip keeps the parameters that it is the first to read, and for the micro-batches under way what its
            gradients read. A weight that two stages read arrives once an update, its gradient goes home in every
            micro-batch. See `TrainLoop.system_profile`; `TrainLoop.profile` is the slowest chip's.
        pipeline_schedule: Who does which micro-batch when: "grouped", "interleaved", "sequential" or "1f1b".
        streamed: What of the state lives in streaming memory besides what the precision says, by dotted name with * for
            anything: "params.*", "optimizer.first_moment.*.weight". Single numbers stay on the tiles. A name that is
            none of the state's is one of activations, called as in rules of a precision: "blocks.0", "*.attention.exp";
            each is stored when it is made and loaded once for the gradients.
        overlap: Whether transfers with streaming memory pass beside computation: a parameter is updated among the
            gradients, as soon as its own is there, while another's moments come and those of the one before go; the
            profile says how long a step takes for that. Small ones are updated at once; all that is on the tiles, or
            on its way, is no more than twice the largest parameter's. With a loss scale new moments are stored beside
            the old ones, which takes twice the streaming memory, and count where the step is not skipped. Where
            equations stay as they were traced (see `reorder`), where tiles draw random bits, and where a loss scale
            meets enabled exceptions, transfers pass beside the updates alone.
        reorder: Whether the equations are put into an order in which less memory lives at a time, and on tiles those
            that are independent and of one kind share compute sets where there is memory for them (not where the tiles
            draw the random bits), or stay as they were traced.
        parallel: Whether, of what shares compute sets on tiles, independent products and sums of unlike sizes do too,
            such as those of two towers of a model: on tiles of their own where that takes fewer cycles by the account.
            Where half the fullest tile is empty a quarter more may live for that, or an eighth of a tile, unless
            something is streamed or made again. The profile's steps say what ran at once (`Step.operations`), the plan
            where.
        recompute: Whether results of the forward part that are cheap to make, element by element, are made again where
            the gradients need them, instead of kept: less memory for more work (needs scipy). A share between 0 and 1:
            as few cycles' worth of them as lower the peak of temporaries to that share of the traced step's, or all
            where that is not enough. Or the names of parts, such as "blocks.*", as in rules of a precision: of each
            part ("blocks.0", "blocks.1", ...) what it reads is kept and all else made again just before its gradients,
            products and sums too. "layers" is every layer. What `nn.checkpoint` marks is made again in any case.
        steps_per_call: Steps that `TrainLoop.run` does in one call of the machine, without the host, where so many are
            left; callbacks are called after each call, with its last loss. The profile is that of one step, and its
            `call` that of so many.
        update_overhead: Seconds of an update that a machine took and this account does not explain, such as a constant
            fitted to a run's log. It stands in the profile under that name and in `Profile.seconds_per_update`, in no
            cycles. None: a published workload's own, else none.

    Raises:
        ValueError, TypeError: a field out of range or of another kind, or an unknown name.
    """

    engine: str = "tiles"
    target: Target = Target()  # noqa: RUF009  # frozen
    system: System | None = None
    sharded: tuple[str, ...] = ()
    stages: int | tuple[str, ...] = 1
    pipeline_schedule: str = "grouped"
    streamed: tuple[str, ...] = ()
    overlap: bool = False
    reorder: bool = True
    parallel: bool = True
    recompute: Recompute = False
    steps_per_call: int = 1
    update_overhead: float | None = None

    def __init__(self, **options: Unpack[ExecutionOptions]) -> None:
        fill(self, options)

    def __post_init__(self) -> None:
        check_engine(self.engine)
        chip, system = chip_and_system(self.target, self.system)
        keep(
            self,
            target=chip,
            system=system,
            sharded=check_names("sharded", self.sharded),
            stages=check_stages(self.stages),
            pipeline_schedule=check_schedule(self.pipeline_schedule, self.stages),
            streamed=check_names("streamed", self.streamed),
            overlap=truth("overlap", self.overlap),
            reorder=truth("reorder", self.reorder),
            parallel=truth("parallel", self.parallel),
            recompute=check_recompute(self.recompute),
            steps_per_call=check_integer("steps_per_call", self.steps_per_call, least=1),
            update_overhead=check_overhead(self.update_overhead),
        )

    def record(self) -> dict[str, Any]:
        """Every field as JSON values; a system and what is in shards where there is any."""
        words: dict[str, Any] = described(self)
        for name, usual in (("system", None), ("sharded", ()), ("stages", 1), ("pipeline_schedule", "grouped")):
            if getattr(self, name) == usual:
                del words[name]  # as it was recorded before there were any
        return words

    @property
    def chips(self) -> int:
        """Of one replica: its stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    def __str__(self) -> str:
        """Engine and chip, and what else is not as usual."""
        plain = Target(self.target.name)
        figures = [
            f"{field.name} {value}"
            for field in fields(plain)
            if (value := getattr(self.target, field.name)) != getattr(plain, field.name)
        ]
        told = {
            "system": "" if self.system is None else f"{self.system.chips} chips of {self.system.name}",
            "sharded": f"in shards {', '.join(self.sharded)}",
            "stages": f"{self.chips} stages" + ("" if isinstance(self.stages, int) else f" ({', '.join(self.stages)})"),
            "pipeline_schedule": f"{self.pipeline_schedule} schedule",
            "streamed": f"streamed {', '.join(self.streamed)}",
            "overlap": "transfers beside computation",
            "reorder": "equations as traced",
            "parallel": "sums of unlike sizes one after another",
            "recompute": _recomputed(self.recompute),
            "steps_per_call": f"{self.steps_per_call} steps a call",
            "update_overhead": f"{self.update_overhead} s of an update beside the account",
        }
        chip = f"{self.target.name}{' with ' if figures else ''}{', '.join(figures)}"
        first = f"tiles of {chip}" if self.engine == "tiles" else f"direct engine, for {chip}"
        return "; ".join([first, *unusual(self, told)])


def _recomputed(recompute: Recompute) -> str:
    """What is made again, in words."""
    if isinstance(recompute, tuple):
        return f"recomputation of {', '.join(recompute)}"
    return "recomputation" if isinstance(recompute, bool) else f"recomputation down to {recompute:g} of the peak"


# Behind the class, whose fields have the defaults that the signature shows.
takes(ExecutionOptions, Execution)(Execution.__init__)
