"""Binding: vertex groups to arrays. Affine operands become views of storage, others are gathered and scattered."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.arrays import aligned, words
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws, TileRandom
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.engine.assignment import assigner
from ipu_core.engine.watch import watched
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.per_vertex import PerVertex, parameter
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup
from lowprec import Key


class KeyCell:
    """Holds the key of the iteration being run, what operations fold of it, and how the engine goes to the next run.

    Attributes:
        next_run: counts a run as done and gives `key` the next one's.
        random: the tiles' own generators, where random bits are theirs and not the key's.
    """

    __slots__ = ("folded", "key", "next_run", "random")

    def __init__(self, next_run: Callable[[], None] = lambda: None, random: TileRandom | None = None) -> None:
        self.random = random
        self.key: Key | None = None
        self.next_run = next_run
        self.folded: dict[tuple[int | None, int], FoldedKey] = {}


class FoldedKey:
    """The key of one operation, folded once an iteration for all groups and compute sets of that operation."""

    __slots__ = ("key", "source")

    def __init__(self) -> None:
        self.source: Key | None = None
        self.key: Key | None = None


class Bound:
    """A group ready to run: its codelet instance and the calls that run it, in order."""

    __slots__ = ("calls", "codelet")

    def __init__(self, codelet: Codelet, calls: list[Callable[[], None]]) -> None:
        self.codelet = codelet
        self.calls = calls


def view_of(tensor: Tensor, storage: Mapping[Variable, NDArray[Any]]) -> NDArray[Any]:
    """A tensor's elements in storage, writable."""
    return tensor.of(storage[tensor.variable])


def bind_group(
    group: VertexGroup,
    storage: Mapping[Variable, NDArray[Any]],
    target: Target,
    control: FloatingPointControl,
    cell: KeyCell,
) -> Bound:
    """Makes the codelet's instance for a group, with its arrays in place, and lets it prepare.

    Raises:
        ValueError: the codelet draws random bits and the engine has no key.
    """
    before: list[Callable[[], None]] = []
    after: list[Callable[[], None]] = []
    fields = {
        name: _bind_operand(operand, storage[operand.variable], before, after)
        for name, operand in group.operands.items()
    }
    random = group.codelet.uses_key or _converts_randomly(group, control)
    draws = Draws(cell.random, group.tiles) if random and cell.random is not None else None
    codelet = _instance(group, fields, target, control, draws)
    attributes = codelet.__dict__
    attributes["_assign"] = assigner(group, control, attributes)
    codelet.prepare()
    # What `prepare` has set, `compute` may set again: it is the codelet's own, neither field nor parameter.
    attributes["_prepared"] = frozenset(attributes) - _given(group)
    if random and draws is None:
        before.append(_key_setter(attributes, cell, group))
    return Bound(codelet, [*before, watched(group, codelet, control, cell.random), *after])


def unbound(group: VertexGroup, target: Target, control: FloatingPointControl) -> Codelet:
    """A group's codelet as far as its cost goes: its arrays have shapes and formats, and no memory."""
    fields = {
        name: np.broadcast_to(np.zeros((), operand.variable.dtype), operand.shape)
        for name, operand in group.operands.items()
    }
    return _instance(group, fields, target, control, None)


def _instance(
    group: VertexGroup,
    fields: Mapping[str, NDArray[Any]],
    target: Target,
    control: FloatingPointControl,
    draws: Draws | None,
) -> Codelet:
    codelet = group.codelet()
    params: Mapping[str, Any] = group.params
    if not codelet.trusted:
        fields = {name: PerVertex.of(array, group.tiles.ndim) for name, array in fields.items()}
        params = {name: _param(group, value) for name, value in params.items()}
    codelet.__dict__.update(fields, **params, target=target, control=control, key=None, draws=draws)
    return codelet


def _param(group: VertexGroup, value: Any) -> Any:
    """A parameter as a user's codelet sees it: numbers of the vertices' own by the vertex axes."""
    own = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return parameter(value, group.tiles.ndim) if own else value


def _given(group: VertexGroup) -> set[str]:
    """Attributes that are not for `compute` to set."""
    return {"target", "control", "key", "draws", "_assign", *group.params}


def _bind_operand(
    operand: Operand,
    storage: NDArray[Any],
    before: list[Callable[[], None]],
    after: list[Callable[[], None]],
) -> NDArray[Any]:
    if operand.tensor is not None:
        view = operand.tensor.of(storage)
        # A codelet that wrote to an Input would change the operand of other vertices, unseen by the race check.
        if not operand.field.writes:
            view.flags.writeable = False
        return view
    # No affine view: elements come to a buffer before the calls, and go back behind them.
    indices = operand.indices if operand.indices is not None else np.zeros(0, np.int64)
    buffer = aligned(math.prod(indices.shape), storage.dtype).reshape(indices.shape)
    if operand.field.reads:
        before.append(_gather(words(storage), indices, words(buffer)))
    if operand.field.writes:
        after.append(_scatter(words(storage), indices, words(buffer)))
        return buffer
    seen = buffer.view()
    seen.flags.writeable = False
    return seen


def _gather(storage: NDArray[Any], indices: Ints, buffer: NDArray[Any]) -> Callable[[], None]:
    def gather() -> None:
        # NumPy gathers to `out` by way of a copy if indices may be refused; these were checked when the group was made.
        storage.take(indices, out=buffer, mode="clip")

    return gather


def _scatter(storage: NDArray[Any], indices: Ints, buffer: NDArray[Any]) -> Callable[[], None]:
    def scatter() -> None:
        storage[indices] = buffer

    return scatter


def _key_setter(attributes: dict[str, Any], cell: KeyCell, group: VertexGroup) -> Callable[[], None]:
    """Gives vertices the key of their operation in the iteration being run, within a function that of its own number.

    It refuses where the engine has none.
    """
    within, operation = group.within, group.operation
    folded = cell.folded.setdefault((within, operation), FoldedKey())

    def set_key() -> None:
        key = cell.key
        if key is None:
            name = group.codelet.__name__
            raise ValueError(f"{name} draws random bits: give the engine a key, as in Engine(graph, program, key=0)")
        # By identity: the cell holds one Key object for a whole iteration.
        if folded.key is None or key is not folded.source:
            inner = key if within is None else key.fold_in(within)
            folded.source, folded.key = key, inner.fold_in(operation)
        attributes["key"] = folded.key

    return set_key


def _converts_randomly(group: VertexGroup, control: FloatingPointControl) -> bool:
    """Whether an assignment to an output may round stochastically (a user's codelet under esr)."""
    return control.esr and group.codelet.converts
