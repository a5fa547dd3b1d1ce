"""Loss scaling: gradients of the loss times a scale, so that small ones are not lost in a narrow format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.block import Array

# Gradients are multiplied by the reciprocal of the scale, which of smaller scales float32 may not hold.
LEAST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LossScale:
    """An automatic loss scale: it grows while all goes well and backs off where gradients overflow.

    The names and defaults are those of PyTorch's GradScaler.

    Attributes:
        init_scale: the scale of the first step.
        growth_factor: what it is multiplied by after `growth_interval` good steps in a row.
        backoff_factor: what it is multiplied by after a step that was skipped.
        growth_interval: good steps from one growth to the next.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name, low, high in (
            ("init_scale", LEAST, math.inf),
            ("growth_factor", 1, math.inf),
            ("backoff_factor", 0, 1),
            ("growth_interval", 1, math.inf),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise TypeError(f"LossScale: {name} must be a number, not {value!r}")
            # A factor at an end of its range would never change the scale, or send it to 0 at once.
            open_low = name.endswith("_factor")
            if not (low < value < high if open_low else low <= value < high):
                raise ValueError(f"LossScale: {name} must lie between {low:g} and {high:g}, not {value!r}")
        if self.growth_interval != int(self.growth_interval):
            raise ValueError(f"LossScale: growth_interval must be a whole number, not {self.growth_interval!r}")


class Skipped(NamedTuple):
    """A step that changed nothing, because its gradients were not to be trusted.

    Attributes:
        step: its number.
        scale: the loss scale it had.
        names: what held infinities, NaN or saturated values: gradients of parameters, and equations on the way to them.
    """

    step: int
    scale: float
    names: tuple[str, ...]


class Scale(NamedTuple):
    """The loss scale of a training at one step.

    Attributes:
        policy: how it changes; None: it does not.
        value: now, a float32.
        good: good steps since it last changed.
    """

    policy: LossScale | None
    value: np.float32
    good: int = 0

    @staticmethod
    def of(spec: Any) -> Scale:
        """What `TrainLoop(loss_scale=...)` means.

        Raises:
            TypeError, ValueError: it is neither a positive number nor a LossScale nor "automatic".
        """
        if isinstance(spec, str) and spec == "automatic":
            spec = LossScale()
        if isinstance(spec, LossScale):
            return Scale(spec, np.float32(spec.init_scale))
        if isinstance(spec, bool | str) or not isinstance(spec, int | float | np.number):
            raise TypeError(f"loss_scale must be a number, 'automatic' or a LossScale, not {spec!r}")
        if not LEAST <= spec <= float(np.finfo(np.float32).max):
            raise ValueError(f"loss_scale must be a positive float32, not {spec!r}")
        return Scale(None, np.float32(spec))

    def after(self, skipped: bool) -> Scale:
        """The scale of the next step."""
        if self.policy is None:
            return self
        if skipped:
            # Never 0: every gradient would be NaN from then on, and every step skipped. Good steps count anew.
            smaller = max(float(self.value) * self.policy.backoff_factor, LEAST)
            return self._replace(value=np.float32(smaller), good=0)
        # This good step counts too: without the 1 the scale grows a step late.
        if self.good + 1 < self.policy.growth_interval:
            return self._replace(good=self.good + 1)
        larger = float(self.value) * self.policy.growth_factor
        fits = larger <= float(np.finfo(np.float32).max)  # as in PyTorch: it stays where it would become infinite
        return self._replace(value=np.float32(larger) if fits else self.value, good=0)

    def arrays(self) -> dict[str, Array]:
        """The scale and its good steps, as arrays for a checkpoint."""
        return {"loss_scale.value": np.array(self.value, np.float32), "loss_scale.good": np.array(self.good, np.int64)}

    def restored(self, arrays: dict[str, Array]) -> Scale:
        """The scale in a checkpoint's arrays, from which its entries are removed.

        Raises:
            ValueError: one that never is, or another than this where this does not change.
        """
        value, good = (arrays.pop(f"loss_scale.{name}") for name in ("value", "good"))
        # Taken up in silence, a checkpoint's fixed scale would stand against the one in the loop's options.
        if self.policy is None and value != self.value:
            raise ValueError(f"the loss scale is {self.value:g} in every step, not {value:g}")
        if not LEAST <= value < math.inf or good < 0:
            raise ValueError(f"no loss scale is {value:g} after {good} good steps")
        return self._replace(value=np.float32(value), good=int(good))
