"""Learning-rate schedulers of torch.optim as schedules: torch's own values, step by step."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

from lowprec.extras import optional

RELATIVE = 1e-9
"""Torch computes rates recursively, in float64: what they may differ by from what is meant."""


class TorchSchedule:
    """The learning rate of every step by a scheduler of torch, from where it is now. It is copied, not moved on.

    Args:
        scheduler: any of `torch.optim.lr_scheduler` that depends on nothing but the number of its steps, also several
            in a chain or a sequence, or one of your own.
        every: steps of training for one of the scheduler's: 1 where `scheduler.step()` follows each batch, the batches
            of an epoch where it follows each epoch.

    Raises:
        ImportError: torch is not installed.
        TypeError: no scheduler.
        ValueError: one that looks at the loss, or changes more than learning rates, or no number of steps.

    Attributes:
        base: the rate of every group that the scheduler goes out from, the groups' `initial_lr`.
    """

    def __init__(self, scheduler: Any, every: int = 1) -> None:
        torch = optional("torch", extra="torch")
        kinds = torch.optim.lr_scheduler
        if isinstance(scheduler, kinds.ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau looks at the loss: here a learning rate follows from the step alone")
        if not isinstance(scheduler, kinds.LRScheduler):
            raise TypeError(f"a scheduler is one of torch.optim.lr_scheduler, not {scheduler!r}")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a number of steps, at least 1, not {every!r}")
        self.every, self._kind = every, type(scheduler).__name__
        # a scheduler writes to its optimizer: a stand-in keeps the user's rates as they are
        self._stand_in = _stand_in(torch, scheduler.optimizer)
        self._scheduler = copy.deepcopy(scheduler, {id(scheduler.optimizer): self._stand_in})
        self.base = tuple(float(group["initial_lr"]) for group in self._stand_in.param_groups)
        self._rates: list[tuple[float, ...]] = []
        self._fixed = self._others()
        self._first = self._scheduler.state_dict(), self._fixed
        self._note()
        self._step()

    def __call__(self, step: int) -> float:
        """The rate of the first group.

        Raises:
            ValueError: the scheduler has no such step, or changes more than learning rates in it.
        """
        return self.of(0)(step)

    def of(self, group: int) -> GroupSchedule:
        """The schedule of one group of the optimizer."""
        return GroupSchedule(self, group)

    def rates(self, step: int) -> tuple[float, ...]:
        """The rate of every group of the optimizer.

        Raises:
            ValueError: as a call.
        """
        # schedulers go forward only, and a resumed run may ask for an earlier step: all are kept
        while len(self._rates) <= step // self.every:
            self._step()
        return self._rates[step // self.every]

    def description(self) -> Any:
        """What tells it from others in a study."""
        functions = getattr(self._scheduler, "lr_lambdas", None)
        return {"scheduler": self._kind, "every": self.every, "of": self._first, "functions": functions,
                "rates": self._rates[0]}  # fmt: skip

    def _step(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is optimised
            self._scheduler.step()
        self._note()

    def _note(self) -> None:
        self._rates.append(tuple(float(group["lr"]) for group in self._stand_in.param_groups))
        if self._others() != self._fixed:
            raise ValueError(f"{self._kind} changes more than learning rates, such as momentum (cycle_momentum)")

    def _others(self) -> list[Any]:
        """The settings of the groups that stay."""
        left = ("params", "lr")
        return [{name: x for name, x in group.items() if name not in left} for group in self._stand_in.param_groups]


@dataclass(frozen=True)
class GroupSchedule:
    """The learning rate of every step of one group, by its number."""

    schedule: TorchSchedule
    group: int

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        rate = self.schedule.rates(step)[self.group]
        return 0.0 if -RELATIVE < rate < 0 else rate  # a cosine may end a rounding below 0


def _stand_in(torch: Any, optimizer: Any) -> Any:
    """An optimizer with the settings of another, of parameters without elements."""
    groups = [{**group, "params": [torch.nn.Parameter(torch.empty(0))]} for group in optimizer.param_groups]
    return torch.optim.SGD(groups, lr=0.0)
