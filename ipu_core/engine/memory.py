"""The memory account: bytes per tile by category, the peak, and what fills it."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.integers import Ints
from ipu_core.engine.liveness import ProgramPoint, live_points, mask_of
from ipu_core.engine.steps import StepAccount
from ipu_core.engine.tree import Tree
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.graph import Graph
from ipu_core.graph.streams import RemoteBuffer
from ipu_core.graph.tensor import Variable
from ipu_core.graph.vertices import VertexGroup
from lowprec.integers import ceil_div

Flags = NDArray[np.bool_]

_GRAIN = 8  # bytes; a variable's part on a tile begins at a 64-bit word
_WORD = 4  # bytes of vertex state per pointer or number, and once per vertex
# A vector in a user's vertex has its length beside the pointer, as Poplar has them unless told otherwise. The library's
# have the pointer alone and their sizes in one word: in PopLibs' public assembly the state of a binary operation is
# pointers at 0, 4 and 8 and a count at 12.
_SPAN = 8
_LARGEST = 5  # variables named at the peak


@dataclass(frozen=True)
class Lifetime:
    """One point of a program: its step and the bytes that live there."""

    step: str
    total: int
    fullest: int


@dataclass(frozen=True, eq=False)
class MemoryAccount:
    """Memory of an engine with all its programs.

    Attributes:
        always: bytes by tile of what lives all the time: variables, constants, vertex state, code, padding.
        peak: bytes by tile at that tile's own peak, everything included.
        tile: the fullest tile.
        categories: bytes by category on the fullest tile at its peak; temporaries, gathered operands, exchange
            buffers and scratch do not live always.
        variables: what lives on the fullest tile at its peak, as (name, bytes there), the largest first.
        step: the step at which that peak is reached ("" if nothing but always-live memory exists).
        lifetimes: bytes that live at every point, all tiles together and on the fullest tile of that point.
        temporary_bytes: bytes of all temporaries, as if none shared space.
        available: bytes of one tile.
        remote: bytes of the remote buffers, in streaming memory.
        remote_available: bytes of streaming memory; 0: no figure.
        unstreamed: bytes by tile at the tile's own peak if all that lies in remote buffers lay on the tiles instead.
        gaps: bytes by tile, at the tile's own peak, that no element fills: between variables, whose parts on a tile
            begin at 64-bit words.
        held: all variables, which know their tiles; see `tiles_of`.
    """

    always: dict[str, Ints]
    peak: Ints
    tile: int
    categories: dict[str, int]
    variables: tuple[tuple[str, int], ...]
    step: str
    lifetimes: tuple[Lifetime, ...]
    temporary_bytes: int
    available: int
    remote: int
    remote_available: int
    unstreamed: Ints
    gaps: Ints
    held: tuple[Variable, ...] = ()

    @property
    def without_gaps(self) -> Ints:
        """Bytes by tile at its own peak, without the gaps between variables."""
        return self.peak - self.gaps

    @property
    def always_live(self) -> Ints:
        """Bytes by tile of what lives all the time."""
        return sum(self.always.values(), np.zeros_like(self.peak))

    @property
    def not_always_live(self) -> Ints:
        """Bytes by tile of what shares space and lives at the tile's own peak."""
        return self.peak - self.always_live

    @property
    def share(self) -> float:
        """The fullest tile's peak as a share of its memory; above 1 it does not fit."""
        return self.peak_bytes / self.available

    def tiles_of(self, name: str) -> Ints:
        """Bytes by tile of a variable, or of all that have the name.

        Raises:
            ValueError: no variable has it.
        """
        found = [v for v in self.held if v.name == name]
        if not found:
            near = get_close_matches(str(name), {v.name for v in self.held}, 3, cutoff=0)
            raise ValueError(f"no variable is called {name!r}; nearest are {', '.join(near)}")
        return sum((bytes_by_tile(v, self.peak.size) for v in found), np.zeros_like(self.peak))

    @property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The largest variables on the fullest tile at its peak, as (name, bytes)."""
        return self.variables[:_LARGEST]

    @property
    def peak_bytes(self) -> int:
        """Bytes of the fullest tile at its peak."""
        return int(self.peak[self.tile])

    @property
    def always_bytes(self) -> int:
        """Always-live bytes of all tiles."""
        return int(sum(int(by_tile.sum()) for by_tile in self.always.values()))

    def check(self, *ways: str) -> None:
        """Raises OutOfTileMemory if the fullest tile needs more than it has.

        Args:
            ways: what the caller could be given instead, in words.
        """
        if self.peak_bytes > self.available:
            facts = self.tile, self.peak_bytes, self.available, self.categories, self.largest, self.step
            raise OutOfTileMemory(*facts, ways=ways)


def bytes_by_tile(variable: Variable, tiles: int) -> Ints:
    """Bytes of a variable's elements on each tile."""
    return variable.mapping.elements_per_tile(tiles) * variable.dtype.itemsize


