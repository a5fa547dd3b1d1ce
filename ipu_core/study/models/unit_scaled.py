"""A model under unit scaling, as the command line asks for it: its functions, its parameters, its learning rates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ipu_core.initial import unit_parameters
from ipu_core.ir.unit_scaling import UnitScaled, unit_scale
from ipu_core.train import optim
from ipu_core.train.optim import Optimizer
from ipu_core.train.units import mup_groups

if TYPE_CHECKING:
    from ipu_core.study.point import Problem

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class UnitScaling:
    """Whether a model is under unit scaling, and with the rules of u-muP.

    Attributes:
        unit: see `unit_scale`.
        mup: u-muP's rules too, those of learning rates included.
    """

    unit: bool = False
    mup: bool = False

    def of(self, function: Function, deviation: float = 1.0) -> Function | UnitScaled:
        """A loss, or the function of a model's scores, under unit scaling where that is asked for, else as it is.

        Args:
            function: of (parameters, ...).
            deviation: standard deviation of the data's floats.
        """
        made: UnitScaled = unit_scale(function, mup=self.mup, deviation=deviation)
        return made if self.unit else function

    def begun(self, initial: Callable[[int], Any]) -> Callable[[int], Any]:
        """The function from a seed to initial parameters, with unit deviations where they are asked for."""
        return functools.partial(unit_initial, initial) if self.unit else initial

    def optimizer(self, optimizer: Optimizer, problem: Problem) -> Optimizer:
        """The optimizer with u-muP's learning rates, behind groups that were asked for.

        Raises:
            ValueError: one for which u-muP has no rules here.
        """
        if not self.mup:
            return optimizer
        if not isinstance(optimizer, optim.Adam) or isinstance(optimizer, optim.Lamb):
            raise ValueError(f"u-muP's learning rates are those of adam or adamw, not of {type(optimizer).__name__}")
        assert isinstance(problem.loss, UnitScaled)
        # Only shapes matter: a large model's parameters are not made for this.
        params = problem.params(0) if problem.shapes is None else problem.shapes
        state = () if problem.state is None else (problem.state(0),)
        # Groups that were asked for come first: the first that matches a name is the one.
        groups = mup_groups(problem.loss, params, *state, problem.batches(0)(0))
        return replace(optimizer, groups=(*optimizer.groups, *groups))


def unit_initial(initial: Callable[[int], Any], seed: int) -> Any:
    """The parameters of a seed, their weights drawn as normal numbers of deviation 1."""
    return unit_parameters(seed, initial(seed))
