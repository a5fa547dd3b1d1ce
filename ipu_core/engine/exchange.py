"""The exchange account: bytes each tile receives and sends in one phase, counted over intervals.

The rule: a tile receives each distinct foreign element it needs once; it sends each distinct element that others need
once (one send serves all listeners). `Traffic` says how long that takes.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints, distinct, numbered
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.accesses import AccessedSets
from ipu_core.errors import DataRace
from ipu_core.graph.mapping import Pieces, TileMapping
from ipu_core.graph.regions import merge_runs
from ipu_core.graph.tensor import Tensor, Variable

MOST_RUNS: Final = 1 << 20
"""Runs of a copy that are counted at a time: with what they are cut into they take some hundred megabytes."""


def gather_traffic(variable: Variable, sets: AccessedSets, target: Target) -> Traffic:
    """What fetching the operands of a compute set from one variable moves."""
    # Where different sets share nothing, or no tile has two, counts add up set by set, and no tile's runs are written
    # out: of a convolution's windows, which overlap, that would be gigabytes.
    overlap = not _disjoint(sets)
    if not overlap or _one_each(sets):
        return _traffic_of_sets(sets, variable.mapping, variable.dtype.itemsize, target, overlap)
    runs = sets.runs
    return _traffic_of_runs(sets.tiles[runs.pair], runs.starts, runs.lengths, variable, target)


def scatter_traffic(variable: Variable, sets: AccessedSets, target: Target) -> Traffic:
    """What sending results to the tiles that hold them moves (no element has two writers)."""
    runs = sets.runs
    pieces = variable.mapping.cut(runs.starts, runs.lengths)
    writers = sets.tiles[runs.pair[pieces.run]]
    return _direct_traffic(writers, pieces.tiles, pieces.lengths * variable.dtype.itemsize, target)


class Moved(NamedTuple):
    """What a copy moves: between tiles, bytes that each tile copies within itself, and bytes that stay together."""

    traffic: Traffic
    local: Ints
    together: int


def copy_traffic(source: Tensor, destination: Tensor, target: Target) -> Moved:
    """What a copy moves.

    Raises:
        DataRace: the destination holds an element twice, or overlaps the source.
    """
    joint, size = _joint_runs(source, destination), source.dtype.itemsize
    # Without repeated elements each goes to one place, and what parts of the copy move adds up.
    once = all(stride for length, stride in zip(source.shape, source.strides, strict=True) if length > 1)
    apart = source.variable is not destination.variable and joint.apart
    if not apart:
        _check_copy(source, destination, *joint.starts(), joint.length)
    moved, direct = np.zeros(target.tiles, np.int64), list[Traffic]()
    for part in joint.parts(MOST_RUNS) if once and apart else [joint]:
        at, to = part.starts()
        ours = source.variable.mapping.cut(at, np.full(at.size, part.length, np.int64))
        begin = to[ours.run] + ours.starts - at[ours.run]
        theirs = destination.variable.mapping.cut(begin, ours.lengths)
        from_tile = ours.tiles[theirs.run]
        local = from_tile == theirs.tiles
        moved += np.bincount(theirs.tiles[local], theirs.lengths[local] * size, target.tiles).astype(np.int64)
        if not once:
            # Broadcast ones count once for each tile that wants them, as a gather's do. An element that is written
            # several times is read once: nothing trades places.
            at = ours.starts[theirs.run] + theirs.starts - begin[theirs.run]
            traffic = _traffic_of_runs(theirs.tiles, at, theirs.lengths, source.variable, target)
            return Moved(traffic, moved, target.local_copy_bytes_per_cycle)
        direct.append(_direct_traffic(from_tile, theirs.tiles, theirs.lengths * size, target))
    return Moved(Traffic.sum(direct, target.tiles), moved, joint.length * size)


def _direct_traffic(senders: Ints, receivers: Ints, sizes: Ints, target: Target) -> Traffic:
    """Every piece goes from one tile to one other, once."""
    foreign = senders != receivers
    count = target.tiles
    if not foreign.any():
        return Traffic.none(count)
    received = np.bincount(receivers[foreign], sizes[foreign], count).astype(np.int64)
    sent = np.bincount(senders[foreign], sizes[foreign], count).astype(np.int64)
    return Traffic(received, sent, np.zeros(count, np.int64))


def _traffic_of_sets(sets: AccessedSets, mapping: TileMapping, item: int, target: Target, overlap: bool) -> Traffic:
    """Gathered traffic where different sets share no element, or (with `overlap`) no tile has two of them."""
    count, tiles = sets.number, target.tiles
    if not count:
        return Traffic.none(tiles)
    pieces = mapping.cut(sets.run_starts, sets.run_lengths)
    owner, length = sets.run_set[pieces.run], pieces.lengths
    sizes = np.bincount(owner, length, count).astype(np.int64)
    holders, slot = numbered(owner * tiles + pieces.tiles)
    held = np.bincount(slot, length, holders.size).astype(np.int64)

    pairs = distinct(sets.tiles * count + sets.which)
    listener, wanted = pairs // count, pairs % count
    mine = wanted * tiles + listener
    at = np.minimum(np.searchsorted(holders, mine), holders.size - 1)
    local = np.where(holders[at] == mine, held[at], 0)
    foreign = sizes[wanted] - local
    if not foreign.any():
        return Traffic.none(tiles)
    received = np.bincount(listener, foreign, tiles).astype(np.int64)

    listeners = np.bincount(wanted, minlength=count)
    only = np.zeros(count, np.int64)
    only[wanted] = listener
    # A piece leaves its tile once, however many listen, unless the only one that wants it holds it.
    goes_out = (listeners[owner] > 1) | (only[owner] != pieces.tiles)
    going = Pieces(*(column[goes_out] for column in pieces))
    if overlap:
        going = mapping.cut(*merge_runs(going.starts, going.lengths))
    sent = np.bincount(going.tiles, going.lengths, tiles).astype(np.int64)

    shared = np.zeros(tiles, np.int64)
    if target.tiles_per_supertile == 2:
        # What both tiles of a pair want arrives at the shared rate, so it is counted apart.
        order = np.argsort((listener // 2) * count + wanted, kind="stable")
        pair = ((listener // 2) * count + wanted)[order]
        both = np.flatnonzero(pair[1:] == pair[:-1])
        a, b = order[both], order[both + 1]
        common = sizes[wanted[a]] - local[a] - local[b]
        np.add.at(shared, listener[a], common)
        np.add.at(shared, listener[b], common)
        if overlap:
            shared += _shared_by_unlike(listener, wanted, owner, pieces, mapping, tiles)
    return Traffic(received * item, sent * item, shared * item)


def _shared_by_unlike(
    listener: Ints, wanted: Ints, owner: Ints, pieces: Pieces, mapping: TileMapping, tiles: int
) -> Ints:
    """Elements by tile that its pair wants too, and neither has, where they want different sets.

    Args:
        listener, wanted: tiles, ascending, and the one set of each.
        owner, pieces: of all sets, one after another.
        mapping: of the variable.
        tiles: how many.
    """
    shared = np.zeros(tiles, np.int64)
    even = np.flatnonzero((listener[1:] == listener[:-1] + 1) & (listener[:-1] % 2 == 0) & (wanted[1:] != wanted[:-1]))
    kinds = np.stack([wanted[even], wanted[even + 1]], axis=1)
    for kind in np.unique(kinds, axis=0):
        spans = [slice(*np.searchsorted(owner, [one, one + 1])) for one in kind]
        union = mapping.cut(*merge_runs(*(np.concatenate([column[span] for span in spans]) for column in pieces[1:3])))
        all_of = [(pieces.tiles[span], pieces.lengths[span]) for span in spans]
        held = [np.bincount(at, length, tiles) for at, length in (*all_of, (union.tiles, union.lengths))]
        common = (held[0] + held[1] - held[2]).astype(np.int64)
        first = listener[even[(kinds == kind).all(axis=1)]]
        shared[first] = shared[first + 1] = common.sum() - common[first] - common[first + 1]
    return shared


def _traffic_of_runs(listeners: Ints, starts: Ints, lengths: Ints, variable: Variable, target: Target) -> Traffic:
    """Gathered traffic in general: unions of runs per tile, per supertile and over all listeners."""
    mapping, item, tiles = variable.mapping, variable.dtype.itemsize, target.tiles
    # One more than there is, so that the last run of a listener does not join the first one of the next.
    line = variable.size + 1
    at, length = merge_runs(listeners * line + starts, lengths)
    pieces = mapping.cut(at % line, length)
    listener = (at // line)[pieces.run]
    foreign = pieces.tiles != listener
    listener, start, length = listener[foreign], pieces.starts[foreign], pieces.lengths[foreign]
    received = np.bincount(listener, length, tiles).astype(np.int64)
    sent_at, sent_length = merge_runs(start, length)
    out = mapping.cut(sent_at, sent_length)
    sent = np.bincount(out.tiles, out.lengths, tiles).astype(np.int64)
    shared = np.zeros(tiles, np.int64)
    if target.tiles_per_supertile == 2:
        pair_at, pair_length = merge_runs((listener // 2) * line + start, length)
        union = np.bincount(pair_at // line, pair_length, (tiles + 1) // 2)
        both = np.add.reduceat(received, np.arange(0, tiles, 2)) - union.astype(np.int64)
        shared = np.repeat(both, 2)[:tiles]
    return Traffic(received * item, sent * item, shared * item)


def _one_each(sets: AccessedSets) -> bool:
    """Whether no tile accesses two sets."""
    pairs = distinct(sets.tiles * sets.number + sets.which)
    return bool((np.diff(pairs // max(1, sets.number)) > 0).all())


def _disjoint(sets: AccessedSets) -> bool:
    order = np.argsort(sets.run_starts, kind="stable")
    starts = sets.run_starts[order]
    return bool((starts[1:] >= (starts + sets.run_lengths[order])[:-1]).all())


class _JointRuns(NamedTuple):
    """Runs that are contiguous in both tensors of a copy.

    Attributes:
        origin, begin: the first one's start in the source and in the destination.
        axes: (distance in the destination, in the source, number), outermost in the destination first.
        length: elements of each.
    """

    origin: int
    begin: int
    axes: tuple[tuple[int, int, int], ...]
    length: int

    @property
    def apart(self) -> bool:
        """Whether the axes show that none overlaps another in the destination."""
        reach = self.length
        for distance, _, number in reversed(self.axes):
            if distance < reach:
                return False
            reach += (number - 1) * distance
        return True

    def parts(self, most: int) -> Iterator["_JointRuns"]:
        """The same in parts of so many runs along the first axis, or of one number of it."""
        if not self.axes:
            yield self
            return
        (to, at, number), *rest = self.axes
        step = max(1, most // max(1, math.prod(n for *_, n in rest)))
        for i in range(0, number, step):
            first = to, at, min(step, number - i)
            yield self._replace(origin=self.origin + i * at, begin=self.begin + i * to, axes=(first, *rest))

    def starts(self) -> tuple[Ints, Ints]:
        """Where they begin in the source and in the destination, in the destination's order."""
        at, to = np.full(1, self.origin, np.int64), np.full(1, self.begin, np.int64)
        for d, s, n in self.axes:
            steps = np.arange(n, dtype=np.int64)
            at, to = (at[:, None] + steps * s).ravel(), (to[:, None] + steps * d).ravel()
        return at, to


