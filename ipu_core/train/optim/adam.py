"""Adam, AdamW and LAMB: directions from two moments, whose storage is a matter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from ipu_core.ir.trace.values import Value, apply, elementwise, scope, shape_of, where
from ipu_core.train.optim.common import Common, Exclude, Rate, begins_at_zero, check, moment, norm, since, vectors
from lowprec.checks import truth


@dataclass(frozen=True)
class Adam(Common):
    """Adam with decoupled weight decay: w -= lr * (m/(sqrt(v) + eps) + weight_decay * w).

    m = b1 m + (1-b1) g and v = b2 v + (1-b2) g^2, divided by 1 - b1^t and 1 - b2^t (t from 1) with bias correction.
    The decay may be added to the gradient instead, as `torch.optim.Adam` has it: g = g + weight_decay * w.

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate (see `ipu_core.train.schedules`).
        b1, b2: decay of the moments, in [0, 1).
        eps: added to the root; scaled along with the state.
        weight_decay: the decay, decoupled or not.
        bias_correction: whether young moments are corrected.
        exclude: (name, shape) -> whether the parameter has no decay (default: fewer than two axes).
        scaled_state: m and v are kept times s and s^2 and eps is taken times s: the same mathematics (bit for bit in
            float32 if s is a power of two and s^2 v stays in range) that uses float16's range well. 1: not scaled.
            None: as the precision says (`Precision.scaled_state`).
        packing: sequences per row, p: b1^p and b2^p are used (Krell et al., arXiv 2107.02027).
        store_root: the square root of v is stored in its place, which spans half as many powers of two.
        precision_scale: what a precision asked for where scaled_state is None; `TrainLoop` sets it.
        amsgrad: the root is that of the largest v so far, which is kept too (Reddi et al., arXiv 1904.09237).
        decoupled: whether the decay is apart from the moments; False: it is a part of the gradient, behind clipping.

    See `Common` for groups and clipping.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = True
    exclude: Exclude = vectors
    scaled_state: float | None = None
    packing: float = 1.0
    store_root: bool = False
    precision_scale: float = 1.0
    amsgrad: bool = field(default=False, kw_only=True)
    decoupled: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        own = type(self).__name__
        self.check_common(self.lr, self.exclude)
        truth(f"{own}: amsgrad", self.amsgrad)
        truth(f"{own}: decoupled", self.decoupled)
        for name in ("b1", "b2"):
            check(f"{own}: {name}", getattr(self, name), 0, 1)
        positive = ["packing", "precision_scale", *(["scaled_state"] if self.scaled_state is not None else [])]
        for name in ("eps", "weight_decay", *positive):
            check(f"{own}: {name}", getattr(self, name), 0, float("inf"))
        for name in positive:
            if not getattr(self, name):
                raise ValueError(f"{own}: {name} must be positive, not {getattr(self, name)!r}")

    def for_precision(self, scaled_state: float, *, store_root: bool = False) -> Self:
        """The optimizer whose moments are kept as a precision says, unless its own `scaled_state` does."""
        own = self.scaled_state is not None
        return self if own else replace(self, precision_scale=scaled_state, store_root=self.store_root or store_root)

    def init(self, params: Any) -> Any:
        """The state before the first step; the corrections hold 1 - b1^t and 1 - b2^t."""
        state = self.begin(params, **{name: self.zeros(params) for name in self._moments})
        return {**state, "corrections": [np.float32(x) for x in self._start]} if self.bias_correction else state

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        # A row of p packed sequences is p updates' worth of examples, and the moments decay as often.
        b1, b2 = self.b1**self.packing, self.b2**self.packing
        clip = self.clipped(gradients)
        old = state["corrections"] if self.bias_correction else []
        with scope(old, role="optimizer"):
            corrections, factors = self._correct(old, b1, b2) if old else ([], [])

        def one(name: str, w: Value, g: Value, rate: Value, m: Value, v: Value, *largest: Value) -> tuple[Value, ...]:
            g, scale = clip(g), self.precision_scale
            if not self.decoupled:
                g = self.decayed(name, w, g)
            # The optimizer's own scale multiplies the gradient; a precision's is folded into the factors below.
            if (factor := self.scaled_state or 1.0) != 1:
                g = elementwise("multiply", g, factor)
            m = moment("first_moment", elementwise("multiply", m, b1), g, (1 - b1) * scale)
            v = self._second(v, g, b2)
            if self.amsgrad:
                with scope(v, family="second_moment"):
                    largest = (elementwise("maximum", *largest, v),)
            x = self._direction(m, g, largest[0] if largest else v, factors)
            if self.decoupled:
                x = self.decayed(name, w, x)
            return x, self._scale(name, w, x, rate, state), m, v, *largest

        new, kept = self.each(params, gradients, state, lr, one, *self._moments)
        return new, {**kept, "corrections": corrections} if self.bias_correction else kept

    @property
    def _moments(self) -> tuple[str, ...]:
        """What the state keeps for each parameter."""
        return ("first_moment", "second_moment", *(["largest_second_moment"] if self.amsgrad else []))

    @property
    def _start(self) -> tuple[float, ...]:
        """The corrections before the first step."""
        return 0.0, 0.0

    def _correct(self, old: Sequence[Value], b1: float, b2: float) -> tuple[list[Value], Sequence[Value]]:
        """The corrections of this step, which are kept, and what directions take of them."""
        kept = [since(q, b) for q, b in zip(old, (b1, b2), strict=True)]
        return kept, kept

    def _second(self, v: Value, g: Value, b2: float) -> Value:
        """The new second moment, or its root, as it is stored."""
        # v holds squares, so it has the square of the scale.
        share = (1 - b2) * self.precision_scale**2
        if not self.store_root:
            return moment("second_moment", elementwise("multiply", v, b2), apply("square", g), share)
        # v is squared in float32: only the root is rounded to the format of the moment.
        whole = apply("scaled_add", elementwise("multiply", apply("square", v), b2), apply("square", g), share)
        with scope(whole, family="second_moment"):
            return apply("sqrt", whole)

    def _direction(self, m: Value, g: Value, v: Value, factors: Sequence[Value]) -> Value:
        """The moment over the root, from moments as they are stored and what `_correct` gave."""
        if factors:
            m = elementwise("divide", m, factors[0])
        return elementwise("divide", m, self._root(v, factors[1] if factors else None))

    def _root(self, v: Value, correction: Value | None) -> Value:
        if correction is not None:
            v = elementwise("divide", v, apply("sqrt", correction) if self.store_root else correction)
        return elementwise("add", v if self.store_root else apply("sqrt", v), self._scaled_eps)

    @property
    def _scaled_eps(self) -> float:
        # m and the root are larger by the scale. eps has to be too, or the quotient is another one.
        return self.eps * (self.scaled_state or 1.0) * self.precision_scale

    def _scale(self, name: str, w: Value, x: Value, minus: Value, state: Any) -> Value:
        return minus


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam by the name that says that its decay is decoupled (Loshchilov and Hutter, arXiv 1711.05101).

    The same equations as `Adam`'s, with a decay by default.
    """

    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decoupled:
            raise ValueError("AdamW: its decay is decoupled; Adam(decoupled=False) adds it to the gradient")


@dataclass(frozen=True)
class Lamb(Adam):
    """LAMB as PopART defines it: Adam's direction x times a trust ratio per tensor, w -= lr * ratio * x.

    ratio = min(|w|, max_weight_norm)/|x|, and 1 if either norm is 0 or max_weight_norm is 0. Norms are float32,
    or float64 in precision="float64".

    Tensors that begin at zero, as biases do, have the ratio 1 for good: by their norm they would hardly move. Which
    these are is looked up once, in the initial parameters given to `init`, and is known while the step is traced: the
    state carries their names in its structure, under "ratio_one", and their norms are not computed.

    Attributes:
        max_weight_norm: bound of the weight's norm; None: none (PopART's own default of 10 clips silently).
        ratio_one: (name, shape) -> whether the parameter has the ratio 1; None: where its initial values are all zero.

    See `Adam` for the others; the published MLPerf runs have bias_correction=False.
    """

    eps: float = 1e-6
    max_weight_norm: float | None = None
    ratio_one: Exclude | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_weight_norm is not None:
            check("Lamb: max_weight_norm", self.max_weight_norm, 0, float("inf"))
        if self.ratio_one is not None and not callable(self.ratio_one):
            raise TypeError(f"Lamb: ratio_one must be a function (name, shape) -> bool or None, not {self.ratio_one!r}")

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        state = super().init(params)
        return state if self.ratio_one is not None else {**state, "ratio_one": begins_at_zero(params)}

    def _scale(self, name: str, w: Value, x: Value, minus: Value, state: Any) -> Value:
        plain = name in state["ratio_one"] if self.ratio_one is None else self.ratio_one(name, shape_of(w))
        if plain or self.max_weight_norm == 0:
            return minus
        size, length = norm(w), norm(x)
        bounded = size if self.max_weight_norm is None else elementwise("minimum", size, self.max_weight_norm)
        # By its norm a tensor of zeros would have the ratio 0 and never move.
        ratio = where(size, where(length, elementwise("divide", bounded, length), 1.0), 1.0)
        return elementwise("multiply", minus, ratio)
