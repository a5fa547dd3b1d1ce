"""A codelet that is not this package's own, watched: outputs that it leaves out, exceptions that it meets."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.arrays import words
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import TileRandom, WorkerState
from ipu_core.errors import FloatingPointException
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.vertices import VertexGroup

Array = NDArray[Any]
Compute = Callable[[], None]

_MARKS: Final = {
    1: (0xA5, 0x5A),
    2: (0x7EA5, 0xFE5A),
    4: (0x7FE5A5A5, 0xFFDA5A5A),
    8: (0x7FFCA5A5A5A5A5A5, 0xFFFA5A5A5A5A5A5A),
}
"""Elements of so many bytes that nobody has written: quiet NaNs in formats of 16 bits and more, which arithmetic leaves
as they are, so that what is made of them is found too. Two of each, since a codelet may write one of them."""


def watched(group: VertexGroup, codelet: Codelet, control: FloatingPointControl, random: TileRandom | None) -> Compute:
    """The codelet's `compute`, and what an engine looks after unless it is trusted (see `Codelet`)."""
    if codelet.trusted:
        return codelet.compute
    compute = _trapping(group, codelet, control) if control.traps else codelet.compute
    return _whole_at_first(group, codelet, compute, random)


def _trapping(group: VertexGroup, codelet: Codelet, control: FloatingPointControl) -> Compute:
    """Raises what NumPy finds in its operations, and a NaN in the outputs of a vertex that was given none."""
    compute, fields, name = codelet.compute, codelet.__dict__, group.codelet.__name__
    kinds = (("divide", control.div0), ("over", control.oflo), ("invalid", control.inv))
    enabled: Any = {kind: "raise" for kind, stops in kinds if stops}
    read = [fields[name] for name, operand in group.operands.items() if operand.field.reads]
    read += [value for value in (fields[name] for name in group.params) if isinstance(value, float | np.ndarray)]
    written = [fields[name] for name, operand in group.operands.items() if operand.field.writes]

    def trapped() -> None:
        given = _with_nan(group, read) if control.inv else None
        try:
            with np.errstate(**enabled):
                compute()
        except FloatingPointError as error:
            raise FloatingPointException(f"{name}: {error}") from None
        if given is not None and (made := _with_nan(group, written) & ~given).any():
            vertex = int(np.flatnonzero(made)[0])
            raise FloatingPointException(f"{name}: invalid operation: NaN from vertex {vertex}, which was given none")

    return trapped


def _with_nan(group: VertexGroup, arrays: list[Any]) -> NDArray[np.bool_]:
    """For each vertex whether one of the arrays has a NaN in its part; what is all vertices' counts for each."""
    found = np.zeros(group.vertices, bool)
    for array in map(np.asarray, arrays):
        if array.dtype.kind in "biuO":
            continue
        has = np.isnan(array if array.dtype.kind == "f" else array.astype(np.float32))
        own = has.shape[: group.tiles.ndim] == group.tiles.shape
        found |= has.reshape(group.vertices, -1).any(axis=1) if own else has.any()
    return found


def _whole_at_first(group: VertexGroup, codelet: Codelet, compute: Compute, random: TileRandom | None) -> Compute:
    """Looks in the first run whether all elements of all outputs are written."""
    fields = codelet.__dict__
    written = {name: words(np.asarray(fields[name])) for name, item in group.operands.items() if item.field.writes}
    outputs = {name: array for name, array in written.items() if not group.operands[name].field.reads}
    if not outputs:
        return compute
    looked = False

    def run() -> None:
        nonlocal looked
        if looked:
            compute()
            return
        before = {name: array.copy() for name, array in written.items()}
        # The second try has to draw what the first one drew, else every random element would look written.
        state = None if random is None else WorkerState(*(part.copy() for part in random.state))
        try:
            left = _left(compute, written, outputs, before, 0)
            if any(mask.any() for mask in left.values()):  # or they hold just that
                if random is not None and state is not None:
                    random.restore(state)
                again = _left(compute, written, outputs, before, 1)
                _refuse(group, {name: mask & again[name] for name, mask in left.items()})
        # Marks are no results, whatever ended the look: outputs hold what they held, also after a Ctrl-C.
        except BaseException:
            for name, array in outputs.items():
                array[...] = before[name]
            raise
        looked = True

    return run


def _left(
    compute: Compute,
    written: Mapping[str, Array],
    outputs: Mapping[str, Array],
    before: Mapping[str, Array],
    which: int,
) -> dict[str, NDArray[np.bool_]]:
    """Where outputs that begin with a mark have it after `compute`, which begins with the other values as they were."""
    marks = {name: array.dtype.type(_MARKS[array.itemsize][which]) for name, array in outputs.items()}
    for name, array in written.items():
        array[...] = marks.get(name, before[name])
    compute()
    return {name: array == marks[name] for name, array in outputs.items()}


def _refuse(group: VertexGroup, left: Mapping[str, NDArray[np.bool_]]) -> None:
    """Names an output that `compute` has not written whole."""
    for name, mask in left.items():
        if mask.any():
            at = tuple(int(i) for i in np.argwhere(mask)[0])
            raise ValueError(
                f"{group.codelet.__name__}.{name}: compute leaves {int(mask.sum())} of {mask.size} elements unwritten, "
                f"or makes them of what they held; the first is {list(at)}. An Output is written whole; what keeps "
                "what it held is an InOut"
            )
