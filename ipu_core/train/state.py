"""The state of a training as a value: arrays by name, the steps done, and the identity of the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from ipu_core.ir.block import Array
from ipu_core.ir.spelling import respelled
from ipu_core.train.arguments import check_integer
from ipu_core.train.loss_scale import Scale, Skipped
from ipu_core.train.planned import PlannedStep, read_random
from lowprec import Key
from lowprec.arrays import whole_array
from lowprec.checks import entries, expect, shown


class Steps(NamedTuple):
    """The steps that a training has done: key, count, loss scale, skipped steps and the first loss not finite.

    Attributes:
        key: Of the run; step i rounds with key.fold_in(i).
        step: How many.
        scale: The loss scale of the next one; None: there is none.
        skipped: Those that changed nothing, with what was wrong.
        not_finite: The first one whose loss was infinite or NaN, and that loss; None: there was none.
    """

    key: Key
    step: int = 0
    scale: Scale | None = None
    skipped: tuple[Skipped, ...] = ()
    not_finite: tuple[int, float] | None = None

    def after(self, loss: float, overflowed: tuple[str, ...] | None) -> Steps:
        """The steps after one more with this loss and these overflowed gradients; None: gradients were not checked."""
        scale, skipped, not_finite = self.scale, self.skipped, self.not_finite
        if not math.isfinite(loss) and not_finite is None:
            not_finite = self.step, loss
        # Where no step is guarded nothing was looked at, and a scale must not grow for it.
        if scale is not None and overflowed is not None:
            if overflowed:
                skipped = (*skipped, Skipped(self.step, float(scale.value), overflowed))
            scale = scale.after(bool(overflowed))
        return Steps(self.key, self.step + 1, scale, skipped, not_finite)

    def history(self) -> dict[str, Any]:
        """Steps skipped, and a loss that was not finite, as JSON."""
        return {"skipped": [list(each) for each in self.skipped], "not_finite": self.not_finite}

    def skips(self, step: int) -> bool:
        """Whether a step was skipped."""
        return step in [each.step for each in self.skipped]


@dataclass(frozen=True, eq=False)
class State:
    """Everything that a training step changes, as a value; `dataclasses.replace` makes changed ones.

    Attributes:
        steps: The steps done, with the key and the loss scale.
        leaves: Parameters, the optimizer's arrays and what the model carries, by dotted name.
        identity: What decides the bits of the steps whose state it is, in words by name: the precision, the traced step
            with its orders of sums, its constants, the loss scale, the control. Another training does not resume it.
        drawn: The state of the tiles' generators by name; nothing where random bits are the key's.
    """

    steps: Steps
    leaves: Mapping[str, Array]
    identity: Mapping[str, str]
    drawn: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """The arrays and the loss scale by name, for a checkpoint."""
        own = {**self.leaves, **self.drawn}
        return own if self.steps.scale is None else own | self.steps.scale.arrays()

    def restored(self, arrays: Mapping[str, Array], step: int, history: Mapping[str, Any] | None = None) -> State:
        """The state after `step` steps, made of its `arrays` and its `history`.

        Raises:
            TypeError: no arrays by name; masked elements.
            ValueError: the arrays are not those of this state, there is no such step, another history, or a loss scale
                that this training never has.
        """
        check_integer("step", step)
        expect(Mapping, arrays=arrays)
        # Without a history the arrays are another run's weights: what this training has skipped stays known.
        skipped, not_finite = self.steps[-2:] if history is None else _happened(history)
        # Checkpoints of 0.1.0 spell some names otherwise.
        names, scale = respelled(arrays, "the arrays of a state"), self.steps.scale
        arrays = {names[name]: whole_array(array) for name, array in arrays.items()}
        _check_alike(arrays, self.arrays())
        scale = None if scale is None else scale.restored(arrays)
        leaves, drawn = ({name: arrays[name] for name in own} for own in (self.leaves, self.drawn))
        return State(Steps(self.steps.key, int(step), scale, skipped, not_finite), leaves, self.identity, drawn)

    def resumed(self, state: State, identity: Callable[[Key], Mapping[str, str]]) -> State:
        """Another state of the same training, checked.

        Args:
            state: The other; its key may differ, and how far it is.
            identity: Of this training with a key.

        Raises:
            TypeError: no such state.
            ValueError: one of another training, with what differs.
        """
        expect(State, state=state)
        steps = state.steps
        expect(Steps, **{"state.steps": steps})
        expect(Key, **{"state.steps.key": steps.key})
        expect(Mapping, **{"state.leaves": state.leaves, "state.drawn": state.drawn})
        # With the state's own key, since a state brings its key along; the tiles' generators start from it.
        check_identity("the state", state.identity, identity(steps.key))
        given, own = (None if each.scale is None else each.scale.policy for each in (steps, self.steps))
        if given != own:
            raise ValueError(f"the state's loss scale changes as {given} says, this training's as {own}")
        made = self.restored(state.arrays(), steps.step, steps.history())
        # Else later steps would draw the bits of the key that this training had before.
        return State(made.steps._replace(key=steps.key), made.leaves, made.identity, made.drawn)


def identity_of(planned: PlannedStep, key: Key) -> dict[str, str]:
    """What two trainings must share to go on from one state; learning rate and order of equations may differ.

    Args:
        planned: The step; the order of its equations counts where tiles draw.
        key: Of the run, from which tiles' generators start.
    """
    training = planned.training
    added_up = "none of its own" if training.collective is None else training.collective.words()
    random, scale = read_random(training.random, key), training.loss_scale
    return {
        "precision": training.precision.words(),
        **({} if training.replicas == 1 else {"replicas": str(training.replicas), "collective": added_up}),
        "optimizer": _said(training.optimizer),
        "traced step": planned.digest,
        "constants": planned.constants,
        **({} if random is None else {"random": repr(random)}),
        "loss scale": "none" if scale is None else str(scale),
        "control": repr(training.control),
    }


WORDS = {
    "traced step": "another traced step: another loss, optimizer, shape, order of sums (one of rule 1, before this "
    "version, goes on with order='1') or setting of the loop",
    "constants": "other constants: numbers or arrays that the loss or the optimizer holds",
}
"""In words, what differs where these hashes do."""


def check_identity(what: str, given: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Refuses a state or checkpoint of another training.

    Args:
        what: What is checked, for the message.
        given: The identity it was saved with; other entries are ignored.
        own: The identity of the training that is to go on from it.

    Raises:
        ValueError: they differ, but for the name of a precision.
    """
    expect(Mapping, identity=given)
    own = {"replicas": "1", **own}  # of one it is not said
    for name, mine in own.items():
        if name == "optimizer":
            continue  # it is a part of the traced step, and told where that is another
        if name == "traced step" and given.get(name) != mine:
            _check_optimizer(what, str(given.get("optimizer", "")), own.get("optimizer", ""))
        if name == "replicas" and given.get(name, "1") == mine:
            continue
        if name in ("loss scale", "control", "constants") and name not in given:
            continue  # which older files do not say
        other = str(given.get(name, "1" if name == "replicas" else None))
        if name == "precision":
            # The words of a precision are its name and what it does. A name decides no bit, so it may be another.
            (called, _, does), (calls, _, do) = other.partition(":"), mine.partition(":")
            other, mine = (does, do) if does == do else (other, mine) if called == calls else (called, calls)
        if other != mine:
            raise ValueError(f"{what} is of a run with {WORDS.get(name) or f'{name} {other}, this one has {mine}'}")


