"""Optimizers of optax as settings of the ones here, read from their parts and compared with optax's own numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.pytree import Held, PyTree, flatten, named, paths, unflatten
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.optim import Adadelta, Adagrad, Adam, Adamax, AdamW, Lamb, Lion, NAdam, RAdam, RmsProp, Sgd
from ipu_core.train.optim.common import Optimizer, Rate, nothing
from lowprec.checks import shown
from lowprec.extras import optional

KNOWN = (
    "sgd, adam, amsgrad, adamw, nadam, radam, adamax, lamb, lion, rmsprop, adagrad and adadelta, with clip, "
    "clip_by_global_norm, add_decayed_weights (masked too), scale, scale_by_schedule and chain around them"
)
INSTEAD: Mapping[str, str] = {
    "MultiSteps": "micro_batches=n of the loop adds gradients up",
    "apply_if_finite": "loss_scale= of the loop skips steps that are not finite",
    "inject_hyperparams": "give the optimizer itself, its learning rate a schedule",
    "partition": "groups=(Group('*.bias', lr=2.0),) of an optimizer here has rates by name",
    "scale_by_rprop": "optax takes each step one late; ipu_core.Rprop, as torch's, takes it at once",
    "masked": "it may stand around add_decayed_weights alone; Group('embedding.*', frozen=True) freezes by name",
}
"""What there is in place of a part that has no counterpart."""
STEPS = 12
"""Of the comparison with optax."""
CLOSE = 1e-5
"""Share of the largest change of a parameter by which its values, in float32, may differ from optax's in float64: in
float32 1 - b2^t cancels there, and steps of Adam differ by 3e-5 of themselves, of RAdam by a hundredth."""


def from_optax(optimizer: Any, params: Any) -> Optimizer:
    """The settings of an optimizer of optax, with schedules: sgd, adam and its kinds, lamb, lion, rmsprop, adagrad ...

    What it is made of is read from its parts, and what comes of that is compared with optax's own numbers in 12 steps
    of small arrays nested as the parameters, optax's in float64; nothing is guessed. Learning rates are optax's own,
    step by step.

        clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        optimizer = ipu_core.from_optax(clipped, model.params)

    Args:
        optimizer: a gradient transformation of optax, or a chain of such.
        params: the parameters that it is for: masks are of these.

    Raises:
        ImportError: optax is not installed.
        TypeError: no gradient transformation.
        ValueError: no parameters, a part that has no counterpart here, by its name, or other numbers than optax's.
    """
    optional("optax", extra="jax")
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        raise TypeError(f"from_optax takes an optimizer of optax, such as optax.adam(1e-3), not {shown(optimizer)}")
    arrays = _arrays(params)
    if not flatten(arrays)[0]:
        raise ValueError(
            f"from_optax: params are those that it is for, arrays such as model.params, not {shown(params)}"
        )
    made = _Reader(list(_parts(optimizer)), arrays).read()
    _compare(optimizer, made, arrays)
    return made


@dataclass(frozen=True)
class OptaxSchedule:
    """The learning rate of every step by schedules of optax, as it computes them, in float32.

    Attributes:
        schedules: from the number of a step to a rate, which are multiplied.
        factor: of their product.
    """

    schedules: tuple[Callable[[int], Any], ...]
    factor: float

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        rate = self.factor
        for schedule in self.schedules:
            rate *= float(schedule(step))
        return 0.0 if rate == 0 else rate  # no -0

    def description(self) -> Any:
        """What tells it from others in a study: its rates at steps of all sizes."""
        return {"schedule": [each.__qualname__ for each in self.schedules],
                "rates": [self(step) for step in (0, *(2**n for n in range(20)))]}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """Parameters that have no weight decay, by their names.

    Attributes:
        names: of these.
    """

    names: frozenset[str]

    def __call__(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a parameter has none."""
        return name in self.names


