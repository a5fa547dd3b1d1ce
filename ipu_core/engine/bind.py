"""Binding: vertex groups to arrays. Affine operands become views of storage, others are gathered and scattered."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.arrays import aligned
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws, TileRandom
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup
from lowprec import FloatFormat, Key, astype


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


def words(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as unsigned integers, which NumPy moves fastest and for every format."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


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
    attributes["_convert"] = _converter(group, control, attributes)
    codelet.prepare()
    if random and draws is None:
        before.append(_key_setter(attributes, cell, group))
    return Bound(codelet, [*before, codelet.compute, *after])


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
    codelet.__dict__.update(fields, **group.params, target=target, control=control, key=None, draws=draws)
    return codelet


def _bind_operand(
    operand: Operand,
    storage: NDArray[Any],
    before: list[Callable[[], None]],
    after: list[Callable[[], None]],
) -> NDArray[Any]:
    if operand.tensor is not None:
        view = operand.tensor.of(storage)
        if not operand.field.writes:
            view.flags.writeable = False
        return view
    indices = operand.indices if operand.indices is not None else np.zeros(0, np.int64)
    buffer = aligned(math.prod(indices.shape), storage.dtype).reshape(indices.shape)
    if operand.field.reads:
        before.append(_gather(words(storage), indices, words(buffer)))
    if operand.field.writes:
        after.append(_scatter(words(storage), indices, words(buffer)))
    return buffer


def _gather(storage: NDArray[Any], indices: Ints, buffer: NDArray[Any]) -> Callable[[], None]:
    def gather() -> None:
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
        if folded.key is None or key is not folded.source:
            inner = key if within is None else key.fold_in(within)
            folded.source, folded.key = key, inner.fold_in(operation)
        attributes["key"] = folded.key

    return set_key


def _converts_randomly(group: VertexGroup, control: FloatingPointControl) -> bool:
    """Whether an assignment to an output may round stochastically (a user's codelet under esr)."""
    return control.esr and group.codelet.converts


def _converter(
    group: VertexGroup, control: FloatingPointControl, attributes: dict[str, Any]
) -> Callable[[Any, NDArray[Any]], None]:
    """The conversion on assignment to an output: to nearest, or stochastically to half under esr."""
    dtypes = {np.dtype(o.variable.dtype): o.variable.format for o in group.operands.values() if o.field.writes}

    def convert(value: Any, destination: NDArray[Any]) -> None:
        fmt = dtypes[destination.dtype]
        source = np.asarray(value)
        if not isinstance(fmt, FloatFormat) or source.dtype == destination.dtype or source.dtype.kind == "b":
            destination[...] = source
            return
        random = control.esr and fmt.mantissa_bits <= 10
        if random and attributes["draws"] is not None:
            destination[...] = attributes["draws"].half(source, control.nanoo)
            return
        destination[...] = astype(
            source,
            fmt,
            "stochastic" if random else "nearest_even",
            key=attributes["key"] if random else None,
            overflow=control.overflow(fmt),
        )

    return convert
