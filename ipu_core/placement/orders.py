"""The order of a sum where nobody says one: a rule of its sizes, its operands' width and the family of chips alone.

Rule 1. An order is a group, a number of parts and stages. The group is 16 products, 32 where both operands have at most
8 bits, as the AMP unit adds them; stages follow from the parts (see `lowprec.Accumulation`). For the parts, with k
terms filled up to whole groups, r results in all and t tiles of the family's chips as they are published:

- A product has cubic blocks: of all cuts over t tiles they bring the fewest operands. So p is the largest number with
  p^3 r <= 2 k^2 t, at most one for each group and at most 100; at most 4 where r > 4,096 t, since partial sums take
  room too. 16 to 79 parts become 15, since more than 15 are summed in two stages, which only many pay for; fewer than 4
  become 1, which needs no stage at all. Parts that would be empty vanish: 1,044 terms are 66 groups, and 15 parts of 5
  groups are 14.
- A convolution, and the gradient of its input, likewise; then the largest number, not above p, that gives parts of
  whole kernel rows, kernel positions or channels of one position, so that no part reads more than its own.
- The gradient of a weight has p^3 r <= k^2 t / 2 at most, no part of fewer than 48 positions and at most 128 parts, but
  no part of more than 2,048 positions; then the largest number of whole images or rows of one, not above p.
- A plain sum of k terms has one part where r >= k t / 256, else 15, of at least 64 terms; from 32,768 terms on one for
  every 1,024, at most 124 (two stages) and 4 t / r, but not fewer than 15. No part has more than 32,768.

Rule 2. As rule 1, but for plain sums. A tile has c elements of an array of that shape, and so t of its terms, where
all tiles of the family have it as every array of halves lies (`placement.layout`). Where it has all terms of a result,
these are one part. Else a sum over the first axes of at least 8,192 terms has parts of t terms, each in one group, if t
is 8 at least: each tile adds up what it has, and only partial sums move. All others are rule 1's: their terms are
moved to fewer tiles.

No cost, memory or clock of a `Target` enters: its figures choose where a sum lies, never what it is. The numbers 2,
1/2, 4,096, 48, 64, 80, 100, 128 and 256 come from searches by modelled cycles for the sums of transformers, perceptrons
and convolutional nets of many sizes on both families; such a search for every sum would save a few percent of cycles.

A new rule gets a new number, and the old ones stay: runs that began under them go on.
"""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ipu_core.chip.target import AMP_ADDERS, Target
from ipu_core.placement.convolution.sizes import Convolution, even_splits
from ipu_core.placement.cuts import GROUP, usual_group
from ipu_core.placement.layout import linear_layout
from lowprec import Accumulation
from lowprec.integers import ceil_div
from lowprec.values.accumulation import Adder
from lowprec.values.formats import FormatLike

RULES: Final = ("1", "2")
RULE: Final = RULES[-1]
"""The version of the rule: it stands with every study's results."""

# Not a Target's own: a study on a chip of fewer tiles would otherwise have other orders, and other bits.
TILES: Final = {"mk1": 1216, "mk2": 1472}
"""Tiles of a family's chips as published, whatever a `Target` has."""

# Rule 2 asks these chips' layouts: whoever changes how arrays lie keeps the old way for it (golden orders hold it).
_PUBLISHED: Final = {"mk1": Target("gc2"), "mk2": Target("gc200")}
LONG_SUM: Final = 8192  # terms, from which on partial sums of all tiles are cheaper than moving the terms to a few
LEAST_TERMS: Final = 8  # of halves; partial sums are twice as wide: of fewer terms they are more than a quarter of them


@dataclass(frozen=True)
class OrderRule:
    """What decides the order of a sum beside its shape and its operands' format; every other figure of a chip is cost.

    Attributes:
        family: Of the chips: "mk1" (GC2) or "mk2" (GC200, Bow, C600).
        adder: How the AMP unit adds products, one of AMP_ADDERS.
        version: Of the rule, one of RULES.

    Raises:
        ValueError: one that there is not.
    """

    family: str = "mk2"
    adder: Adder = "sequential"
    version: str = RULE

    def __post_init__(self) -> None:
        for name, there in (("family", tuple(TILES)), ("adder", AMP_ADDERS), ("version", RULES)):
            given = getattr(self, name)
            if not isinstance(given, str) or given not in there:
                what = "order, the version of its rule," if name == "version" else name
                raise ValueError(f"unknown {what} {given!r}; there is {' or '.join(map(repr, there))}")

    @classmethod
    def of(cls, target: Target) -> Self:
        """What a chip takes by itself."""
        return cls(target.family, target.adder)

    @property
    def tiles(self) -> int:
        """Of the family's chips as published."""
        return TILES[self.family]


