"""Adafactor: Adam's second moment of a matrix as the outer product of its rows' and its columns' means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten, named, paths, unflatten
from ipu_core.ir.trace.values import Value, apply, elementwise, mean, scope, shape_of
from ipu_core.train.optim.common import Common, Exclude, Rate, check, moment, vectors


@dataclass(frozen=True)
class Adafactor(Common):
    """Adafactor (Shazeer and Stern, arXiv 1804.04235) as `torch.optim.Adafactor` has it, without a first moment.

    Of the squares of a gradient with two axes and more the means over its last axis (rows) and over the one before it
    (columns) are kept, v = rows columns / mean(rows); of others all, v. Step t moves them by t^beta2_decay. Then
    u = g / sqrt(v), and w -= a u / max(1, rms(u) / d) + lr weight_decay w, where a = max(eps2, rms(w)) min(lr, t^-0.5).

    Attributes:
        lr: bound of the relative step, or a schedule: step -> learning rate.
        beta2_decay: at most 0: of how much of the squares is new in step t.
        eps1: the smallest root of v, and the smallest mean(rows).
        eps2: the smallest size of a weight that steps are relative to.
        d: updates with a larger root mean square are scaled down to it.
        weight_decay: decoupled decay.
        exclude: (name, shape) -> whether the parameter has no decay.
        axes: (name, shape) -> the two axes of columns and rows; None: the last two.

    See `Common` for groups and clipping. A precision stores rows and columns as second moments.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 1e-2
    beta2_decay: float = -0.8
    eps1: float = float(np.finfo(np.float32).eps)
    eps2: float = 1e-3
    d: float = 1.0
    weight_decay: float = 0.0
    exclude: Exclude = vectors
    axes: Callable[[str, tuple[int, ...]], tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        self.check_common(self.lr, self.exclude)
        check("Adafactor: beta2_decay", self.beta2_decay, -float("inf"), 0, "(]")
        for field in ("eps1", "eps2", "weight_decay", "d"):
            check(f"Adafactor: {field}", getattr(self, field), 0, float("inf"))
        if self.axes is not None and not callable(self.axes):
            raise TypeError(f"Adafactor: axes must be a function (name, shape) -> two axes or None, not {self.axes!r}")
        for field in ("eps1", "d"):
            if not getattr(self, field):
                raise ValueError(f"Adafactor: {field} must be positive, not {getattr(self, field)!r}")

    def init(self, params: Any) -> Any:
        """The state before the first step; a vector has no columns."""
        tree, zeros = flatten(params)[1], dict[str, Any](named(self.zeros(params)))
        left: list[Any] = [zeros.get(name) for name, _ in named(params)]
        pairs = [self._axes(name, np.shape(x)) for name, x in zip(paths(tree), left, strict=True)]
        means = [x.sum(pair[1], keepdims=True) if pair else x for x, pair in zip(left, pairs, strict=True)]
        columns = [x.sum(pair[0], keepdims=True) if pair else None for x, pair in zip(left, pairs, strict=True)]
        return self.begin(params, second_moment=unflatten(tree, means), columns=unflatten(tree, columns),
                          steps=np.float32(0))  # fmt: skip

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)
        with scope(state["steps"], role="optimizer"):
            steps = elementwise("add", state["steps"], 1.0)
            share = apply("exp", elementwise("multiply", apply("log", steps), self.beta2_decay))
            bound = elementwise("negative", apply("rsqrt", steps))

        def one(name: str, w: Value, g: Value, minus: Value, v: Value, columns: Value | None) -> tuple[Any, ...]:
            g = clip(g)
            squares, pair = apply("square", g), self._axes(name, shape_of(w))
            if pair is None or columns is None:
                v = whole = _moved(v, squares, share)
            else:
                v = _moved(v, mean(squares, pair[1], keepdims=True), share)
                columns = _moved(columns, mean(squares, pair[0], keepdims=True), share)
                least = elementwise("maximum", mean(v, pair[0], keepdims=True), self.eps1)
                whole = elementwise("divide", elementwise("multiply", v, columns), least)
            x = elementwise("multiply", g, apply("rsqrt", elementwise("maximum", whole, self.eps1**2)))
            down = elementwise("maximum", elementwise("multiply", _rms(x), 1 / self.d), 1.0)
            size = elementwise(
                "multiply", elementwise("maximum", _rms(w), self.eps2), elementwise("maximum", minus, bound)
            )
            factor = elementwise("divide", size, down)
            if decay := self.decay_of(name, w):
                # the decay has the rate alone: what is added is made whole
                x = apply("scaled_add", elementwise("multiply", x, factor), w, elementwise("multiply", minus, decay))
                factor = 1.0
            return x, factor, v, columns

        new, kept = self.each(params, gradients, state, lr, one, "second_moment", "columns")
        return new, {**kept, "steps": steps}

    def _axes(self, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The axes of columns and rows; None: of a vector."""
        if len(shape) < 2:
            return None
        return (-2, -1) if self.axes is None else self.axes(name, shape)


def _moved(old: Value, new: Value, share: Value) -> Value:
    return moment("second_moment", elementwise("multiply", old, elementwise("subtract", 1.0, share)), new, share)


def _rms(x: Value) -> Value:
    return apply("sqrt", mean(apply("square", x)))