def _said(optimizer: Any) -> str:
    """The kind of an optimizer with the numbers and truth values that it is made of, but for the learning rate."""
    if not is_dataclass(optimizer):
        return type(optimizer).__name__
    plain = {each.name: getattr(optimizer, each.name) for each in fields(optimizer) if each.name != "lr"}
    told = (f"{name}={x!r}" for name, x in plain.items() if x is None or isinstance(x, bool | int | float))
    return f"{type(optimizer).__name__}({', '.join(told)})"


def _check_optimizer(what: str, given: str, own: str) -> None:
    """Refuses what was saved under another optimizer, by what differs; older files do not say theirs.

    Raises:
        ValueError: it differs.
    """
    if not given or not own or given == own:
        return
    (kind, _, told), (mine, _, tells) = given.partition("("), own.partition("(")
    words, others = (each.removesuffix(")").split(", ") for each in (told, tells))
    if kind == mine:
        kind = f"{kind}({', '.join(one for one in words if one not in others)})"
        mine = f"{mine}({', '.join(one for one in others if one not in words)})"
    raise ValueError(f"{what} is of a run with the optimizer {kind}, this one has {mine}")


def _check_alike(given: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Refuses arrays of other names, shapes or dtypes."""
    kinds, wanted = ({name: f"{x.dtype}{list(x.shape)}" for name, x in each.items()} for each in (given, own))
    if kinds != wanted:
        differ = [name for name in sorted(kinds | wanted, key=str) if kinds.get(name) != wanted.get(name)]
        told = [f"{name} is {kinds.get(name, 'missing')}, not {wanted.get(name, 'there')}" for name in differ[:3]]
        more = f", and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise ValueError(f"the arrays are not those of this training step: {', '.join(told)}{more}")


def _happened(history: Mapping[str, Any]) -> tuple[tuple[Skipped, ...], tuple[int, float] | None]:
    """The steps skipped and the first loss that was not finite, of a history."""
    skipped, loss = entries("history", history, ("skipped", "not_finite"))
    try:
        steps = tuple(Skipped(int(at), float(scale), tuple(names)) for at, scale, names in skipped)
        return steps, None if loss is None else (int(loss[0]), float(loss[1]))
    except (TypeError, ValueError, IndexError, KeyError):
        raise ValueError(f"a history is what history() gave, not {shown(history)}") from None