class Orders(Mapping[int, Accumulation]):
    """The order of each sum by the number of its equation: a dict that cannot be changed and has a hash."""

    def __init__(self, orders: Mapping[int, Accumulation]) -> None:
        self._orders = {int(number): orders[number] for number in sorted(orders)}

    def __getitem__(self, number: int) -> Accumulation:
        return self._orders[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)

    def __hash__(self) -> int:
        return hash(tuple(self._orders.items()))

    def __repr__(self) -> str:
        return f"Orders({self._orders})"


ONE_STAGE, TWO_STAGES = 15, 124  # parts that are summed in as many stages, at most
MOST: Final = 128  # parts, but for sums of which so few would be too long


def product_order(
    rule: OrderRule, m: int, k: int, n: int, *, batch: int = 1, group: int = GROUP, operands: FormatLike = "float16"
) -> Accumulation:
    """The order of a product (batch, m, k) x (batch, k, n), in float32.

    A study uses one order for all its precisions, so that only the arithmetic varies; set the types with
    `Accumulation.with_types`.

    Args:
        rule: family, adder and version.
        m, k, n, batch: sizes.
        group: products between two roundings, twice as many of operands of 8 bits.
        operands: their format.
    """
    groups, results = max(1, ceil_div(k, group)), batch * m * n
    parts = _few_stages(min(_cubic(2, 1, groups * group, results, rule), groups), results, rule)
    group = group * usual_group(operands) // GROUP
    return Accumulation(group=group, splits=_vanishing(groups, parts), adder=rule.adder)


def reduction_order(
    rule: OrderRule,
    outer: int,
    terms: int,
    inner: int,
    *,
    group: int = GROUP,
    shape: Sequence[int] | None = None,
) -> Accumulation:
    """The order of a sum over the terms of (outer, terms, inner), in float32.

    Args:
        rule: family and version; sums without products know no adder.
        outer, terms, inner: sizes.
        group: terms between two roundings; from version 2 on a part that is one tile's terms is one group.
        shape: of the array as it is stored, whose axes join to the three sizes; None: these, or (outer, terms).
    """
    if rule.version != "1" and (at_home := _terms_of_a_tile(rule, outer, terms, inner, shape)):
        if at_home == terms:
            return Accumulation(group=group)
        return Accumulation(group=at_home, splits=ceil_div(terms, at_home))
    results, tiles = max(1, outer * inner), rule.tiles
    parts = 1
    if 256 * results < tiles * terms:
        parts = min(ONE_STAGE, terms // 64)
        if terms >= 1 << 15:
            parts = max(ONE_STAGE, min(terms >> 10, TWO_STAGES, 4 * tiles // results))
    parts = max(parts, ceil_div(terms, 1 << 15), 1)
    return Accumulation(group=group, splits=_vanishing(max(1, ceil_div(terms, group)), parts))


def _terms_of_a_tile(rule: OrderRule, outer: int, terms: int, inner: int, shape: Sequence[int] | None) -> int:
    """Terms of a part that no tile has to move; 0: there is none."""
    if not outer * terms * inner:
        return 0
    stored = tuple(shape) if shape is not None else (outer, terms, inner) if inner > 1 else (outer, terms)
    here = linear_layout(_PUBLISHED[rule.family], stored).chunk // inner
    if here >= terms:
        return terms
    return here if outer == 1 and terms >= LONG_SUM and here >= LEAST_TERMS else 0


def convolution_order(rule: OrderRule, convolution: Convolution, *, group: int = GROUP) -> Accumulation:
    """The order of a convolution's sums, in float32, see `product_order`."""
    order, results = Accumulation(group=group, adder=rule.adder), math.prod(convolution.result)
    if convolution.kind == "image":
        terms = convolution.terms(order) * group
        parts = _few_stages(_cubic(2, 1, terms, results, rule), results, rule)
    else:
        terms = math.prod(convolution.inner)
        parts = max(min(_cubic(1, 2, terms, results, rule), terms // 48), ceil_div(terms, 2048))
    splits = max(n for n in even_splits(convolution, order) if n <= max(1, parts))
    group = group * usual_group(convolution.operands) // GROUP
    return Accumulation(group=group, splits=splits, adder=rule.adder)


def _cubic(numerator: int, denominator: int, terms: int, results: int, rule: OrderRule) -> int:
    """The largest p with p^3 results <= numerator / denominator terms^2 tiles, at least 1 and at most 128."""
    most = numerator * terms**2 * rule.tiles
    return bisect.bisect_right(range(2, MOST + 1), most, key=lambda p: p**3 * results * denominator) + 1


def _few_stages(parts: int, results: int, rule: OrderRule) -> int:
    """At most 100 parts, or 4 where results are many; those for which a stage does not pay become fewer."""
    parts = min(parts, 100 if results <= 4096 * rule.tiles else 4)
    return parts if parts >= 80 else min(parts, ONE_STAGE) if parts >= 4 else 1


def _vanishing(groups: int, parts: int) -> int:
    """The parts that are left when a sum of so many groups is cut into as many: the others would be empty."""
    return ceil_div(groups, ceil_div(groups, parts))