def _joint_runs(source: Tensor, destination: Tensor) -> _JointRuns:
    origin, begin, length = source.offset, destination.offset, 1
    axes: list[tuple[int, int, int]] = []
    for n, s, d in zip(source.shape, source.strides, destination.strides, strict=True):
        if n == 1:
            continue
        if d < 0:
            origin, begin, s, d = origin + (n - 1) * s, begin + (n - 1) * d, -s, -d
        axes.append((d, s, n))
    joined: list[tuple[int, int, int]] = []
    for d, s, n in sorted(axes, reverse=True):
        if joined and joined[-1][0] == d * n and joined[-1][1] == s * n:
            joined[-1] = (d, s, joined[-1][2] * n)
        else:
            joined.append((d, s, n))
    if joined and joined[-1][:2] == (1, 1):
        length = joined.pop()[2]
    return _JointRuns(origin, begin, tuple(joined), length)


def _check_copy(source: Tensor, destination: Tensor, at: Ints, to: Ints, length: int) -> None:
    name = destination.variable.name
    order = np.argsort(to, kind="stable")
    begin, end = to[order], (to + length)[order]
    if (twice := np.flatnonzero(begin[1:] < end[:-1])).size:
        raise DataRace(f"Copy writes element {begin[twice[0] + 1]} of {name} twice: {destination}")
    if source.variable is destination.variable and to.size:
        after = np.searchsorted(begin, at + length, side="left")
        before = np.searchsorted(end, at, side="right")
        if (hit := np.flatnonzero(after > before)).size:
            raise DataRace(f"Copy reads and writes element {max(at[hit[0]], begin[before[hit[0]]])} of {name}")
