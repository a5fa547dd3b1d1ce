"""What modules wrapped for the machine have in common."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.engine.profile import Profile
from ipu_core.frontends.torch.batch import PLAIN, plain
from ipu_core.ir.pytree import flatten, map_leaves, paths
from ipu_core.poptorch.options import Options
from ipu_core.poptorch.words import MODEL_NOT_HERE
from lowprec.checks import expect, shown
from lowprec.extras import optional

NOT_COMPILED = "the model is not compiled: call it, or compile(...) with a batch"


class PoplarExecutor(ABC):
    """What wrapped modules have in common; attributes of the module itself are found here, too.

    Attributes:
        model: the module.
        options: how it runs; fixed.
    """

    def __init__(self, model: Any, options: Options | None) -> None:
        torch = optional("torch", extra="torch")
        # wrapped twice, as scripts do that train and then infer with what trainingModel gave
        model = vars(model)["model"] if isinstance(model, PoplarExecutor) else model
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {shown(model)}")
        options = Options() if options is None else options
        expect(Options, options=options)
        self.model: Any = model
        # a copy, so that the caller's options may still be changed for another model
        self.options = options.clone().fixed()
        self._attached, self._settings = False, dict[str, Any]()

    _not_here: Mapping[str, str] = MODEL_NOT_HERE

    def __getattr__(self, name: str) -> Any:
        if name in self._not_here:
            raise AttributeError(f"{name} is not here: {self._not_here[name]}")
        # before __init__ has run (copy, pickle) there is no module to ask: asking it would recurse without end
        if name.startswith("_") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    @abstractmethod
    def profile(self) -> Profile | None:
        """The account of an iteration; None before it is compiled and on the direct engine."""

    @abstractmethod
    def _compile(self, batches: list[Any]) -> None:
        """Captures and compiles, if that is not done."""

    @abstractmethod
    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""

    @abstractmethod
    def copyWeightsToDevice(self) -> None:
        """Takes the weights and buffers of the module as they are now."""

    def compile(self, *inputs: Any, **named: Any) -> None:
        """Captures and compiles it for a batch as it is called with, without running it."""
        self._compile(self._batches(inputs, named))
        self._attached = True

    def isAttachedToDevice(self) -> bool:
        """Whether it was compiled or called, and not detached since."""
        return self._attached

    def detachFromDevice(self) -> None:
        """Marks the model as detached until it is called again; the module has the weights.

        Raises:
            ValueError: it is not compiled, or not attached.
        """
        self._attach(False)

    def attachToDevice(self) -> None:
        """Marks the model as attached, which a call does by itself.

        Raises:
            ValueError: it is not compiled, or attached.
        """
        self._attach(True)

    def _attach(self, wanted: bool) -> None:
        self._check_compiled()
        if self._attached == wanted:
            raise ValueError(f"the model is {'already' if wanted else 'not'} attached")
        self._attached = wanted

    def _check_compiled(self) -> None:
        if not self.isCompiled():
            raise ValueError(NOT_COMPILED)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Loads a state into the module and, where the model is compiled, takes its weights."""
        found = self.model.load_state_dict(state_dict, strict=strict)
        if self.isCompiled():
            self.copyWeightsToDevice()
        return found

    def cycleCount(self) -> int:
        """Cycles of a call, of all its iterations.

        Raises:
            ValueError: it is not compiled, or runs on the direct engine, which has no account.
        """
        one = self._account()
        return one.cycles * self.options.device_iterations if one.call is None else one.call.cycles

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Least, most and mean modelled seconds of an iteration, which are the same.

        Raises:
            ValueError: as `cycleCount`.
        """
        return (self._account().seconds,) * 3

    def getLatency(self) -> tuple[float, float, float]:
        """As `getComputeLatency`: the account of the machine has no transfers of the host."""
        return self.getComputeLatency()

    def _account(self) -> Profile:
        self._check_compiled()
        if self.profile is None:
            raise ValueError("the direct engine has no account: Options(engine='tiles') has")
        return self.profile

    def _batches(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """A call's inputs cut into a batch for each iteration, settings included; refuses rows that do not divide."""
        # settings must have names, or the capture refuses them; tensors alone stay a tuple
        by_name = bool(named) or any(isinstance(x, PLAIN) for x in inputs)
        self._like: Any = _by_name(self.model.forward, inputs, named) if by_name else inputs
        batch = plain(self._like)
        leaves, tree = flatten(batch)
        names = paths(tree)
        settings = {name: x for name, x in zip(names, leaves, strict=True) if isinstance(x, PLAIN)}
        # what was captured knows the settings as constants: others would be ignored in silence
        if self.isCompiled() and settings != self._settings:
            raise ValueError(f"the model was compiled with {self._settings or 'no settings'}, not with "
                             f"{settings or 'none'}: destroy() it first")  # fmt: skip
        self._settings = settings
        options = self.options
        rows = {np.shape(x)[:1] for x in leaves if not isinstance(x, PLAIN)}
        # with one micro-batch in all nothing is cut, and inputs may differ in rows
        if options.combined > 1 and not all(given and given[0] % options.combined == 0 for given in rows):
            raise ValueError(
                f"inputs of {sorted(rows)} rows cannot be cut into deviceIterations({options.device_iterations}) x "
                f"replicationFactor({options.replication_factor}) x gradientAccumulation"
                f"({options.Training.gradient_accumulation}) equal micro-batches"
            )
        return parts_of(batch, options.device_iterations)


def _by_name(function: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    signature = inspect.signature(function)
    given = dict(signature.bind(*inputs, **named).arguments)
    # those that only **kwargs takes stand under its name
    every = [x.name for x in signature.parameters.values() if x.kind == x.VAR_KEYWORD]
    return given | {name: x for one in every for name, x in given.pop(one, {}).items()}


def control_of(options: Options) -> FloatingPointControl | None:
    """A control with all floating-point exceptions, where the options enable them; else None."""
    traps = options.Precision.exceptions
    return FloatingPointControl(inv=True, div0=True, oflo=True) if traps else None


def tensors_of(batch: Any) -> Any:
    """The tensors of a batch in order."""
    return [x for x in flatten(batch)[0] if not isinstance(x, PLAIN)]


def parts_of(batch: Any, count: int) -> list[Any]:
    """Equal runs of the rows of a batch."""
    return [map_leaves(functools.partial(_part, number, count), batch) for number in range(count)]


def _part(number: int, count: int, x: Any) -> Any:
    if count == 1 or isinstance(x, PLAIN):
        return x
    size = np.shape(x)[0] // count
    return x[number * size : (number + 1) * size]
