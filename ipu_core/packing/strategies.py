"""Which lengths go together: greedy over the histogram from the longest on, or by least squares over all packs.

Krell, Kosec, Perez, Fitzgibbon: Efficient sequence packing without cross-contamination (2021, arXiv 2107.02027). The
greedy ones look at lengths, not at sequences, so that millions take milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ipu_core.packing.histogram import LONGEST, Histogram
from ipu_core.packing.plan import Packing, Strategy
from lowprec.checks import expect, integer
from lowprec.extras import optional
from lowprec.types import Array

LIGHT, SHORT = 0.09, 8
"""Weight of the residuals of lengths up to `SHORT` in `nnlshp`: padding takes such sequences up anyway."""
MOST_OF_THREE = 1024
"""Tokens of a pack up to which all kinds of three are listed: 87,808 of them for 1,024."""


def spfhp(histogram: Histogram, length: int, depth: int | None = None) -> Packing:
    """Shortest pack first, as published: each length, from the longest on, goes into the open packs with most room.

    A length that no open pack has room for opens a pack for each of its sequences: sequences that all have one length
    are not packed at all. `lpfhp` fills such packs, and needs fewer throughout.

    Args:
        histogram: Sequences by length.
        length: Tokens of a pack.
        depth: Most sequences of a pack; None: as many as fit.

    Raises:
        TypeError, ValueError: an argument out of range, or sequences that are longer than a pack.
    """
    return _greedy(histogram, length, depth, shortest=True)


def lpfhp(histogram: Histogram, length: int, depth: int | None = None) -> Packing:
    """Longest pack first (best fit): each length goes into the open packs that it leaves the least room in, and what is
    left of it into new ones, as many as fit into each.

    Args and Raises: as of `spfhp`.
    """
    return _greedy(histogram, length, depth, shortest=False)


def nnlshp(histogram: Histogram, length: int) -> Packing:
    """Non-negative least squares: how often each full pack of up to three is made, so that all lengths come out.

    Every way to write `length` as a sum of at most three is a kind of pack. Their numbers minimise the squared residual
    of every length's count and are rounded to integers; sequences that are left over share a pack with one of what they
    leave free. A place that no sequence is there for is padding. Needs scipy; 512 takes 20 s.

    Raises:
        ValueError: as of `spfhp`; a length beyond 1,024.
        ImportError: no scipy.
    """
    _check(histogram, length, None)
    if length > MOST_OF_THREE:
        raise ValueError(f"nnlshp lists all packs of three, which {length:,} tokens have too many of: use spfhp")
    solve = optional("scipy.optimize", extra="study", package="scipy").nnls
    kinds = list(_full_packs(length))
    wanted = np.zeros(length + 1, np.int64)
    wanted[: len(histogram.counts)] = histogram.counts
    places = _places(kinds, length)
    weights = np.where(np.arange(1, length + 1) <= SHORT, LIGHT, 1.0)
    found, _ = solve(places[1:] * weights[:, None], wanted[1:] * weights)
    counts = np.rint(found).astype(np.int64)
    left = wanted - places.astype(np.int64) @ counts
    packs: dict[Strategy, int] = defaultdict(int, zip(kinds, counts.tolist(), strict=True))
    for each in np.flatnonzero(left > 0).tolist():
        packs[(each,) if each == length else (each, length - each)] += int(left[each])
    return Packing.of(histogram, length, packs)


def _full_packs(length: int) -> Iterator[Strategy]:
    """Every way to write a length as a sum of one, two or three."""
    yield (length,)
    yield from ((length - short, short) for short in range(1, length // 2 + 1))
    for least in range(1, length // 3 + 1):
        yield from ((length - least - middle, middle, least) for middle in range(least, (length - least) // 2 + 1))


def _places(kinds: Sequence[Strategy], length: int) -> Array:
    """Places for each length, a row each, of one pack of each kind."""
    found = np.zeros((length + 1, len(kinds)))
    for number, lengths in enumerate(kinds):
        for each in lengths:
            found[each, number] += 1
    return found


def _greedy(histogram: Histogram, length: int, depth: int | None, *, shortest: bool) -> Packing:
    """Packs by the room that they have left; of those with the same room the last that was opened is taken first."""
    most = _check(histogram, length, depth)
    opened: dict[int, list[tuple[int, Strategy]]] = defaultdict(list)
    packs: dict[Strategy, int] = defaultdict(int)

    def put(count: int, lengths: Strategy) -> None:
        room = length - sum(lengths)
        if room and len(lengths) < most:
            opened[room].append((count, lengths))
        else:
            packs[lengths] += count

    for own in range(histogram.longest, 0, -1):
        left = histogram.counts[own]
        # What is filled here has less room, and so comes later where most room is first, and never again else.
        rooms = range(length, own - 1, -1) if shortest else range(own, length + 1)
        for room in rooms:
            while left and opened[room]:
                count, lengths = opened[room].pop()
                taken = min(count, left)
                left -= taken
                if count > taken:
                    opened[room].append((count - taken, lengths))
                put(taken, (*lengths, own))
        # What no open pack has room for goes into new ones: as published one by one, else as many as a pack takes.
        whole = 1 if shortest else min(most, length // own)
        if left >= whole:
            put(left // whole, (own,) * whole)
        if left % whole:
            put(1, (own,) * (left % whole))
    for each in opened.values():
        for count, lengths in each:
            packs[lengths] += count
    return Packing.of(histogram, length, packs)


def _check(histogram: Histogram, length: int, depth: int | None) -> int:
    """The most sequences of a pack.

    Raises:
        TypeError, ValueError: see `spfhp`.
    """
    expect(Histogram, histogram=histogram)
    integer("length", length, 1, LONGEST)
    if histogram.longest > length:
        count = sum(histogram.counts[length + 1 :])
        raise ValueError(
            f"{count:,} sequences are longer than {length:,}, the longest has {histogram.longest:,} tokens: cut them, "
            "or leave them out"
        )
    return length if depth is None else integer("depth", depth, 1)
