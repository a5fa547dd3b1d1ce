"""PopTorch's `Options`, with its groups of setters, which may be chained."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self

from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.poptorch.stages import PipelinedExecution, ShardedExecution, Strategy
from ipu_core.poptorch.words import (
    LOCATION_NOT_HERE,
    LOCATIONS_NOT_HERE,
    OPTIONS_NOT_HERE,
    PRECISION_NOT_HERE,
    TRAINING_NOT_HERE,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from ipu_core.train.arguments import check_engine, check_integer, chip_and_system
from lowprec import Collective
from lowprec.checks import expect, shown, truth
from lowprec.extras import optional

LEAST_SHARED = 8192
"""Elements from which PopTorch shares a tensor out among replicas."""


class _Group:
    """Settings that are fixed once a loader or a model took them."""

    _fixed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._fixed and name != "_fixed":
            raise ValueError("options are fixed once a DataLoader took them: opts.clone() may be changed")
        object.__setattr__(self, name, value)

    _not_here: Mapping[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name in self._not_here:
            raise AttributeError(f"{name} is not here: {self._not_here[name]}")
        raise AttributeError(f"{type(self).__name__.lstrip('_')} has no {name}")

    def _set(self, **values: Any) -> Self:
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        held = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__.lstrip('_')}({', '.join(f'{name}={value!r}' for name, value in held.items())})"


class _Training(_Group):
    """`Options.Training`."""

    _not_here = TRAINING_NOT_HERE

    def __init__(self) -> None:
        self.gradient_accumulation = 1
        self.reduction = ReductionType.Mean
        self.strategy: MeanReductionStrategy | None = None
        self.automatic_loss_scaling = False

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Micro-batches of a step, whose gradients are put together before the update."""
        check_integer("gradientAccumulation", gradient_accumulation, least=1)
        return self._set(gradient_accumulation=int(gradient_accumulation))

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Whether gradients of micro-batches are averaged (PopTorch's default) or added."""
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum):
            raise ValueError(f"gradients are reduced by ReductionType.Mean or Sum, not {reduction_type!r}")
        return self._set(reduction=ReductionType(reduction_type))

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Whether a mean is a running one. Not said: where the optimizer's accum_type is half (PopTorch's rule)."""
        if mean_reduction_strategy not in (MeanReductionStrategy.Running, MeanReductionStrategy.Post):
            raise ValueError(f"means are taken Running or Post, not {mean_reduction_strategy!r}")
        return self._set(strategy=MeanReductionStrategy(mean_reduction_strategy))

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """A loss scale that grows and backs off, as `LossScale` does; it needs deviceIterations(1)."""
        return self._set(automatic_loss_scaling=truth("setAutomaticLossScaling", enabled))


class _PrecisionGroup(_Group):
    """`Options.Precision`."""

    _not_here = PRECISION_NOT_HERE

    def __init__(self) -> None:
        self.stochastic: bool | None = None
        self.partials: str | None = None
        self.exceptions = False

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Rounding to halves by random bits, or to nearest (what is not said)."""
        return self._set(stochastic=truth("enableStochasticRounding", enabled))

    def setPartialsType(self, dtype: Any) -> Self:
        """The format of partial sums: torch.float or torch.half (not said: float)."""
        formats = {"torch.float32": "float32", "torch.float16": "float16"}
        if str(dtype) not in formats:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {shown(dtype)}")
        return self._set(partials=formats[str(dtype)])

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Whether a step stops at an invalid operation, a division by zero or an overflow."""
        return self._set(exceptions=truth("enableFloatingPointExceptions", enabled))


class TensorLocationSettings(_Group):
    """Where a kind of tensors lies: on the tiles or in streaming memory."""

    _not_here = LOCATION_NOT_HERE

    def __init__(self) -> None:
        self.on_chip, self.least = True, 0
        self.shared, self.least_shared = False, LEAST_SHARED

    def useOnChipStorage(self, use: bool = True) -> Self:
        """Puts tensors on the tiles (True) or in streaming memory."""
        return self._set(on_chip=truth("useOnChipStorage", use))

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Tensors of fewer elements stay on the tiles."""
        check_integer("minElementsForOffChip", min_elements)
        return self._set(least=int(min_elements))

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Whether replicas share the tensors out, one part for each; with one replica nothing changes."""
        return self._set(shared=truth("useReplicatedTensorSharding", use))

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Tensors of fewer elements stay whole (not said: 8,192, as in PopTorch)."""
        check_integer("minElementsForReplicatedTensorSharding", min_elements)
        return self._set(least_shared=int(min_elements))


