"""What a study is asked to do, as data: every field checked with a message that says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.study import typed
from ipu_core.study.models.made import Made
from ipu_core.study.models.named import Own, absolute, is_own
from ipu_core.study.models.size import Size
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.typed import PRECISIONS, check_name
from ipu_core.train import optim
from ipu_core.train.arguments import check_integer
from ipu_core.train.data.dataset import Dataset
from ipu_core.train.data.text import Text
from ipu_core.train.execution import Execution
from ipu_core.train.optim import Optimizer
from ipu_core.train.options import options_of
from ipu_core.train.parts import check_parts
from ipu_core.train.training import Training
from lowprec import BlockFormat, as_format
from lowprec import float32 as FLOAT32

if TYPE_CHECKING:
    from ipu_core.study.point import Problem

MODELS = {
    "mlp": "perceptron", "cnn": "convolutional net", "resnet": "residual net", "lm": "language model", "bert": "BERT",
    "gcn": "graph convolutional net", "gin": "graph isomorphism net", "braggnn": "BraggNN", "uno": "UNO",
}  # fmt: skip
OF_TEXT = ("lm", "bert")
"""Models that read a text, of the sizes of a `Size`."""
OF_DATA = ("mlp", "cnn", "resnet")
"""Models that classify the rows of a data set."""
OF_SIZE = ("gcn", "gin", "braggnn", "uno")
"""Models whose data are made, of a size by its name."""
USUAL: Mapping[str, Mapping[str, Any]] = {
    "cnn": {"steps": 400, "batch": 64, "lr": 0.1, "optimizer": "sgd/momentum=0.9"},
    "resnet": {"steps": 200, "batch": 64, "lr": 0.2, "optimizer": "sgd/momentum=0.9"},
    "lm": {"steps": 1000, "batch": 16, "lr": 0.002, "optimizer": "adamw", "loss_scale": "automatic"},
    "bert": {
        "steps": 1500,
        "batch": 32,
        "lr": 0.002,
        "optimizer": "lamb",
        "loss_scale": "automatic",
        "language_model": Size(64, 2, 4, 64),
    },
    "gcn": {"steps": 200, "batch": 8, "lr": 0.003, "optimizer": "adam", "loss_scale": "automatic"},
    "gin": {"steps": 800, "batch": 8, "lr": 0.003, "optimizer": "adam", "loss_scale": "automatic"},
    "braggnn": {"steps": 1500, "batch": 64, "lr": 0.003, "optimizer": "adam", "loss_scale": "automatic"},
    "uno": {"steps": 1500, "batch": 64, "lr": 0.003, "optimizer": "adam", "loss_scale": "automatic"},
}
"""Defaults of a model's training where they differ from those of `Settings`.

Those of "cnn" and "resnet" are the best rates, a factor of two or four apart, on digits in FP32.32 over three seeds:
98.3 and 98.6 % are right (96.8 and 96.5 % with 0.0125). Those of "gcn", "gin", "braggnn" and "uno" are the best of
five, a factor of two apart, in the same way: of gin's graphs 98.0 % are right (90.8 % below, 97.8 % above), R^2 of uno
is 0.903 (0.887, 0.860), braggnn is 0.137 pixels off (0.152, 0.142). Half and twice that of "bert" are worse (2.43 nats;
2.79, 2.49). "lm" keeps the rate of its tables: with half of it it ends 0.03 nats lower (1.49). That of "mlp", in
`Settings`, is small on purpose.
"""
UNIT_RATES: Mapping[str, float] = {"unit": 0.03, "mup": 0.5, "cnn": 0.01, "resnet": 0.01}
"""Default learning rates of unit-scaled models, whose weights begin with deviation 1.

