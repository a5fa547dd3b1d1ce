"""The options of a training as two values: `Training` decides every bit, `Execution` where and at what cost it runs.

A call that trains takes both, and the keywords that are their fields as sugar (as `TrainLoop.__init__` does).
`options_of` is the one parser. It refuses unknown names, and a value beside one of its own keywords; it alone knows
that `target=` says the figures of an Execution and, where no Training is given, that one's family and adder. A call
that trains in several precisions takes `SharedOptions` (in `train.keywords`), those without `precision`.

Both values are frozen, hashable and printed in words; `replace` of dataclasses checks them anew. A study keeps
`training.record()` as JSON values and `training.digest(execution)`, their hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar, Unpack

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import RULE, OrderRule, Orders
from ipu_core.train.arguments import (
    Recompute,
    check_engine,
    check_integer,
    check_names,
    check_optimizer,
    check_orders,
    check_overhead,
    check_random,
    check_recompute,
    check_schedule,
    check_stages,
    check_stash,
    chip_and_system,
    chip_of,
)
from ipu_core.train.digests import canonical, described, digest
from ipu_core.train.keywords import (
    ArithmeticOptions,
    ExecutionOptions,
    LoopOptions,
    PredictionOptions,
    TrainingOptions,
    takes,
)
from ipu_core.train.loss_scale import LossScale, Scale
from ipu_core.train.optim import Optimizer
from lowprec import Collective, FloatFormat
from lowprec.checks import shown, truth
from lowprec.values.accumulation import Adder

Bits = TypeVar("Bits", bound="Arithmetic")


@dataclass(frozen=True, init=False, kw_only=True)
class Arithmetic:
    """Everything that decides the bits of a traced function, such as a model's scores, besides arguments and key.

    Attributes:
        precision: A `Precision`; its name is taken too.
        control: Floating-point control of the tiles: exceptions and `nanoo`. Its `esr` is the precision's to say.
        family: Of the chips whose orders of sums are taken: "mk1" (GC2) or "mk2" (GC200, Bow, C600), each with its
            tiles as published.
        adder: How the matrix unit adds products: "sequential", "dot4" or "pairwise".
        order: The version of the rule of orders: "1" or "2" (see `ipu_core.placement.orders`); an older one's is asked
            for to have its bits.
    """

    precision: Precision
    control: FloatingPointControl = FloatingPointControl()  # noqa: RUF009  # frozen
    family: str = "mk2"
    adder: Adder = "sequential"
    order: str = RULE

    def __init__(self, **options: Unpack[ArithmeticOptions]) -> None:
        _fill(self, options)

    def __post_init__(self) -> None:
        precision = Precision.parse(self.precision)
        control = FloatingPointControl() if self.control is None else self.control
        if not isinstance(control, FloatingPointControl):
            raise TypeError(f"control must be one such as FloatingPointControl(nanoo=True), not {control!r}")
        OrderRule(self.family, self.adder, self.order)
        own = precision.order
        if own is not None and self.adder not in ("sequential", own.adder):
            raise ValueError(
                f"adder={self.adder!r} would do nothing: the order of products is the precision's, {own.order_words()}"
            )
        # The precision alone says whether halves round stochastically: equal bits, equal Trainings.
        _keep(self, precision=precision, control=replace(control, esr=precision.stochastic))

    @property
    def rule(self) -> OrderRule:
        """The rule that gives the order of every sum for which no order is stated."""
        return OrderRule(self.family, self.adder, self.order)


@dataclass(frozen=True, init=False, kw_only=True)
class Training(Arithmetic):
    """Everything that decides a bit of a training besides its loss, data, first parameters and key.

    ``Training(optimizer=Sgd(0.1), precision="fp16.16/stochastic", micro_batches=4)``; frozen, hashable, printable.

    Attributes:
        optimizer: Such as `Sgd(0.1)`; its `lr` may be a schedule, a function of the step's number.
        micro_batches: Parts of each batch, equal runs of its first axis. Their gradients are averaged before the
            update, in the precision's `gradient_sum`: as a sum, or where it says `running_mean` as a running mean.
        loss_scale: What the loss is multiplied by for its gradients, which are divided by it before the optimizer has
            them: a number, or "automatic" or a `LossScale` for one that grows and backs off. A step whose gradients
            hold infinities, NaN or saturated values then changes nothing and is kept in `TrainLoop.skipped`. The loss
            that is reported is not scaled. None: no scale, and nothing is looked at.
        random: Where the random bits come from: "philox", from the key, whatever the machine; "hardware", from the
            generators of the tiles' workers, seeded with the key; or a `HardwareRandom`, which says how these start.
            Those bits depend on the placement, and every equation then runs vertex by vertex, much slower.
        accumulations: The order of each sum by equation number, `Accumulation()` for those that are not named; None:
            the rule of the sizes, whether operands have 8 bits, family, adder and the version of the rule, see
            `ipu_core.placement.orders`. Their formats are the precision's to say: those given decide nothing and are
            kept as float32; `TrainLoop.accumulations` has them as they run. No tile has an aligned adder, which the
            engine "direct" takes.
        replicas: Copies of the program, each with an equal part of the rows of a batch, and of these its own
            micro-batches. The gradients of each are divided by their number and added by an all-reduce; every replica
            then makes the same update. In the forward and backward pass each draws random bits of its own, after that
            all the same; the loss is their float32 mean, ascending; a step that one of them skips is skipped by all;
            the state of a model is the first one's. Other numbers than powers of two are possible, though no machine
            has them.
        collective: The order, formats and rounding of that sum, a `lowprec.Collective`; None: a ring from chip 0 in the
            precision's `gradient_sum`, rounded as that says.
        stash: A format in which what the parts of `nn.checkpoint` read is kept for their gradients, rounded to nearest,
            where a part does not say its own; the forward pass goes on from the values as they are. None: as they are.
        precision, control, family, adder, order: As of every `Arithmetic`.

    Raises:
        ValueError, TypeError: a field out of range or of another kind, an unknown name; no optimizer or precision.
    """

    optimizer: Optimizer
    micro_batches: int = 1
    loss_scale: float | LossScale | None = None
    random: str | HardwareRandom = "philox"
    accumulations: Orders | None = None
    stash: FloatFormat | None = None
    replicas: int = 1
    collective: Collective | None = None

    def __init__(self, **options: Unpack[TrainingOptions]) -> None:
        _fill(self, options)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        scale = None if self.loss_scale is None else Scale.of(self.loss_scale)
        _keep(
            self,
            micro_batches=check_integer("micro_batches", self.micro_batches, least=1),
            # "automatic" and LossScale() become one value, so that they compare and hash alike.
            loss_scale=scale if scale is None else scale.policy or float(scale.value),
            random=check_random(self.random),
            accumulations=check_orders(self.accumulations),
            stash=check_stash(self.stash),
            replicas=check_integer("replicas", self.replicas, least=1),
        )
        self._check_replicas()

    def __hash__(self) -> int:
        return hash(tuple(value for name, value in vars(self).items() if name != "optimizer"))  # which may have none

    def _check_replicas(self) -> None:
        """Refuses a collective that is none or would do nothing, and what replicas cannot have."""
        if self.collective is not None and not isinstance(self.collective, Collective):
            raise TypeError(f"collective must be a lowprec.Collective, not {shown(self.collective)}")
        if self.replicas == 1:
            if self.collective is not None:
                raise ValueError("collective= would do nothing: one replica has nothing to add up; replicas=2 has")
            return
        if self.collective is not None and self.collective.wire.nan == "none":
            raise ValueError(
                f"collective: {self.collective.wire.name} has no NaN, by which others hear of a gradient that is none"
            )
        if self.draws_on_tiles:
            raise ValueError(
                "random='hardware' runs every vertex of one chip, and replicas run on whole arrays: random='philox'"
            )
        group = None if self.collective is None else self.collective.group
        if group is not None and self.replicas % group:
            raise ValueError(f"collective: groups of {group} do not divide {self.replicas} replicas")

    @property
    def draws_on_tiles(self) -> bool:
        """Whether the tiles' generators draw the random bits, which then depend on the placement."""
        return self.random != "philox"

    def record(self) -> dict[str, Any]:
        """Every field as JSON values: of a precision all but its name, of functions their code, of orders a hash.

        A stash is there where there is one: what was recorded without is of the same training.

        Without "precision" it is what a study in several has in common.
        """
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own["precision"] = {field.name: getattr(self.precision, field.name) for field in fields(self.precision)}
        # Two names may stand for the same fields, and these decide every bit.
        del own["precision"]["name"]
        # Left out where they say nothing: what was recorded before there were any is of the same training.
        for name, usual in (("stash", None), ("replicas", 1), ("collective", None)):
            if own[name] == usual:
                del own[name]
        if self.accumulations is not None:
            own["accumulations"] = {str(number): order.digest() for number, order in self.accumulations.items()}
        # esr repeats what the precision says.
        own["control"] = {name: on for name, on in vars(self.control).items() if name != "esr"}
        words: dict[str, Any] = described(own)
        return words

    def digest(self, execution: Execution | None = None) -> str:
        """SHA-256 of what decides the bits: the same for every Execution.

        Args:
            execution: Where it runs, which counts where the tiles' generators draw (random="hardware") alone.

        Raises:
            ValueError: the tiles' generators draw, and no Execution says on which.
        """
        if not self.draws_on_tiles:
            return digest(canonical(self.record()))
        if execution is None:
            raise ValueError(
                "the random bits are those of the tiles' generators, so where it runs decides them: digest(execution)"
            )
        return digest(canonical([self.record(), execution.record()]))

    def __str__(self) -> str:
        """The optimizer, the precision, and what else is not as usual."""
        scale, usual = self.loss_scale, LossScale()
        told = {
            "micro_batches": f"{self.micro_batches} micro-batches",
            "loss_scale": f"loss scale {'automatic' if scale == usual else scale}",
            "random": "random bits of the tiles' workers" + ("" if self.random == "hardware" else f", {self.random}"),
            "control": ", ".join(name for name, on in vars(self.control).items() if on and name != "esr"),
            "accumulations": f"given orders of sums ({len(self.accumulations or ())})",
            "replicas": f"{self.replicas} replicas",
            "collective": "" if self.collective is None else f"gradients by {self.collective.words()}",
            "stash": "" if self.stash is None else f"stashes in {self.stash.name}",
            "family": f"orders of sums of {self.family}",
            "adder": f"{self.adder} adder",
            "order": f"version {self.order} of the rule of orders",
        }
        first = f"{named(self.optimizer)} in {self.precision.name or self.precision.words()}"
        return "; ".join([first, *_unusual(self, told)])


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
        _fill(self, options)

    def __post_init__(self) -> None:
        check_engine(self.engine)
        chip, system = chip_and_system(self.target, self.system)
        _keep(
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
        return "; ".join([first, *_unusual(self, told)])


# Behind the classes, whose fields have the defaults that the signatures show.
takes(ArithmeticOptions, Arithmetic)(Arithmetic.__init__)
takes(TrainingOptions, Training)(Training.__init__)
takes(ExecutionOptions, Execution)(Execution.__init__)


def options_of(
    training: Training | None = None, execution: Execution | None = None, **options: Unpack[LoopOptions]
) -> tuple[Training, Execution]:
    """The Training and Execution of a call, each given as a value or by its keywords.

    Raises:
        TypeError: an unknown keyword; one beside the value that it is a field of; no optimizer or precision.
        ValueError: what the two refuse, or refuse together.
    """
    places = [field.name for field in fields(Execution)]
    training, execution = _parsed(Training, training, execution, dict(options), Execution(), places)
    # What follows is wrong in no field alone, so that neither value can refuse it.
    if execution.steps_per_call > 1 and isinstance(training.loss_scale, LossScale):
        raise ValueError("an automatic loss scale is moved by the host after each step: steps_per_call must be 1")
    if training.draws_on_tiles and execution.engine != "tiles":
        raise ValueError(
            "random='hardware' draws on every tile and worker, of which the engine "
            f"{execution.engine!r} knows nothing: take engine='tiles', or random='philox'"
        )
    if execution.sharded and training.replicas == 1:
        raise ValueError("sharded= is for the state of several replicas: replicas=2 or more")
    if execution.sharded and training.collective is not None and training.collective.algorithm == "tree":
        raise ValueError(
            "sharded: a tree leaves no replica a shard of the sum; collective= is by ring, ring_pair or two_level"
        )
    _check_chips(training, execution)
    if execution.chips > 1 and execution.steps_per_call > 1:
        raise ValueError("stages: the account of a pipeline is of one update; steps_per_call must be 1")
    if execution.chips > 1 and (training.draws_on_tiles or training.control.traps) and execution.engine == "tiles":
        raise ValueError(
            "stages: vertices, with random='hardware' or exceptions, run on one chip alone: "
            "random='philox' and no exceptions, or stages=1"
        )
    if training.replicas > 1 and training.control.traps and execution.engine == "tiles":
        raise ValueError("exceptions stop the vertices of one chip, and replicas run on whole arrays: engine='direct'")
    if training.draws_on_tiles and execution.recompute:
        raise ValueError("the tiles' generators never draw the same bits again: recompute needs random='philox'")
    return training, execution


def _check_chips(training: Training, execution: Execution) -> None:
    """Refuses a system of more or fewer chips than work."""
    system, wanted = execution.system, training.replicas * execution.chips
    if system is None or system.chips == wanted:
        return
    replicas, stages = training.replicas, execution.chips
    who = f"{replicas} replica{'s' * (replicas > 1)}" + (f" of {stages} stages" if stages > 1 else "")
    way = "" if system.chips % stages else f"replicas={system.chips // stages}, or "
    raise ValueError(f"{system.name} has {system.chips} chips for {who}: {way}System({system.name!r}, chips={wanted})")


def prediction_of(
    training: Arithmetic | None, execution: Execution | None, usual: Execution, **options: Unpack[PredictionOptions]
) -> tuple[Arithmetic, Execution]:
    """As `options_of`, for a call that predicts; `usual` is the Execution where none is given."""
    return _parsed(Arithmetic, training, execution, dict(options), usual, ["engine", "target"])


def _parsed(
    kind: type[Bits],
    value: Bits | None,
    execution: Execution | None,
    given: dict[str, Any],
    usual: Execution,
    places: Sequence[str],
) -> tuple[Bits, Execution]:
    """The value of `kind` and the Execution that a call got, each given whole or by its keywords."""
    own = [field.name for field in fields(kind)]
    _refuse_unknown(given, (*own, *places))
    for what, there, wanted, names in (("training", value, kind, own), ("execution", execution, Execution, places)):
        if not isinstance(there, wanted | None):
            raise TypeError(f"{what} must be one such as {what.title()}(...), not {shown(there)}")
        if there is not None and (twice := [name for name in given if name in names]):
            raise TypeError(
                f"{twice[0]} is a field of {what}, which is given too: "
                f"{what}=dataclasses.replace({what}, {twice[0]}=...) changes it"
            )
    if value is None:
        # A family or adder that is given by its own keyword wins over the target's.
        decided = {name: given[name] for name in given if name in own}
        if "target" in given:
            chip = chip_of(given["target"])
            decided = {"family": chip.family, "adder": chip.adder, **decided}
        value = kind(**decided)
    if execution is None:
        execution = replace(usual, **{name: given[name] for name in given if name in places})
    return value, execution


def foreign(training: Arithmetic, execution: Execution) -> str:
    """The warning for a chip that runs the orders of sums of another family or adder; "": it runs its own orders."""
    own, chip = OrderRule.of(execution.target), execution.target
    # Orders that are given by number are the same on every chip.
    pinned = isinstance(training, Training) and training.accumulations is not None
    if pinned or (own.family, own.adder) == (training.family, training.adder):
        return ""
    return (
        f"the sums have the orders of {training.family} chips with a {training.adder} adder, as the Training says; "
        f"{chip.name} has those of Training(family={own.family!r}, adder={own.adder!r}), which the keyword target= "
        "says too"
    )


def named(optimizer: Optimizer) -> str:
    """An optimizer and its learning rate."""
    rate = optimizer.lr
    number = isinstance(rate, int | float | np.number)
    return f"{type(optimizer).__name__}(lr={rate if number else getattr(rate, '__name__', repr(rate))})"


def _recomputed(recompute: Recompute) -> str:
    """What is made again, in words."""
    if isinstance(recompute, tuple):
        return f"recomputation of {', '.join(recompute)}"
    return "recomputation" if isinstance(recompute, bool) else f"recomputation down to {recompute:g} of the peak"


def _fill(value: Arithmetic | Execution, given: Mapping[str, Any]) -> None:
    """Sets and checks the fields of a value that is made."""
    # Written out, since a generated __init__ has no **options that type checkers read as a TypedDict.
    there = {field.name: field.default for field in fields(value)}
    _refuse_unknown(given, tuple(there))
    for name, usual in there.items():
        chosen = given.get(name, usual)
        if chosen is MISSING:
            raise TypeError(f"{name} is missing: {type(value).__name__}({name}=...), or the keyword of that name")
        # The dataclasses are frozen.
        object.__setattr__(value, name, chosen)
    value.__post_init__()


def _keep(value: Arithmetic | Execution, **checked: Any) -> None:
    for name, each in checked.items():
        object.__setattr__(value, name, each)


def _refuse_unknown(given: Mapping[str, Any], there: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in there]:
        hint = HINTS.get(unknown[0])
        told = "" if hint is None else f": {hint}"
        raise TypeError(f"there is no option {unknown[0]!r}{told}; there are {', '.join(there)}")


HINTS: Mapping[str, str] = {
    "lr": "the rate is the optimizer's, Adam(lr=0.001)",
    "seed": "of compare and sweep `seeds` is how many, of a TrainLoop `key` is the seed",
    "epochs": "`steps` are counted in updates",
    "betas": "they are the optimizer's, Adam(b1=0.9, b2=0.999)",
}
"""What was meant by options that others have."""


def _unusual(value: Arithmetic | Execution, told: Mapping[str, str]) -> list[str]:
    """The words of those fields that differ from their defaults."""
    usual = {field.name: field.default for field in fields(value)}
    return [words for name, words in told.items() if words and getattr(value, name) != usual[name]]