class _Part(NamedTuple):
    """One transformation: the name of the function of optax that made it, and what that was given."""

    name: str
    settings: Mapping[str, Any]


def _parts(transform: Any) -> Iterator[_Part]:
    """The transformations of a chain in order, of chains in chains too."""
    update = transform.update
    cells = dict(inspect.getclosurevars(update).nonlocals) if inspect.isfunction(update) else {}
    name = str(getattr(update, "__qualname__", type(transform).__name__)).split(".")[0]
    if not str(getattr(update, "__module__", "")).startswith("optax"):
        raise ValueError(f"{name} is a transformation of one's own: from_optax reads optax's, {KNOWN}")
    if name == "with_extra_args_support":
        yield from _parts(cells["tx"])
    elif name == "chain":
        for each in cells["update_fns"]:
            yield from _parts(_Bare(each))
    elif name != "identity":
        init = getattr(transform, "init", None)
        own = dict(inspect.getclosurevars(init).nonlocals) if inspect.isfunction(init) else {}
        yield _Part(name, {**own, **cells})


class _Bare(NamedTuple):
    """A transformation of which a chain has kept the update alone."""

    update: Any


class _Reader:
    """Reads an optimizer from its parts: clipping, decay, direction, decay, a ratio, rates; in this order."""

    def __init__(self, parts: list[_Part], params: Any) -> None:
        self._left, self._params, self._decay = parts, params, 0.0
        self._exclude: Callable[[str, tuple[int, ...]], bool] = nothing

    def read(self) -> Optimizer:
        """The optimizer."""
        settings: dict[str, Any] = {}
        if part := self._take("clip"):
            settings["clip_value"] = float(part.settings["max_delta"])
        if part := self._take("clip_by_global_norm"):
            settings["clip_norm"] = float(part.settings["max_norm"])
        before = self._decayed()
        direction = self._take(*DIRECTIONS)
        kind, own = (Sgd, {}) if direction is None else DIRECTIONS[direction.name](direction)
        behind = self._decayed()
        ratio = self._take("scale_by_trust_ratio")
        if ratio is not None:
            self._plain(ratio, min_norm=0.0, trust_coefficient=1.0, eps=0.0)
            if kind is not Adam:
                raise self._none(ratio, "ratios of norms are Lamb's, behind scale_by_adam, and Lars's")
            kind, own = Lamb, {**own, "ratio_one": nothing}
        if behind and kind in (Sgd, RmsProp, Adagrad, Adadelta) and direction is not None:
            raise self._none("add_decayed_weights", f"{kind.__name__} adds its decay to the gradient: put it first")
        if before and kind in (Lamb, Lion):
            raise self._none(
                "add_decayed_weights", f"{kind.__name__}'s decay is decoupled: put it behind the direction"
            )
        if before and issubclass(kind, Adam) and kind is not Lamb:
            own = {**own, "decoupled": False}
        rate = self._rate()
        if kind is RmsProp and (part := self._take("trace")):
            if callable(rate):
                raise self._none(part, "behind a schedule: RmsProp's momentum has the rate outside")
            own |= _momentum(part)[1]
        if self._left:
            raise self._none(self._left[0])
        if self._decay:
            kind = AdamW if kind is Adam and not before else kind
            settings |= {"weight_decay": self._decay, "exclude": self._exclude}
        made: Optimizer = kind(lr=rate, **own, **settings)
        return made

    def _take(self, *names: str) -> _Part | None:
        return self._left.pop(0) if self._left and self._left[0].name in names else None

    def _decayed(self) -> bool:
        """Reads a decay of weights, of those that a mask says."""
        if not self._left:
            return False
        part, exclude = self._left[0], nothing
        if part.name == "masked":
            inner = list(_parts(part.settings["inner"]))
            if [each.name for each in inner] != ["add_decayed_weights"]:
                raise self._none(part)
            part, exclude = inner[0], Named(_left_out(part.settings["mask"], self._params))
        if part.name != "add_decayed_weights":
            return False
        decay = part.settings["weight_decay"]
        if callable(decay):
            raise self._none(part, "its decay is a schedule")
        self._left.pop(0)
        if self._decay and decay:
            raise self._none(part, "there are two")
        if decay:
            self._decay, self._exclude = float(decay), exclude
        return bool(decay)

    def _rate(self) -> Rate:
        factor, schedules = 1.0, list[Callable[[int], Any]]()
        read = False
        while part := self._take("scale", "scale_by_schedule"):
            read = True
            if part.name == "scale":
                factor *= float(part.settings["step_size"])
            else:
                schedules.append(part.settings["step_size_fn"])
        if not read:
            if self._left:
                raise self._none(self._left[0])
            raise ValueError(f"from_optax: no learning rate behind the direction; there are {KNOWN}")
        if schedules:
            return OptaxSchedule(tuple(schedules), -factor)
        return -factor

    def _plain(self, part: _Part, **usual: Any) -> None:
        for name, value in usual.items():
            if part.settings.get(name, value) != value:
                raise self._none(part, f"its {name} is {part.settings[name]!r}, here always {value!r}")

    def _none(self, part: _Part | str, why: str = "") -> ValueError:
        name = part if isinstance(part, str) else part.name
        why = why or INSTEAD.get(name, "") or "in this place of the chain"
        return ValueError(f"from_optax: {name} has no counterpart ({why}); there are {KNOWN}")