def account_memory(
    graph: Graph,
    trees: Sequence[Tree],
    steps: Sequence[StepAccount],
    sets: Sequence[Sequence[VertexGroup]],
    remote: Mapping[RemoteBuffer, Variable],
) -> MemoryAccount:
    """Adds up memory over the programs of an engine; they share always-live memory and may share temporary space."""
    tiles = graph.target.tiles
    kept = mask_of(v for v in graph.variables if not v.temporary)
    points: list[ProgramPoint] = []
    early = kept
    for tree in trees:
        found, read_early = live_points(tree, steps, kept)
        points += found
        # What a program reads before it has written it is what another program, or its own last run, left there: no
        # temporary may lie over it in between.
        early |= read_early
    held = [bytes_by_tile(v, tiles) for v in graph.variables]
    sizes = np.array(held, np.int64).reshape(-1, tiles)
    (fixed,) = _bits([early], len(graph.variables))
    constant = np.array([v.constant for v in graph.variables], bool)
    padded = ceil_div(sizes, _GRAIN) * _GRAIN
    always = {
        "variables": sizes[fixed & ~constant].sum(axis=0),
        "constants": sizes[fixed & constant].sum(axis=0),
        "vertex state": _vertex_state(sets, tiles),
        "code": _code(chain.from_iterable(sets), tiles),
        "padding": (padded - sizes)[fixed].sum(axis=0),
    }
    moving = np.flatnonzero(~fixed)
    live = _bits([point.live for point in points], len(graph.variables))
    passing = _living(live[:, moving], padded[moving])
    for row, point in zip(passing, points, strict=True):
        for by_tile in steps[point.step].memory.values():
            # Gathered operands, exchange buffers and scratch: they are there while their own step runs, and no longer.
            row += by_tile
    base: Ints = sum(always.values(), np.zeros(tiles, np.int64))
    peak = base + passing.max(axis=0, initial=0)
    tile = int(peak.argmax())
    at = int(passing[:, tile].argmax()) if points else -1
    shown, alive = {name: int(by_tile[tile]) for name, by_tile in always.items()}, fixed
    if points:
        alive = fixed | live[at]
        shown["temporaries"] = int(padded[alive & ~fixed, tile].sum())
        shown |= {name: int(by_tile[tile]) for name, by_tile in steps[points[at].step].memory.items()}
    largest = sorted(
        ((v.name, int(sizes[v.number, tile])) for v in graph.variables if alive[v.number]), key=lambda item: -item[1]
    )
    return MemoryAccount(
        always,
        peak,
        tile,
        shown,
        tuple(item for item in largest if item[1]),
        steps[points[at].step].name if points else "",
        tuple(
            Lifetime(steps[point.step].name, int(row.sum()), int(row.max()))
            for point, row in zip(points, base + passing, strict=True)
        ),
        int(padded[moving].sum()),
        graph.target.tile_memory,
        sum(buffer.nbytes for buffer in remote),
        graph.target.streaming_memory,
        _unstreamed(base, passing, padded, live, fixed, remote),
        always["padding"] + _gaps(passing, (padded - sizes)[moving], live[:, moving]),
        tuple(graph.variables),
    )


