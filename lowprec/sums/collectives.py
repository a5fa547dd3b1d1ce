"""Sums over chips in a stated order: what an all-reduce of several chips' arrays gives, bit for bit.

R chips hold an array of n elements each. A chip's own numbers are taken as they are; every addition is exact and
rounded once to the format of partial sums; what travels is rounded to the wire's format (where both are one format
only once). The sum that a chip ends with travels too, so that all chips have the same.

    ring       the elements (C order) lie in R chunks of ceil(n / R), the last shorter or empty. Chunk c begins at chip
               (first + c) mod R, which sends its own numbers; the R - 1 chips after it add theirs, ascending modulo R.
    ring_pair  the first ceil(n / 2) elements go round as such a ring of their own, the others, in chunks of their own,
               in the opposite direction: chunk c from chip (first + c) mod R, then descending.
    tree       counted from `first`: chip 2i adds what chip 2i + 1 sends to its own, then chip 4i what 4i + 2 sends, and
               so on; a chip without a partner passes its sum on as it is.
    two_level  neighbours form groups. A ring in every group, in chunks of ceil(n / group), ends with a partial sum of
               the group, with which each chunk goes round the groups as a ring of its own, in as many chunks as there
               are groups: counted from group `first`, as the members are.

In stochastic mode the additions of hop t = 1, 2, .. (of level t of a tree) take key.fold_in(2t), what is sent before
hop t key.fold_in(2t - 1), the result key.fold_in(2^32), and element i of the array its index i (in a tree the sum
number j of a level, and in rings of groups group number j, j * n + i). Every chip adds to an element once, so these are
bits of its own. The rings over groups take key.fold_in(2^33) in the place of the key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.arithmetic import add
from lowprec.arrays import new_array, whole_array
from lowprec.foreign import takes_foreign
from lowprec.integers import ceil_div
from lowprec.random import Key, KeyLike, as_key
from lowprec.rounding import astype, round
from lowprec.types import Array
from lowprec.values.collective import Collective
from lowprec.values.formats import float32, format_of_dtype

LAST = 1 << 32  # folded into the key of what the last chip sends to all
SECOND = 1 << 33  # folded into the key of the ring over groups


@takes_foreign
def all_reduce(x: npt.ArrayLike, collective: Collective | None = None, *, key: KeyLike | None = None) -> Any:
    """The sum over chips that every chip has after an all-reduce, in the order that a `Collective` says.

    Args:
        x: float array of at least one axis, the first the chips: what each of them holds.
        collective: order, formats and rounding; None: a ring from chip 0 in float32.
        key: for stochastic rounding; see `help("lowprec.sums.collectives")` for the bits it takes.

    Returns:
        The array of one chip, in the wire format's storage dtype (values in float32 or float64 where it has none). One
        chip alone sends nothing, but its array is rounded to that format all the same.

    Raises:
        TypeError: no float array, no Collective.
        ValueError: no chips; groups that do not divide them; stochastic without a key; a NaN into a format without.
    """
    given = whole_array(x)
    how = Collective() if collective is None else collective
    if not isinstance(how, Collective):
        raise TypeError(f"collective must be a lowprec.Collective, not {how!r}")
    if format_of_dtype(given.dtype) is None:
        raise TypeError(f"what chips hold must be a float array, not {given.dtype}")
    if given.ndim == 0 or given.shape[0] == 0:
        raise ValueError(f"the first axis is the chips, at least one; the array has shape {given.shape}")
    chips = given.shape[0]
    if how.group is not None and chips % how.group:
        raise ValueError(f"groups of {how.group} do not divide {chips} chips")
    if how.rounding.stochastic and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    rows = given.reshape(chips, math.prod(given.shape[1:]))
    total = _Sums(how, None if key is None else as_key(key)).total(rows)
    return total.reshape(given.shape[1:])


class _Sums:
    """The sums of one Collective, with one key."""

    def __init__(self, collective: Collective, key: Key | None) -> None:
        self._how, self._key = collective, key

    def total(self, x: Array) -> Array:
        """The result for the rows of all chips (chips, n)."""
        how = self._how
        if how.algorithm == "tree":
            return self._sent(self._tree(x), LAST)
        if how.algorithm == "ring_pair":
            half = ceil_div(x.shape[1], 2)
            parts = (self._ring(x[:, :half], 0, 1), self._ring(x[:, half:], half, -1))
            whole = new_array(x, (x.shape[1],), parts[0].dtype)
            whole[:half], whole[half:] = parts
            return self._sent(whole, LAST)
        if how.group is None:
            return self._sent(self._ring(x, 0, 1), LAST)
        return self._two_level(x, how.group)

    def _two_level(self, x: Array, group: int) -> Array:
        """The sums of groups' partial sums."""
        n = x.shape[1]
        partial = [self._ring(x[i : i + group], i // group * n, 1) for i in range(0, len(x), group)]
        sums = new_array(x, (len(partial), n), partial[0].dtype)
        for place, one in zip(sums, partial, strict=True):
            place[...] = one
        across = _Sums(self._how, None if self._key is None else self._key.fold_in(SECOND))
        length = ceil_div(n, group)
        rings = [across._ring(sums[:, i : i + length], i, 1) for i in range(0, n, length or 1)]
        whole = new_array(x, (n,), rings[0].dtype if rings else sums.dtype)
        for i, ring in enumerate(rings):
            whole[i * length : (i + 1) * length] = ring
        return across._sent(whole, LAST)

    def _ring(self, x: Array, offset: int, direction: int) -> Array:
        """The partial sums at the end of every chunk's way, whose elements have the indices from `offset` on."""
        chips, n = x.shape
        length = ceil_div(n, chips)
        chunks = np.arange(chips)

        def held(hop: int) -> Array:
            """What the chips at which the chunks are in a hop hold of these."""
            at = (self._how.first % chips + chunks + direction * hop) % chips
            if n == chips * length:
                found: Array = x.reshape(chips, chips, length)[at, chunks]
                return found.reshape(n)
            found = new_array(x, (n,), x.dtype)
            for chunk in range(ceil_div(n, length) if length else 0):
                place = slice(chunk * length, min(n, (chunk + 1) * length))
                found[place] = x[int(at[chunk]), place]
            return found

        total = held(0)
        for hop in range(1, chips):
            total = self._added(held(hop), self._sent(total, 2 * hop - 1, offset), 2 * hop, offset)
        return total

    def _tree(self, x: Array) -> Array:
        """The partial sum at the root."""
        order = (self._how.first % len(x) + np.arange(len(x))) % len(x)
        sums, level = x[order], 0
        while len(sums) > 1:
            level += 1
            pairs = len(sums) // 2
            sent = self._sent(sums[1 : 2 * pairs : 2], 2 * level - 1)
            made = self._added(sums[0 : 2 * pairs : 2], sent, 2 * level)
            left = sums[2 * pairs :]
            # A sum without a partner stays as it is, also in a format of its own that the partial sums' may lack.
            if len(left):
                dtypes = {made.dtype, left.dtype}
                wide = made.dtype if len(dtypes) == 1 else np.dtype("f8" if np.dtype("f8") in dtypes else "f4")
                joined = new_array(x, (pairs + 1, x.shape[1]), wide)
                joined[:pairs], joined[pairs:] = made, left
                made = joined
            sums = made
        root: Array = sums[0]
        return root

    def _added(self, own: Array, arrived: Array, number: int, offset: int = 0) -> Array:
        """What a chip holds and what arrived, as its partial sum."""
        how = self._how
        return add(own, arrived, how.partial, how.rounding, key=self._bits(number), offset=offset)  # type: ignore[no-any-return]

    def _sent(self, x: Array, number: int, offset: int = 0) -> Array:
        """What of a chip's partial sums travels."""
        how, bits = self._how, self._bits(number)
        if how.wire.dtype is not None:
            return astype(x, how.wire, how.rounding, key=bits, offset=offset)  # type: ignore[no-any-return]
        # It is kept as `add` keeps it: in float32, where that holds it.
        wide = x.astype(np.float32 if float32.contains(how.wire) and x.dtype != np.float64 else np.float64)
        sent = round(wide, how.wire, how.rounding, key=bits, offset=offset)
        return sent.astype(np.float32) if float32.contains(how.wire) else sent  # type: ignore[no-any-return]

    def _bits(self, number: int) -> Key | None:
        return None if self._key is None or not self._how.rounding.stochastic else self._key.fold_in(number)
