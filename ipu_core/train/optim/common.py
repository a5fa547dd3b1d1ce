"""What all optimizers share: parameter groups, clipping, checks, and the equations that write weights and moments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Protocol, Self

import numpy as np

from ipu_core.ir.ops import INT32
from ipu_core.ir.pytree import flatten, named, paths, unflatten
from ipu_core.ir.trace.eager import as_array, format_of, is_number
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, reduce_sum, scope, shape_of, where
from lowprec.checks import entries, expect, truth

Exclude = Callable[[str, tuple[int, ...]], bool]
Rate = float | Callable[[int], float]
"""A learning rate: a number, or a schedule from the step's number (from 0) to one."""
Rates = Rate | tuple[Rate, ...]
"""A learning rate, or the optimizer's and those of the groups that have a schedule of their own."""
Change = Callable[..., Value]


class Optimizer(Protocol):
    """What a training step needs of an optimizer: one of your own is any object with these three.

    It is traced once, with NumPy's functions and operators, in float32 whatever the precision; a new weight is then
    rounded as the precision says, and counted as an update: `w + (new - w)`, or the equation itself where `write` made
    it. So Adagrad (Duchi et al. 2011) is::

        class Adagrad:
            lr = 0.1

            def init(self, params):
                return {name: np.zeros_like(w) for name, w in params.items()}

            def update(self, params, gradients, state, lr):
                state = {name: state[name] + g * g for name, g in gradients.items()}
                step = {name: g / np.sqrt(state[name] + 1e-10) for name, g in gradients.items()}
                return {name: w - lr * step[name] for name, w in params.items()}, state
    """

    @property
    def lr(self) -> Rate:
        """The learning rate a training loop feeds: a number, or a function of the step's number."""

    def init(self, params: Any) -> Any:
        """The state before the first step, float32 arrays nested in a dict."""

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""


def vectors(name: str, shape: tuple[int, ...]) -> bool:
    """Biases and norms: everything with fewer than two axes. The default of what weight decay leaves out."""
    return len(shape) < 2


def nothing(name: str, shape: tuple[int, ...]) -> bool:
    """Leaves nothing out."""
    return False


def check(name: str, value: float, low: float, high: float, ends: str = "[)") -> None:
    """Refuses what is no number from low to high; `ends` says whether these are allowed, as mathematics writes it.

    Raises:
        TypeError: no number.
        ValueError: out of range.
    """
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {value!r}")
    above, below = low < value or (ends[0] == "[" and value == low), value < high or (ends[1] == "]" and value == high)
    # So written NaN is refused too.
    if not (above and below):
        raise ValueError(f"{name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, not {value!r}")


@dataclass(frozen=True)
class Group:
    """Parameters by their names, and what is different for them. The first group that matches a name is the one.

    Attributes:
        pattern: of the names, as file names are matched: "*.bias", "layers.0.*", "embedding".
        lr: factor on the learning rate; or a schedule of their own: step -> learning rate, in place of the optimizer's.
        decay: their weight decay, whatever the optimizer's `exclude` says; None: the optimizer's own.
        frozen: they stay as they are, and have no moments.

    Raises:
        TypeError: a field of another kind.
        ValueError: a field out of range.
    """

    pattern: str
    lr: Rate = 1.0
    decay: float | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise TypeError(f"Group: pattern must be a pattern of names such as '*.bias', not {self.pattern!r}")
        truth("Group: frozen", self.frozen)
        if not callable(self.lr):
            check("Group: lr", self.lr, 0, float("inf"))
        if self.decay is not None:
            check("Group: decay", self.decay, 0, float("inf"))


EVERYTHING = Group("*")


def rates_of(optimizer: Optimizer) -> Rates:
    """The learning rate of an optimizer, and before those of groups with a schedule of their own."""
    own = optimizer.scheduled if isinstance(optimizer, Common) else ()
    return (optimizer.lr, *own) if own else optimizer.lr


