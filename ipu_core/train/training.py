"""`Training`: everything that decides a bit of a training besides its loss, data, first parameters and key.

Frozen, hashable and printed in words; `replace` of dataclasses checks it anew. A study keeps `training.record()` as
JSON values and `training.digest(execution)`, their hash.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import RULE, OrderRule, Orders
from ipu_core.train.arguments import check_integer, check_optimizer, check_orders, check_random, check_stash
from ipu_core.train.digests import canonical, described, digest
from ipu_core.train.fields import fill, keep, unusual
from ipu_core.train.keywords import ArithmeticOptions, TrainingOptions, takes
from ipu_core.train.loss_scale import LossScale, Scale
from ipu_core.train.optim import Optimizer
from lowprec import Collective, FloatFormat
from lowprec.checks import shown
from lowprec.values.accumulation import Adder

if TYPE_CHECKING:
    from ipu_core.train.execution import Execution


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
        fill(self, options)

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
        keep(self, precision=precision, control=replace(control, esr=precision.stochastic))

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
        fill(self, options)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        scale = None if self.loss_scale is None else Scale.of(self.loss_scale)
        keep(
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
        return "; ".join([first, *unusual(self, told)])


def named(optimizer: Optimizer) -> str:
    """An optimizer and its learning rate."""
    rate = optimizer.lr
    number = isinstance(rate, int | float | np.number)
    return f"{type(optimizer).__name__}(lr={rate if number else getattr(rate, '__name__', repr(rate))})"


# Behind the classes, whose fields have the defaults that the signatures show.
takes(ArithmeticOptions, Arithmetic)(Arithmetic.__init__)
takes(TrainingOptions, Training)(Training.__init__)