class _TensorLocations(_Group):
    """`Options.TensorLocations`."""

    _not_here = LOCATIONS_NOT_HERE

    def __init__(self) -> None:
        self.weights: TensorLocationSettings | None = None
        self.optimizer: TensorLocationSettings | None = None

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Where weights lie between steps."""
        expect(TensorLocationSettings, location=location)
        # a copy: the caller may set up one object and pass it on, changed, for the moments
        return self._set(weights=copy.copy(location))

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Where moments lie between steps."""
        expect(TensorLocationSettings, location=location)
        return self._set(optimizer=copy.copy(location))

    def streamed(self, sizes: dict[str, int]) -> Iterator[str]:
        """Names of the state in streaming memory, for `TrainLoop(streamed=)`.

        Args:
            sizes: elements of each parameter by name.
        """
        for where, pattern in self._said():
            if not where.on_chip:
                # tensors of two elements and more, which is Graphcore's own threshold
                yield from (pattern.format(name) for name, size in sizes.items() if size >= max(where.least, 2))

    def sharded(self, sizes: dict[str, int]) -> Iterator[str]:
        """Names of the state that replicas share out, for `TrainLoop(sharded=)`."""
        for where, pattern in self._said():
            if where.shared:
                yield from (pattern.format(name) for name, size in sizes.items() if size >= where.least_shared)

    def _said(self) -> Iterator[tuple[TensorLocationSettings, str]]:
        """What was said of a kind of tensors, with the pattern of their names."""
        every = (self.weights, "params.{}"), (self.optimizer, "optimizer.*.{}")
        return ((where, pattern) for where, pattern in every if where is not None)


class Options(_Group):
    """How a wrapped module runs: PopTorch's setters, and what it has no word for by name.

    Args:
        precision: a `Precision` or its name; None: the module's own format, float32 (fp32.32) or half (fp16.32, with
            weights in half), with the sums and moments that the optimizer and `Precision` ask for.
        target: the modelled chip, or its name; of replicas a `System` or its name, such as "pod16", whose links they
            meet over.
        engine: "tiles", with cycles and memory in `profile`, or "direct": the same bits without them.
        collective: the order and the formats in which gradients of replicas are added, a `lowprec.Collective`; None: a
            ring in the format of gradient sums.

    Raises:
        TypeError: a collective that is none.
        ValueError: an unknown precision, target or engine.
    """

    _not_here = OPTIONS_NOT_HERE

    def __init__(
        self, *, precision: Precision | str | None = None, target: Target | System | str = "gc200",
        engine: str = "tiles", collective: Collective | None = None,
    ) -> None:  # fmt: skip
        check_engine(engine)
        if collective is not None:
            expect(Collective, collective=collective)
        self.precision = None if precision is None else Precision.parse(precision)
        self.target, self.system = chip_and_system(target, None)
        self.engine, self.collective = engine, collective
        self.device_iterations, self.random_seed = 1, 0
        self.replication_factor = 1
        self.strategy: Strategy | None = None
        self.output_mode, self.output_return_period = OutputMode.Default, 1
        self._training, self._precision, self._locations = _Training(), _PrecisionGroup(), _TensorLocations()

    @property
    def Training(self) -> _Training:
        """What training alone has."""
        return self._training

    @property
    def Precision(self) -> _PrecisionGroup:
        """Rounding, partial sums and exceptions."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocations:
        """What lies in streaming memory."""
        return self._locations

    def deviceIterations(self, device_iterations: int) -> Self:
        """Steps of training, or batches of inference, in one call."""
        check_integer("deviceIterations", device_iterations, least=1)
        return self._set(device_iterations=int(device_iterations))

    def replicationFactor(self, replication_factor: int) -> Self:
        """Chips that each have the model and rows of their own; training, their gradients meet in every step."""
        check_integer("replicationFactor", replication_factor, least=1)
        return self._set(replication_factor=int(replication_factor))

    def setExecutionStrategy(self, strategy: PipelinedExecution | ShardedExecution) -> Self:
        """How stages follow each other, and where blocks say no chip, which they are: `PipelinedExecution(...)`."""
        expect(Strategy, strategy=strategy)
        return self._set(strategy=strategy)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """What a call gives back of its batches: see `OutputMode`."""
        expect(OutputMode, output_mode=output_mode)
        if output_mode == OutputMode.EveryN:
            check_integer("output_return_period of OutputMode.EveryN", output_return_period, least=1)
        elif output_return_period is not None:
            raise ValueError(f"output_return_period is of OutputMode.EveryN alone, not of {output_mode.name}")
        return self._set(output_mode=output_mode, output_return_period=output_return_period or 1)

    def defaultOutputMode(self) -> bool:
        """Whether nothing was said of outputs."""
        return self.output_mode == OutputMode.Default

    def randomSeed(self, random_seed: int) -> Self:
        """The seed of everything random here, and of torch's generator, as in PopTorch."""
        check_integer("randomSeed", random_seed)
        # the loader's order and the module's first weights are torch's; PopTorch sets both
        optional("torch", extra="torch").manual_seed(random_seed)
        return self._set(random_seed=int(random_seed))

    def useIpuModel(self, use_model: bool) -> Self:
        """True: everything here is modelled.

        Raises:
            NotImplementedError: False.
        """
        if not truth("useIpuModel", use_model):
            raise NotImplementedError("useIpuModel(False) is not here: everything is modelled, there is no hardware")
        return self

    def clone(self) -> Options:
        """A copy of the options that may be changed."""
        return _clone(self)

    @property
    def combined(self) -> int:
        """Micro-batches of a call."""
        return self.device_iterations * self.replication_factor * self.Training.gradient_accumulation

    def fixed(self) -> Self:
        """These options, after which no setter changes them."""
        # the groups too, which a script may hold by themselves
        for part in (self._training, self._precision, self._locations, self):
            part._fixed = True
        return self


def _clone(options: Options) -> Options:
    new = copy.deepcopy(options)
    for part in (new._training, new._precision, new._locations, new):
        # past the guard, which would refuse it
        object.__setattr__(part, "_fixed", False)
    return new