"unit", but where a model has its own, for the momentum of its usual optimizer: 98.4 and 98.2 % are right as above, and
with 0.03 the "cnn" does not always learn.
"""
WIDTHS = {"mlp": "hidden layers' widths", "cnn": "convolutions' channels", "resnet": "stages' channels"}
HIDDEN = {"mlp": (256, 256), "cnn": (16, 32), "resnet": (16, 32)}


@dataclass(frozen=True)
class Settings:
    """A study of a perceptron or a convolutional net on a classification task, or of a language model on text.

    The defaults are a small learning rate on purpose: it makes updates that are small beside the weights, where FP16
    weights rounded to nearest stop learning.

    Attributes:
        data: "digits" or the path of an .npz file.
        layers: Widths from the features to the classes, those between them of hidden layers or channels of
            convolutions; None: the data's own with two hidden layers of 256, or convolutions of 16 and 32 channels.
        steps, batch, lr: Of the training.
        optimizer, schedule, groups: As `typed.optimizer` reads them.
        target: Name of the modelled chip, or of a system of as many chips as replicas and their stages.
        engine: "tiles" (the modelled machine) or "direct" (the same bits without tiles).
        model: "mlp" (a perceptron), "cnn" (a convolutional net; rows are square grey images), "resnet" (a residual one
            with batch norm), "lm" (a transformer over bytes) or "bert" (masked bytes and the next sentence), or one
            whose data are made: "gcn" (a batch is of clusters of a graph), "gin" (of packs of graphs), "braggnn" (of
            peaks) or "uno" (of doses); or FILE:NAME or torch:FILE:NAME, a function in a file.
        micro_batches, loss_scale, random, replicas: As a `Training` takes them.
        collective: Of replicas, as `typed.collective` reads it; None: a ring in the precision's format.
        streamed, overlap, recompute, sharded, stages, pipeline_schedule: As an `Execution` does.
        unit_scaled, mup: Whether the model is under unit scaling, and with u-muP's rules (which say the former).
        text: Path of the text that "lm" and "bert" read; None: the standard library's sources.
        language_model: Their sizes.
        pack: Sequences of "bert" in a row, at most. Where it is more than one, b1 and b2 of the optimizer are raised to
            how many there are on average, so that its moments last as many sequences as unpacked; "lamb/packing=1"
            leaves them as they are.
        stash: Of "bert": the format in which what its blocks read is kept for their gradients; None: as it is.
        dropout: Of "bert": share of attention's weights that a training step leaves out.
        size: Of a model whose data are made: "small", or as the talk had it ("large" of "gcn").

    Raises:
        ValueError: a field out of range or an unknown name.
    """

    data: str = "digits"
    layers: tuple[int, ...] | None = None
    steps: int = 5000
    batch: int = 64
    lr: float = 0.001
    optimizer: str = "sgd"
    target: str = "gc200"
    engine: str = "tiles"
    model: str = "mlp"
    schedule: str = "constant"
    groups: tuple[str, ...] = ()
    micro_batches: int = 1
    loss_scale: float | str | None = None
    streamed: tuple[str, ...] = ()
    overlap: bool = False
    random: str = "philox"
    recompute: bool | float | str | tuple[str, ...] = False
    unit_scaled: bool = False
    mup: bool = False
    text: str | None = None
    language_model: Size = Size()  # noqa: RUF009  # frozen
    pack: int = 1
    size: str = "small"
    stash: str | None = None
    dropout: float = 0.0
    replicas: int = 1
    collective: str | None = None
    sharded: tuple[str, ...] = ()
    stages: int | tuple[str, ...] = 1
    pipeline_schedule: str = "grouped"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "micro_batches", "pack", "replicas"):
            check_count(name, getattr(self, name))
        # The rate is fed in float32: a smaller one would be 0.
        if not FLOAT32.smallest_subnormal <= self.lr <= FLOAT32.max:
            raise ValueError(f"lr must be a positive number that float32 holds, not {self.lr}")
        if not is_own(self.model):
            check_name("model", self.model, MODELS)
        if not is_own(self.model):
            check_parts(self.batch, self.micro_batches, self.replicas)
        if self.pack > 1 and self.model != "bert":
            raise ValueError(f"pack is for bert, which has several sequences in a row, not for {self.model}")
        if self.stash is not None and self.model != "bert":
            raise ValueError(f"stash is for bert, whose blocks keep what they read, not for {self.model}")
        if not 0 <= self.dropout < 1 or (self.dropout and self.model != "bert"):
            raise ValueError(f"dropout is a share in [0, 1), of bert, not {self.dropout} of {self.model}")
        if self.micro_batches * self.replicas > 1 and self.model in ("gcn", "gin"):
            parts = "micro_batches" if self.micro_batches > 1 else "replicas"
            raise ValueError(f"{parts} is not for {self.model}: a batch is one graph, whose links go everywhere in it")
        if self.size != "small" and self.model not in OF_SIZE:
            raise ValueError(f"size is for {', '.join(OF_SIZE)}, whose data are made, not for {self.model}")
        self._values()

    def training(self, problem: Problem | None = None) -> Training:
        """What decides the bits, in any precision.

        Args:
            problem: What is trained, which says the learning rates under u-muP's rules; None: those are not asked for.

        Raises:
            ValueError: u-muP has no rules for the optimizer.
        """
        return self._values(problem)[0]

    def execution(self) -> Execution:
        """Where the points are trained."""
        return self._values()[1]

    def _values(self, problem: Problem | None = None) -> tuple[Training, Execution]:
        trainer = typed.optimizer(self.optimizer, self.lr, self.schedule, self.groups, self.steps)
        if problem is not None:
            factor = 1.0 if self.betas_as_said else problem.sequences_of_a_row
            trainer = lasting(self.scaling.optimizer(trainer, problem), factor)
        return options_of(
            optimizer=trainer,
            precision=PRECISIONS[0], micro_batches=self.micro_batches, loss_scale=self.loss_scale, random=self.random,
            engine=self.engine, target=self.target, streamed=self.streamed, overlap=self.overlap,
            recompute=self.recompute, stash=self.stash, replicas=self.replicas, sharded=self.sharded,
            collective=None if self.collective is None else typed.collective(self.collective), stages=self.stages,
            pipeline_schedule=self.pipeline_schedule,
        )  # fmt: skip

    @property
    def betas_as_said(self) -> bool:
        """Whether the optimizer says its packing, "lamb/packing=1", so that rows of several leave it as it is."""
        return "/packing=" in self.optimizer

    @property
    def scaling(self) -> UnitScaling:
        """The model's scaling."""
        return UnitScaling(self.unit_scaled or self.mup, self.mup)

    def at_absolute_paths(self) -> Self:
        """The same, found from any working directory."""
        data = str(Path(self.data).absolute()) if self.data.endswith(".npz") else self.data
        model = absolute(self.model) if is_own(self.model) else self.model
        return replace(
            self, model=model, data=data, text=None if self.text is None else str(Path(self.text).absolute())
        )

    def widths(self, data: Dataset) -> tuple[int, ...]:
        """The layer widths for this data.

        Raises:
            ValueError: the widths given do not lead from the data's features to its classes.
        """
        if self.layers is None:
            return (data.features, *HIDDEN[self.model], data.classes)
        if (self.layers[0], self.layers[-1]) != (data.features, data.classes) or len(self.layers) < 2:
            given, between = "-".join(map(str, self.layers)), "-".join(map(str, HIDDEN[self.model]))
            raise ValueError(
                f"layers {given} do not fit {data.name}: they lead from {data.features} features to "
                f"{data.classes} classes, with {WIDTHS[self.model]} between, for example "
                f"{data.features}-{between}-{data.classes}"
            )
        return self.layers

    def record(self, data: Dataset | Text | Own | Made) -> dict[str, Any]:
        """Model, data and batch size as JSON values: these and the recipe must agree for a study to be resumed.

        Data count by name and contents, wherever their file lies.
        """
        if isinstance(data, Own):
            return {"model": data.name, "data": data.name, "data_digest": data.digest()}
        model = self._sizes(data)
        scaled = {name: True for name in ("unit_scaled", "mup") if getattr(self, name)}
        packed = {"pack": self.pack} if self.pack > 1 else {}
        dropped = {"dropout": self.dropout} if self.dropout else {}
        said = {"model": self.model, "batch": self.batch, **packed, **dropped, **scaled}
        return {**said, "data": data.name, **model, "data_digest": data.digest()}

    def _sizes(self, data: Dataset | Text | Made) -> dict[str, Any]:
        """Of the model, as JSON values."""
        if isinstance(data, Made):
            return {
                "size": self.size,
                **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(data.size).items()},
            }
        return asdict(self.language_model) if isinstance(data, Text) else {"layers": list(self.widths(data))}