def _refuse(part: _Part, **usual: Any) -> None:
    for name, value in usual.items():
        if (given := part.settings.get(name, value)) != value:
            raise ValueError(f"from_optax: {part.name} with {name}={given!r} has no counterpart, only {value!r}")


Made = tuple[type[Any], dict[str, Any]]


def _adam(part: _Part) -> Made:
    _refuse(part, eps_root=0.0, mu_dtype=None)
    own = {name: float(part.settings[name]) for name in ("b1", "b2", "eps")}
    return (NAdam, {**own, "momentum_decay": None}) if part.settings.get("nesterov") else (Adam, own)


def _radam(part: _Part) -> Made:
    # its eps is used in a function within
    within = inspect.getclosurevars(part.settings["_radam_update"]).nonlocals
    part = _Part(part.name, {**within, **part.settings})
    _refuse(part, nesterov=False)
    return RAdam, {**_adam(part)[1], "threshold": float(part.settings["threshold"]), "eps_corrected": False}


def _adamax(part: _Part) -> Made:
    return Adamax, _adam(part)[1]


def _adadelta(part: _Part) -> Made:
    return Adadelta, {"decay": float(part.settings["rho"]), "eps": float(part.settings["eps"])}


def _amsgrad(part: _Part) -> Made:
    if part.settings["bias_correction_mu"] or part.settings["bias_correction_nu"]:
        raise ValueError(
            "from_optax: scale_by_amsgrad has no counterpart (its largest second moment is of corrected ones, that of "
            "Adam(amsgrad=True), as torch's, of those before their correction); with bias_correction_mu=False and "
            "bias_correction_nu=False it is read"
        )
    kind, own = _adam(part)
    return kind, {**own, "amsgrad": True, "bias_correction": False}


def _momentum(part: _Part) -> Made:
    _refuse(part, accumulator_dtype=None)
    decay = float(part.settings["decay"])
    return Sgd, {"momentum": decay, "nesterov": bool(part.settings["nesterov"] and decay)}


def _lion(part: _Part) -> Made:
    _refuse(part, mu_dtype=None, mode="hard")
    return Lion, {name: float(part.settings[name]) for name in ("b1", "b2")}


def _rms(part: _Part) -> Made:
    _refuse(part, bias_correction=False)
    own = {"decay": float(part.settings["decay"]), "eps": float(part.settings["eps"]),
           "eps_in_root": bool(part.settings.get("eps_in_sqrt", True)),
           "initial": float(part.settings.get("initial_scale", 0.0))}  # fmt: skip
    return RmsProp, {**own, "centered": part.name == "scale_by_stddev"}