def _gaps(passing: Ints, padding: Ints, live: Flags) -> Ints:
    """Bytes by tile between the variables that share space there at the tile's own peak."""
    total = np.zeros(passing.shape[1], np.int64)
    if len(passing):
        at = passing.argmax(axis=0)
        # Few points are any tile's peak.
        for point in np.unique(at).tolist():
            there = at == point
            total[there] = padding[live[point]][:, there].sum(axis=0)
    return total


def _unstreamed(
    base: Ints, passing: Ints, padded: Ints, live: Flags, fixed: Flags, remote: Mapping[RemoteBuffer, Variable]
) -> Ints:
    """The peak by tile with the entries of remote buffers on the tiles, laid out as what they are moved to and from."""
    here = np.array([v.number for v in set(remote.values()) if not fixed[v.number]], np.int64)
    far = sum((buffer.entries * padded[v.number] for buffer, v in remote.items()), np.zeros_like(base))
    # What holds an entry while it is on the tiles would be that entry itself: it is not counted beside it.
    others: Ints = passing - _living(live[:, here], padded[here])
    peak: Ints = base + far + others.max(axis=0, initial=0)
    return peak


def _living(live: Flags, sizes: Ints) -> Ints:
    """Bytes by point and tile of the variables that live there; from one point to the next few begin or end to."""
    total = np.zeros((len(live), sizes.shape[1]), np.int64)
    now, before = np.zeros(sizes.shape[1], np.int64), np.zeros(live.shape[1], bool)
    for row, there in zip(total, live, strict=True):
        for number in np.flatnonzero(there != before).tolist():
            now += sizes[number] if there[number] else -sizes[number]
        row[...], before = now, there
    return total


def _bits(masks: Sequence[int], number: int) -> Flags:
    """The first bits of masks, a row each."""
    size = ceil_div(number, 8)
    data = np.frombuffer(b"".join(mask.to_bytes(size, "little") for mask in masks), np.uint8)
    return np.unpackbits(data.reshape(len(masks), size), axis=1, count=number, bitorder="little").astype(bool)


def _vertex_state(sets: Sequence[Sequence[VertexGroup]], tiles: int) -> Ints:
    """Pointers, sizes and parameters of every vertex on its tile.

    Parameters of the library's codelets that are no numbers (an operation, an order, how it rounds) choose the code: no
    state holds them. Compute sets of equal vertices on the same tiles, as those of layers of one shape are, share their
    state, as PopART's outlining makes one function of repeated parts [model: what its calls copy is not accounted].
    """
    total = np.zeros(tiles, np.int64)
    shared = dict[Hashable, tuple[int, int, VertexGroup]]()
    for groups in sets:
        here = Counter[Hashable]()
        for group in groups:
            if not group.codelet.trusted:
                axes = [len(operand.shape) - operand.vertex_axes for operand in group.operands.values()]
                each = _WORD * (1 + len(group.params)) + sum(_SPAN if count else _WORD for count in axes)
                total += np.bincount(group.tiles.ravel(), minlength=tiles) * each
                continue
            numbers = sum(_is_number(value) for value in group.params.values())
            each = _WORD * (1 + len(group.operands) + numbers)
            fields = tuple((name, one.shape, one.variable.dtype.str) for name, one in group.operands.items())
            key = group.codelet, group.where, fields, each
            here[key] += 1
            shared[key] = each, max(here[key], shared.get(key, (0, 0))[1]), group
    for each, count, group in shared.values():
        total += np.bincount(group.tiles.ravel(), minlength=tiles) * each * count
    return total


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number | np.ndarray) and not isinstance(value, bool)


def _code(groups: Iterable[VertexGroup], tiles: int) -> Ints:
    """Each codelet's code once on every tile that runs it."""
    used: dict[type[Codelet], Flags] = {}
    for group in groups:
        used.setdefault(group.codelet, np.zeros(tiles, bool))[group.tiles.ravel()] = True
    total = np.zeros(tiles, np.int64)
    for codelet, where in used.items():
        total += where * codelet.code_bytes
    return total