def tuned(model: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model's defaults beside what is said; not its learning rate where that is for another optimizer."""
    own = USUAL.get(model, {})
    here, wanted = (str(each.get("optimizer", Settings.optimizer)).partition("/")[0] for each in (own, said))
    if model not in OF_DATA or "optimizer" not in said or here == wanted:
        return own
    return {name: value for name, value in own.items() if name != "lr"}


def unit_rate(model: str, said: Mapping[str, Any], mup: bool) -> float:
    """The default learning rate of a model under unit scaling, beside what is said."""
    own = model in UNIT_RATES and "optimizer" not in said
    return UNIT_RATES["mup" if mup else model if own else "unit"]


def lasting(optimizer: Optimizer, factor: float) -> Optimizer:
    """An optimizer whose moments last as many sequences with so many of them in a row as with one, if it has such.

    One whose packing is said already stays as it is.
    """
    if factor == 1 or not isinstance(optimizer, optim.Adam) or optimizer.packing != 1:
        return optimizer
    return replace(optimizer, packing=factor)


@dataclass(frozen=True)
class Point:
    """A precision and a seed; the seed decides initial parameters, batches and random bits, for every precision."""

    precision: str
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, not {self.seed}")

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Self:
        """The point of a result."""
        return cls(str(result["precision"]), int(result["seed"]))

    def __str__(self) -> str:
        return f"{self.precision} seed {self.seed}"


def check_count(name: str, value: int, most: float = math.inf) -> int:
    """The value as an int; refuses what is not a positive integer, or above the most.

    Raises:
        TypeError: no integer.
        ValueError: out of range.
    """
    check_integer(name, value, least=1)
    if value > most:
        raise ValueError(f"{name} must be an integer from 1 to {most:,}, not {value!r}")
    return int(value)


def lacking(target: Target, precision: Precision) -> str | None:
    """Why a chip's tiles cannot compute in a precision (its rules left aside); None: they can."""
    if (told := precision.of_no_machine) is not None:
        return f"{target.name} has no unit for {told}"
    if precision.adder is not None and precision.adder.startswith("aligned"):
        return f"{target.name} has no aligned adder"
    scaling = precision.scaling
    # Where products cast their operands, the casts are what the unit has to multiply.
    formats = (precision.operands, precision.gradients) if scaling is None else (scaling.forward, scaling.backward)
    for each in formats:
        if isinstance(each, BlockFormat):
            return f"{target.name} has no unit for {each.name}, whose elements share scales"
        try:
            target.macs_per_cycle(each.name, precision.partials.name)
        except UnsupportedByTarget as refusal:
            return str(refusal).partition(";")[0]
    return None


def usual_engine(target: Target, precisions: Sequence[str], stash: str | None = None) -> tuple[str, str | None]:
    """The engine that trains in all of these precisions, with such stashes, and why it is not the tiles.

    Both give the same bits; only the tiles tell cycles and memory.
    """
    if stash is not None and as_format(stash).dtype is None:
        return "direct", f"stashes in {stash} are kept on the direct engine: {target.name} has no unit for them"
    for name in precisions:
        if why := lacking(target, Precision.parse(name)):
            return "direct", f"{name} is trained on the direct engine: {why}"
    return "tiles", None