def _adagrad(part: _Part) -> Made:
    start, eps = (float(part.settings[name]) for name in ("initial_accumulator_value", "eps"))
    return Adagrad, {"initial": start, "eps": eps, "eps_in_root": True}


DIRECTIONS: Mapping[str, Callable[[_Part], Made]] = {
    "trace": _momentum, "scale_by_adam": _adam, "scale_by_amsgrad": _amsgrad, "scale_by_lion": _lion,
    "scale_by_radam": _radam, "scale_by_adamax": _adamax, "scale_by_adadelta": _adadelta,
    "scale_by_rms": _rms, "scale_by_stddev": _rms, "scale_by_rss": _adagrad,
}  # fmt: skip


def _arrays(params: Any) -> Any:
    """Parameters without what their classes hold that is no array, as equinox.filter leaves them."""
    leaves, tree = flatten(params)
    return unflatten(_without_held(tree), leaves)


def _without_held(tree: PyTree) -> PyTree:
    if isinstance(tree.made, Held):
        return PyTree(type(None))
    return PyTree(tree.kind, tree.keys, tuple(map(_without_held, tree.children)), tree.made)


def _left_out(mask: Any, params: Any) -> frozenset[str]:
    """The names of the parameters that a mask leaves out; it may be a function of them, or say it of whole branches."""
    jax = optional("jax", extra="jax")
    given = mask(params) if callable(mask) else mask
    whole = jax.tree.map(lambda one, branch: jax.tree.map(lambda _: bool(one), branch), given, params)
    names = [name for name, _ in named(params)]
    return frozenset(name for name, on in zip(names, jax.tree.leaves(whole), strict=True) if not on)


def _compare(optimizer: Any, made: Optimizer, params: Any) -> None:
    """Some steps of both, of small arrays nested as the parameters.

    Raises:
        ValueError: the numbers differ.
    """
    jax, optax = optional("jax", extra="jax"), optional("optax", extra="jax")
    leaves, tree = flatten(params)
    r = np.random.default_rng(0)
    small = [np.asarray(x, np.float32)[tuple(slice(3) for _ in np.shape(x))] for x in leaves]
    # what begins at zero stays so; the others get values of all their own
    small = [x if not x.any() else r.normal(size=x.shape).astype(np.float32) for x in small]
    start = unflatten(tree, small)
    mine, state = start, made.init(start)
    block = trace(made.update, start, start, state, np.float32(0))
    with jax.enable_x64(True):
        theirs = unflatten(tree, [x.astype(np.float64) for x in small])
        other = optimizer.init(theirs)
        follow = jax.jit(lambda g, state, p: _following(optax, optimizer, g, state, p))
        for step in range(STEPS):
            slopes = [(10.0 ** (step % 4 - 2) * r.normal(size=x.shape)).astype(np.float32) for x in small]
            rate = np.float32(made.lr(step) if callable(made.lr) else made.lr)
            mine, state = execute(block, mine, unflatten(tree, slopes), state, rate, key=0)
            theirs, other = follow(unflatten(tree, [x.astype(np.float64) for x in slopes]), other, theirs)
            for name, a, b, x in zip(paths(tree), flatten(mine)[0], flatten(theirs)[0], small, strict=True):
                moved = float(np.abs(np.asarray(b) - x).max(initial=0.0))
                # beside what the weights' float32 loses
                if not np.allclose(a, b, rtol=1e-6, atol=CLOSE * max(moved, 1e-3)):
                    raise ValueError(
                        f"from_optax reads {made}, whose numbers differ from optax's in step {step} of {name or 'it'}: "
                        "the optimizer is none that it knows"
                    )


def _following(optax: Any, optimizer: Any, gradients: Any, state: Any, params: Any) -> Sequence[Any]:
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state
