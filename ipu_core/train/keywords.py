"""The fields of `Training` and `Execution` as typed keywords, and signatures for the calls that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, ParamSpec, TypedDict, TypeVar

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.loss_scale import LossScale
from ipu_core.train.optim import Optimizer
from lowprec import Accumulation, Collective, FloatFormat
from lowprec.values.accumulation import Adder

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Required:
    """In a signature, the default of a keyword that is required unless `training` is given."""

    def __repr__(self) -> str:
        return "<required without training>"


REQUIRED = _Required()


class _SharedArithmetic(TypedDict, total=False):
    control: FloatingPointControl | None
    family: str
    adder: Adder
    order: str


class _SharedTraining(_SharedArithmetic, total=False):
    optimizer: Optimizer
    micro_batches: int
    loss_scale: float | str | LossScale | None
    random: str | HardwareRandom
    accumulations: Mapping[int, Accumulation] | None
    stash: FloatFormat | str | None
    replicas: int
    collective: Collective | None


class _Precision(TypedDict, total=False):
    precision: Precision | str


class _Machine(TypedDict, total=False):
    engine: str
    target: Target | System | str | None


class ArithmeticOptions(_SharedArithmetic, _Precision, total=False):
    """The keywords of `Arithmetic`."""


class TrainingOptions(_SharedTraining, _Precision, total=False):
    """The keywords of `Training`."""


class ExecutionOptions(_Machine, total=False):
    """The keywords of `Execution`."""

    system: System | None
    sharded: str | Sequence[str]
    stages: int | str | Sequence[str]
    pipeline_schedule: str
    streamed: str | Sequence[str]
    overlap: bool
    reorder: bool
    parallel: bool
    recompute: bool | float | str | Sequence[str]
    steps_per_call: int
    update_overhead: float | None


class PredictionOptions(ArithmeticOptions, _Machine, total=False):
    """The keywords of a call that predicts."""


class SharedOptions(_SharedTraining, ExecutionOptions, total=False):
    """The keywords of a call that trains in several precisions."""


class LoopOptions(TrainingOptions, ExecutionOptions, total=False):
    """The keywords of a call that trains."""


def takes(options: type, *values: Any) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates a function of ``**options: Unpack[...]`` with a signature that names every option, as help() shows it.

    Args:
        options: The TypedDict.
        values: The dataclasses that have the options as fields, or instances of them; the defaults are theirs.
    """
    wanted = inspect.get_annotations(options)
    usual = {
        field.name: field.default if isinstance(value, type) else getattr(value, field.name)
        for value in values
        for field in sorted(fields(value), key=lambda field: field.default is not MISSING)
        if field.name in wanted
    }

    def shown(name: str, taken: bool) -> inspect.Parameter:
        annotation, default = wanted[name], usual[name]
        if default is MISSING:  # where a value may be given in place of its fields, none of them need be
            default = REQUIRED if taken else inspect.Parameter.empty
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            # None stands for the default too, and the repr of a Target or control would fill help().
            default=None if is_dataclass(default) else default,
            # A TypedDict keeps its annotations as ForwardRefs; help() shows their text.
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        own = [shown(name, "training" in signature.parameters) for name in usual]
        function.__signature__ = signature.replace(parameters=[*named, *own])  # type: ignore[attr-defined]
        return function

    return decorate