def rate_of(rate: Rates, step: int) -> Any:
    """The learning rate of a step, as a training loop feeds it: a float32 number, or an array of several.

    Raises:
        ValueError: a schedule that gives no finite number of at least 0 for the step.
    """
    if isinstance(rate, tuple):
        return np.array([rate_of(one, step) for one in rate], np.float32)
    if not callable(rate):
        return np.float32(rate)
    given = rate(step)
    # A schedule may give NaN or infinity late in a run; fed, it would end the training in silence.
    if not isinstance(given, int | float | np.number) or not 0 <= given <= np.finfo(np.float32).max:
        raise ValueError(f"the schedule gives the learning rate {given!r} for step {step}: it must be a number from 0")
    return np.float32(given)


ALIASES: Mapping[str, str] = {
    "betas": "they are b1=0.9, b2=0.999",
    "beta1": "it is b1",
    "beta2": "it is b2, beside b1",
    "learning_rate": "it is lr",
    "params": "a loop has the parameters, and updates them itself",
    "wd": "it is weight_decay",
}
"""Options of others' optimizers, and what they are here."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """The fields of every optimizer that are given by name.

    Attributes:
        groups: parameters with a learning rate or decay of their own, or frozen.
        clip_value: gradients are clipped to +- this; None: not.
        clip_norm: where the norm of all gradients together exceeds this, they are scaled to it; None: not. Clipping by
            value comes first.
        kahan: what the rounding of a weight loses is kept in the weights' format and added to the next update
            (Zamirai et al., arXiv 2010.06192): narrow weights that lose no small updates, rounded to nearest.
    """

    groups: tuple[Group, ...] = ()
    clip_value: float | None = None
    clip_norm: float | None = None
    kahan: bool = False

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuses options that there are not, by what others call them too.

        Raises:
            TypeError: an unknown option.
        """
        there = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in there]:
            hint = ALIASES.get(unknown[0], "")
            meant = f": {hint}" if hint and ("b1" in there or "b1" not in hint) else ""
            raise TypeError(f"{cls.__name__} has no option {unknown[0]!r}{meant}; there are {', '.join(there)}")
        return super().__new__(cls)

    def check_common(self, lr: Rate, exclude: Any) -> None:
        """Refuses fields of another kind or out of range."""
        own = type(self).__name__
        if not callable(lr):
            check(f"{own}: lr", lr, 0, float(np.finfo(np.float32).max))
        if not callable(exclude):
            raise TypeError(f"{own}: exclude must be a function (name, shape) -> bool, not {exclude!r}")
        truth(f"{own}: kahan", self.kahan)
        if not isinstance(self.groups, tuple) or not all(isinstance(group, Group) for group in self.groups):
            raise TypeError(f"{own}: groups must be a tuple of Groups such as (Group('*.bias', decay=0),)")
        for field in ("clip_value", "clip_norm"):
            bound = getattr(self, field)
            if bound is not None:
                check(f"{own}: {field}", bound, float(np.finfo(np.float32).tiny), float("inf"))

    def for_precision(self, scaled_state: float, *, store_root: bool = False) -> Self:
        """The optimizer with moments stored as a precision asks, if it has moments and no setting of its own."""
        return self

    def group(self, name: str) -> Group:
        """The first group that a parameter belongs to."""
        # Not fnmatch, which ignores case on some systems.
        return next((group for group in self.groups if fnmatchcase(name, group.pattern)), EVERYTHING)

    @property
    def scheduled(self) -> tuple[Callable[[int], float], ...]:
        """The schedules of groups that have one of their own, each once."""
        found: list[Callable[[int], float]] = []
        for group in self.groups:
            if callable(group.lr) and group.lr not in found:
                found.append(group.lr)
        return tuple(found)

    def description(self) -> Any:
        """What decides results: what came later is said where it is not as it was before."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, usual in LATER.items():
            if said.get(name) == usual:
                del said[name]
        return {"kind": type(self).__qualname__, **said}

    def check_groups(self, params: Any) -> None:
        """Refuses a group without parameters.

        Raises:
            ValueError: with the pattern and the names there are.
        """
        names = paths(flatten(params)[1])
        for group in self.groups:
            if not any(fnmatchcase(name, group.pattern) for name in names):
                raise ValueError(f"no parameter is called {group.pattern!r}; there are {', '.join(names)}")

    def zeros(self, params: Any) -> Any:
        """float32 zeros nested as the parameters, and None for the frozen ones."""
        check_floats("params", params)
        # No moments for frozen parameters: they would take memory and never change.
        own = [None if self.group(name).frozen else np.zeros(shape_of(p), np.float32) for name, p in named(params)]
        return unflatten(flatten(params)[1], own)

    def decay_of(self, name: str, w: Value) -> float:
        """The weight decay of a parameter."""
        expect(str, name=name)
        own = self.group(name).decay
        # Not `own or decay`: a group with decay=0 has none.
        if own is not None:
            return own
        decay, exclude = self.weight_decay, self.exclude  # type: ignore[attr-defined]  # of every subclass
        return 0.0 if exclude(name, shape_of(w)) else decay

    def decayed(self, name: str, w: Value, x: Value) -> Value:
        """A gradient, or a direction, with the decay of its parameter."""
        decay = self.decay_of(name, w)
        return apply("scaled_add", x, w, decay) if decay else x

    def clipped(self, gradients: Any) -> Callable[[Value], Value]:
        """The function that clips each gradient."""
        # A frozen parameter is not updated, so its gradient must not shrink the others'.
        known = [g for name, g in named(gradients) if not self.group(name).frozen]
        by_value = functools.partial(_clip, self.clip_value)
        if self.clip_norm is None or not known:
            return by_value
        with scope(known, role="optimizer"):
            # Of what is left after clipping by value, which comes first.
            squares = [reduce_sum(apply("square", by_value(g))) for g in known]
            norm = apply("sqrt", functools.reduce(lambda a, b: elementwise("add", a, b), squares))
            bound = self.clip_norm
            # Divided at once: a product with the inverse of the norm would round twice.
            factor = where(elementwise("greater", norm, bound), elementwise("divide", bound, norm), 1.0)
        return lambda g: elementwise("multiply", by_value(g), factor)

    def begin(self, params: Any, **state: Any) -> dict[str, Any]:
        """The state before the first step, with the compensation where it is kept."""
        self.check_groups(params)
        return {**state, "compensation": self.zeros(params)} if self.kahan else state

    def _rates(self, lr: Value) -> Callable[[Group], Value]:
        """Minus the learning rate of a group."""
        own = self.scheduled
        if shape_of(lr) != (wanted := (1 + len(own),) if own else ()):
            raise ValueError(
                f"the learning rate is of the shape {shape_of(lr)}, not {wanted}: its groups have schedules"
            )
        with scope(lr, role="optimizer"):
            minus = elementwise("negative", lr)

        def of(group: Group) -> Value:
            if callable(group.lr):
                return minus[1 + own.index(group.lr)]
            return elementwise("multiply", minus[0] if own else minus, group.lr)

        return of

    def each(
        self, params: Any, gradients: Any, state: Any, lr: Value, change: Change, *moments: str
    ) -> tuple[Any, dict[str, Any]]:
        """The new parameters and the new state, parameter by parameter.

        A frozen parameter is written as it is, so that it is stored as the precision says.

        Args:
            params, gradients: nested alike.
            state: a dict of what each parameter has a leaf in, and of anything else.
            lr: the learning rate; of groups with schedules of their own an array, of it and of theirs (`rates_of`).
            change: (name, parameter, gradient, minus its learning rate, leaf of each moment) -> (direction, factor, new
                leaf of each moment): the parameter becomes itself plus factor times direction.
            moments: keys of the state.
        """
        check_floats("params", params)
        # Leaves are paired by position: a gradient of another name would go to the wrong parameter.
        if flatten(gradients)[1] != (nested := flatten(params)[1]):
            raise ValueError(f"gradients must be nested as the parameters, {', '.join(paths(nested))}")
        entries("state", state, (*moments, "compensation") if self.kahan else moments)
        leaves, tree = flatten(params)
        kept = (*moments, "compensation") if self.kahan else moments
        columns = [dict(named(state[key])) for key in kept]
        rate = self._rates(lr)
        results = []
        for name, w, g in zip(paths(tree), leaves, flatten(gradients)[0], strict=True):
            group = self.group(name)
            with scope((w, g), role="optimizer", parameter=name):
                if group.frozen:
                    # Written all the same, so that it is stored in the precision's format.
                    results.append((write(w, w, 0.0), *(None for _ in kept)))
                    continue
                own = [column.get(name) for column in columns]
                direction, factor, *new = change(name, w, g, rate(group), *own[: len(moments)])
                if self.kahan:
                    results.append((*_compensated(w, direction, factor, own[-1], new),))
                else:
                    results.append((write(w, direction, factor), *new))
        made = [unflatten(tree, list(column)) for column in zip(*results, strict=True)]
        return made[0], {**state, **dict(zip(kept, made[1:], strict=True))}


LATER: Mapping[str, Any] = {"amsgrad": False, "decoupled": True}
"""Fields that are younger than studies and checkpoints, with what those had."""


def _compensated(w: Value, direction: Value, factor: Value, lost: Value, new: list[Value]) -> tuple[Value, ...]:
    """The new weight by Kahan's sum, the new moments, and what the weight's rounding lost of the sum."""
    wanted = apply("scaled_add", lost, direction, factor)
    updated = write(w, wanted, 1.0)
    with scope(w, family="compensation"):
        # Kahan's order: (updated - w) is what arrived, and the rest of `wanted` was lost to rounding.
        rest = elementwise("subtract", wanted, elementwise("subtract", updated, w))
    return updated, *new, rest


def _clip(bound: float | None, g: Value) -> Value:
    return g if bound is None else elementwise("minimum", elementwise("maximum", g, -bound), bound)


def moment(family: str, decayed: Value, fresh: Value, scale: Value) -> Value:
    """The equation that stores a moment."""
    with scope((decayed, fresh), family=family):
        return apply("scaled_add", decayed, fresh, scale)


def since(q: Value, b: Value) -> Value:
    """1 - b^t from 1 - b^(t-1), without cancellation."""
    return apply("scaled_add", elementwise("subtract", 1.0, b) if isinstance(b, Traced) else 1 - b, q, b)


def write(weight: Value, direction: Value, scale: Value) -> Value:
    """weight + scale * direction: the equation in which updates are rounded, and lost."""
    with scope((weight, direction, scale), role="update"):
        return apply("scaled_add", weight, direction, scale)


def norm(x: Value) -> Value:
    """The root of the sum of squares over all elements."""
    return apply("sqrt", reduce_sum(apply("square", x)))


def begins_at_zero(params: Any) -> dict[str, None]:
    """The names of the parameters whose initial values are all zero.

    As keys of a dict without leaves: part of a state they are carried by its structure, known while a step is traced.
    """
    return {name: None for name, leaf in named(params) if _all_zero(as_array(leaf))}


def check_floats(what: str, nested: Any) -> None:
    """Refuses leaves that are neither arrays nor traced values of floats.

    Raises:
        TypeError: one of another kind, by its name.
    """
    for name, leaf in named(nested):
        if not isinstance(leaf, Traced) and format_of(as_array(leaf)) == INT32 and not is_number(leaf):
            raise TypeError(f"{what}: {name or 'it'} holds integers; parameters are floats: x.astype(np.float32)")


def _all_zero(array: Any) -> bool:
    """Whether an array is all zeros. Axes of stride 0 repeat one element, which is read once."""
    once: Sequence[slice] = [slice(0, 1) if stride == 0 else slice(None) for stride in array.strides]
    return not array[tuple(once)].any()
