"""The search behind `identify`: candidates are computed beside what a black box gave, and those that differ go.

Nothing is inferred from a single look: every step lists arithmetics, and keeps those that reproduce each bit of an
answer. What chosen inputs show only decides which are listed, so that a wrong guess finds nothing, and names nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.asked import FEW, Asked
from lowprec.identification.black_box import BlackBox, differing
from lowprec.identification.candidates import (
    ALL_OF_A_PART,
    CASTS,
    DIRECTIONS,
    adders,
    can,
    distinct,
    may_hold,
    not_told,
    of_bits,
    one_product,
    operand_ranges,
    policies,
    promotion,
    simplicity,
    splits_of,
)
from lowprec.identification.probes import Probe, four_terms, long_sums, powers, significands
from lowprec.integers import ceil_div
from lowprec.types import Array
from lowprec.values.accumulation import MOST_ALIGNED_BITS, Accumulation
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float16, float32, formats
from lowprec.values.rounding import Rounding

MANY_SPLITS = 32
"""More splits than these are named after a promotion that no length asked tells from them."""


class NothingFits(Exception):
    """No candidate is left: at which step, in words."""


class Search:
    """What a black box computes, found step by step; `run` gives what reproduces all that was asked, simplest first.

    Args:
        box: the black box.
        terms: length of its long sums.
        generator: of random inputs.
    """

    def __init__(self, box: BlackBox, terms: int, generator: np.random.Generator) -> None:
        self.box, self.terms, self.generator = box, terms, generator
        self.sum = box.kind == "sum"
        self.storage, self.seen, self.any_length = float32, 24, True
        self.longest = 4
        self.prefixes: dict[int, Asked] = {}
        self.others: dict[int, Asked] = {}

    def run(self) -> Iterator[Arithmetic]:
        """The arithmetics that reproduce every answer, one after another.

        Raises:
            NothingFits: there is none; the message names the step.
        """
        found = self._four_terms(self._ranges(self._single_products()))
        self.reach = self._reach(found)
        self.long = [self._long_sums(rows, self.terms) for rows in (FEW, 4 * FEW)]
        # Partial sums that overflow tell accumulators of unlike ranges apart.
        low, high = self.reach
        self.reach = (low, high + 2)
        self.long.append(self._long_sums(FEW, self.terms))
        self.reach = (low, high)
        apart: list[Arithmetic] = []
        none = True
        for kinds in map(self._grouped, sorted(found, key=simplicity)):
            none = none and not kinds
            if longer := self._depths(kinds):
                yield longer
            else:
                apart += kinds
        self.any_length = False
        yield from apart
        if none:
            raise NothingFits(
                f"the first {self.longest} products are added as {found[0].words()}; sums of {self.terms} are those of "
                "no groups and equal parts"
            )

    def ask(self, probe: Probe, counts: Array | None = None) -> Asked:
        """The answer to a probe."""
        return Asked(probe, self.box.twice(probe), counts)

    # ---- one product: what operands are cast to, and how results are rounded ----

    def _single_products(self) -> list[Arithmetic]:
        asked = self.ask(significands(self.generator, FEW, 64, self.sum))
        self.storage = self.box.format(asked.given)
        larger = self.ask(significands(self.generator, FEW, 512, self.sum))
        # Column 0 is multiplied by 1: as many bits of an operand are seen as fit into a result.
        seen, self.seen = (int(significant_bits(x).max()) for x in (larger.given[:, 0], larger.given))
        if not self.seen:
            raise NothingFits("every product of two numbers of [1, 2) is zero, infinite or NaN")
        # A sum's terms are multiplied by nothing: of wider ones less is seen, and the formats that are used are tried.
        widths = sorted({seen - 1, 7, 10, 23} if self.sum else set(range(24)))
        operands = [
            Operands(of_bits(bits), Rounding(mode))
            for bits in widths
            for mode in (CASTS if bits < 23 else ("nearest_even",))
            if bits >= max(seen - 1, 1)
        ]
        candidates = (replace(result, operands=each) for result in self._single_results() for each in operands)
        found = not_told(larger.those(asked.those(candidates)))
        if not found:
            raise NothingFits(
                f"products of two numbers of [1, 2), of which {seen} and {self.seen} bits are seen, are those of no "
                f"format and rounding{self._mixed(larger)}"
            )
        return found

    def _single_results(self) -> Iterator[Arithmetic]:
        """How one product may be rounded, or cut, of which so many bits are seen."""
        cuts = (None, MOST_ALIGNED_BITS)
        yield from (one_product(float32, float32, "nearest_even", cut) for cut in cuts)
        if self.seen == 24:
            return
        last = max(self.seen - 1, 1)
        some = range(max(last - 1, 1), MOST_ALIGNED_BITS)
        yield from (one_product(float32, float32, "nearest_even", cut) for cut in some)
        for mode in DIRECTIONS:
            yield from (one_product(of_bits(last), float32, mode, cut) for cut in (*cuts, *some))
            # Twice: in the accumulator, which is wider, and then in the result.
            wider = [of_bits(bits) for bits in range(last + 1, 23)]
            yield from (one_product(fmt, of_bits(last), mode, cut) for fmt in wider for cut in cuts)

    def _mixed(self, asked: Asked) -> str:
        """What is added to a refusal where the two operands are not treated alike."""
        if self.sum:
            return ""
        other = self.box.twice(Probe(asked.probe.b.T.copy(), asked.probe.a.T.copy())).T
        return "; the two operands are cast differently" if differing(other, asked.given).any() else ""

    def _ranges(self, singles: list[Arithmetic]) -> list[Arithmetic]:
        """The exponents of operands and results, and what lies beyond them, from one product of every size."""
        probe = powers(self.generator, FEW, self.sum)
        self.sizes = self.ask(probe)
        # Products near 1 show the operands' range, whatever that of the results is.
        size = np.abs(probe.a[:, -1:].astype(np.float64) * probe.b[-1:].astype(np.float64))
        near = (size >= 2.0**-7) & (size < 2.0**7) | (np.isinf(size) & (probe.b[-1:] == 1))
        close = Asked(probe, self.sizes.given, near)
        found: list[Arithmetic] = []
        ranges: dict[Operands, list[Operands]] = {}
        for single in singles:
            # What is seen of operands is the same under all that results may be.
            known = ranges.get(single.operands) or operand_ranges(single.operands, named=self.sum)
            cast = [replace(single, operands=each) for each in known]
            if not self.sum:
                cast = close.first(cast, lambda each: each.operands.format)
                ranges[single.operands] = [each.operands for each in cast]
            # Formats of other widths under the same exponents come with the sums: here where subnormal results tell.
            for wide in (False, True):
                results = (ranged for each in cast for ranged in self._result_ranges(each, wide=wide))
                fitting = self.sizes.first(results, _told_by_sizes)
                found += fitting
                if fitting:
                    break
        if not found:
            raise NothingFits("products of very large and very small numbers are those of no format and overflow rule")
        return found

    def _result_ranges(self, single: Arithmetic, *, wide: bool) -> Iterator[Arithmetic]:
        """One product's arithmetic with the formats that may be its results', as accumulator and as output."""
        order = single.accumulation
        twice = order.out != float32
        last = order.out if twice else order.accumulate
        narrow = last != float32
        bits = last.mantissa_bits if narrow else self.seen - 1
        known = [fmt for fmt in formats.values() if may_hold(fmt, bits, exact=narrow)]
        made = [FloatFormat(f"e{width}m{bits}", width, bits) for width in range(8, 1, -1)] if narrow else []
        others = [of_bits(each) for each in range(22, max(bits, 1) - 1, -1)] if wide and not narrow else []
        pairs = []
        for fmt in distinct([*known, *made, *others]):
            if twice:
                pairs += [(order.accumulate, fmt)] + [(float16, fmt)] * (order.accumulate.mantissa_bits == 10)
            else:
                pairs.append((fmt, self.storage))
                if self.storage.contains(fmt):
                    pairs += [(float32, fmt)] + [(float16, fmt)] * (bits < 10)
        for accumulate, out in dict.fromkeys(pairs):
            # What is cut before it is rounded twice is not what is rounded twice.
            unknown = order.aligned_bits == MOST_ALIGNED_BITS and accumulate == float16 != out
            for cut in range(MOST_ALIGNED_BITS, max(bits, 1) - 1, -1) if unknown else (order.aligned_bits,):
                cast = replace(order.with_types(accumulate, out), aligned_bits=cut)
                if self._within(replace(single, accumulation=cast)):
                    for rounding, mode, flush in itertools.product(
                        policies(accumulate, out), (single.rounding.mode,) if narrow else DIRECTIONS, (False, True)
                    ):
                        yield replace(single, accumulation=cast, rounding=replace(rounding, mode=mode, flush=flush))

    def _within(self, typed: Arithmetic) -> bool:
        """Whether the results of one product have no value that the formats lack, and are exact where these allow."""
        given, (a, b) = np.abs(self.sizes.given.astype(np.float64)), self.sizes.probe
        both = (typed.accumulation.accumulate, typed.accumulation.out)
        some = given[np.isfinite(given) & (given > 0)]
        # A largest accumulator may be rounded up in the result: twice the largest is none of either.
        least, most = max(fmt.smallest_subnormal for fmt in both) / 2, 2 * min(fmt.max for fmt in both)
        if not some.size or some.max() > most or some.min() < least:
            return False
        size = np.abs(a[:, -1:].astype(np.float64) * b[-1:].astype(np.float64))
        inside = (size < min(fmt.max for fmt in both) / 4) & (size > 4 * max(fmt.smallest_normal for fmt in both))
        return replace(self.sizes, counts=inside).fits(typed)

    # ---- four products: the adder, the accumulator, the rounding, and groups of fewer than four ----

    def _four_terms(self, singles: list[Arithmetic]) -> list[Arithmetic]:
        found: list[Arithmetic] = []
        for operands in dict.fromkeys(single.operands for single in singles):
            beside = [single for single in singles if single.operands == operands]
            # In long sums, of which a number of parts leaves the first four together.
            reach = self._reach(beside)
            asked = [
                replace(self.ask(four_terms(self.generator, self.terms, rows, reach, self.sum)), terms=FEW)
                for rows in (64, 512)
            ]
            bits = max(self.seen, *(int(significant_bits(each.given).max()) for each in asked))
            candidates: Iterable[Arithmetic] = (each for single in beside for each in self._sums(single, bits))
            for each in asked:
                candidates = each.those(candidates)
            found += candidates
        if not found:
            raise NothingFits("sums of the first four products are those of no adder, accumulator and rounding")
        return found

    def _reach(self, singles: list[Arithmetic]) -> tuple[int, int]:
        """Exponents that operands may have without leaving their own or the results' range."""
        low, high, factors = -20, 20, 1 if self.sum else 2
        for single in singles:
            own, order = single.operands.format, single.accumulation
            # Half of the numbers have as few bits as a subnormal one.
            smallest = own.emin if single.operands.rounding.flush else own.emin - own.mantissa_bits
            low = max(low, smallest, max(order.accumulate.emin, order.out.emin) // factors)
            high = min(high, own.emax - 1, (min(order.accumulate.emax, order.out.emax) - 2) // factors)
        return low, max(high, low + 1)

    def _sums(self, single: Arithmetic, seen: int) -> Iterator[Arithmetic]:
        """All that sums of four may be, of one arithmetic of single products; `seen`: bits of such sums."""
        order, rounding = single.accumulation, single.rounding
        if min(order.accumulate.mantissa_bits, order.out.mantissa_bits) < seen - 1:
            return
        wider = [order.accumulate]
        if order.accumulate == float32:
            wider += [of_bits(bits) for bits in range(22, max(seen - 2, 0), -1)]
        for accumulate in dict.fromkeys(wider):
            if accumulate == order.out == float32 and rounding.mode != "nearest_even":
                continue  # nothing is rounded but by the adder
            if can(rounding, accumulate):
                for accumulation in adders(order.with_types(accumulate, order.out), seen):
                    yield replace(single, accumulation=accumulation)

    # ---- longer sums: groups, parts and stages ----

    def _long_sums(self, rows: int, terms: int) -> Asked:
        return self.ask(long_sums(self.generator, rows, terms, FEW, self.reach, self.sum))

    def _grouped(self, single: Arithmetic) -> list[Arithmetic]:
        """One arithmetic of four terms with the groups, parts and stages that reproduce long sums."""
        order = single.accumulation
        if order.group in (4, ALL_OF_A_PART):  # or more
            whole = order.group == ALL_OF_A_PART
            group = self._longest(single, lambda n: replace(order, group=self.terms if whole else n), 4, 1)
            self.longest = max(self.longest, group)
        else:
            group = order.group or 1
        candidates = []
        # A part of one group beside a long one is seen only where there is another: the end may lie a little before.
        for size in (group,) if group < 4 else range(group, max(group - 4, 1), -1):
            grouped = replace(order, group=size)
            units = self._longest(single, functools.partial(_always, grouped), 1, size)
            for count in range(units + 1, max(units - 3, 0), -1):
                splits = ceil_div(ceil_div(self.terms, size), count)
                for stages in (None, 1, 2, 3) if splits > 1 else (None,):
                    made = replace(grouped, splits=splits, stages=stages)
                    candidates.append(replace(single, accumulation=made))
                if splits > 1:
                    candidates.append(
                        replace(single, accumulation=grouped, promote=promotion(self.terms, size, splits))
                    )
        # Of several parts the result may have the accumulator's format, which no sum of one part tells.
        if order.out == float32 != order.accumulate:
            parted = [each for each in candidates if each.promote or each.accumulation.splits > 1]
            candidates += [
                replace(each, accumulation=each.accumulation.with_types(order.accumulate)) for each in parted
            ]
        for probe in self.long:
            candidates = probe.those(candidates)
        # Of both kinds: other lengths tell them apart.
        kinds = {each.promote is None: each for each in reversed(candidates)}
        return [kinds[kind] for kind in sorted(kinds, reverse=True)]

    def _longest(self, single: Arithmetic, order: Callable[[int], Accumulation], least: int, unit: int) -> int:
        """The most units of terms whose sums an order for so many reproduces, found by halving."""
        low, high = least, -(-self.terms // unit)
        whole = self._prefix(self.terms)
        if whole.fits(replace(single, accumulation=order(high))):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            terms = min(middle * unit, self.terms)
            # An aligned adder cuts the partial sum once more in groups of zeros.
            shown = replace(self._prefix(terms), terms=None if single.accumulation.adder == "aligned" else terms)
            fits = shown.fits(replace(single, accumulation=order(middle)))
            low, high = (middle, high) if fits else (low, middle)
        return low

    def _prefix(self, terms: int) -> Asked:
        """Sums of which only the first terms are not zero."""
        if terms not in self.prefixes:
            a, b = long_sums(self.generator, 4 * FEW, terms, FEW, self.reach, self.sum)
            rest = ((0, 0), (0, self.terms - terms))
            b = np.ones((self.terms, 1), np.float32) if self.sum else np.pad(b, rest[::-1])
            self.prefixes[terms] = self.ask(Probe(np.pad(a, rest), b))
        return self.prefixes[terms]

    # ---- sums of other lengths: is it the number of parts that is fixed, or their length? ----

    def _depths(self, kinds: list[Arithmetic]) -> Arithmetic | None:
        """The first form of an arithmetic that reproduces sums of other lengths too; None: none does.

        Args:
            kinds: with a number of parts, and with parts of a fixed length, as far as sums of `terms` allow both.
        """
        every = dict.fromkeys(longer for each in kinds for longer in self._longer(each))
        # So many parts that each is a group at every length asked are said as a fixed length.
        left = sorted(every, key=lambda each: each.accumulation.splits > MANY_SPLITS)
        for terms in (2 * self.terms, self.terms + self.terms // 2 + FEW, self.terms // 2 - FEW):
            left = self._of_length(terms, left)
        # From the longest on: as long as there is a length at which those that are left cut sums differently.
        for terms in range(8 * self.terms, self.terms // 4, -(self.terms // 32)):
            if len({each.order(terms).cut(terms)[1:] for each in left}) > 1:
                left = self._of_length(terms, left)
        return left[0] if left else None

    def _of_length(self, terms: int, candidates: Iterable[Arithmetic]) -> list[Arithmetic]:
        """Those that reproduce sums of so many terms."""
        if terms not in self.others:
            self.others[terms] = self._long_sums((4 if terms <= 2 * self.terms else 1) * FEW, terms)
        return self.others[terms].those(candidates)

    def _longer(self, single: Arithmetic) -> Iterator[Arithmetic]:
        """What one arithmetic of sums of `terms` may be at other lengths."""
        order, terms = single.accumulation, self.terms
        cut = single.order(terms).cut(terms)
        part = single.promote or cut.part
        # Where no end of a group is seen, the group may be any that divides a part, or all of it.
        groups: list[int | None] = [cut.group]
        if cut.group == min(part, terms) or cut.group >= terms:
            divisors = [size for size in (16, *range(4, part)) if part % size == 0]
            groups = [*([16] if cut.parts <= 1 else []), None, *divisors, cut.group]
        for group in dict.fromkeys(groups):
            if group is None and (order.adder == "aligned" or single.promote):
                continue
            grouped = replace(order, group=group)
            if single.promote:
                parts = cut.parts
                for units in range(1, ceil_div(terms, cut.group) + 1):
                    if ceil_div(terms, units * cut.group) == parts:
                        yield replace(single, accumulation=grouped, promote=units * cut.group)
                continue
            for splits in splits_of(grouped, part, terms):
                for stages in dict.fromkeys((None, order.stages)):
                    yield replace(single, accumulation=replace(grouped, splits=splits, stages=stages))


def _told_by_sizes(typed: Arithmetic) -> tuple[Any, ...]:
    """What single products of every size tell apart, of whose namesakes one is as good as another."""
    order, rounding, smallest = typed.accumulation, typed.rounding, typed.operands.format.smallest_subnormal
    # Of narrow operands no product is subnormal, but sums that cancel are: whether they are flushed comes with those.
    cancels = smallest**2 < max(order.accumulate.smallest_normal, order.out.smallest_normal)
    return typed.operands, order, rounding.mode, rounding.flush and cancels


def _always(order: Accumulation, _: int) -> Accumulation:
    return order


def significant_bits(x: Array) -> Array:
    """Bits from the first to the last that is set, of values that float32 holds; 0 for those that are not finite."""
    with np.errstate(invalid="ignore"):
        parts = np.frexp(np.asarray(x, np.float64))[0] * 2.0**53
    whole = np.where(np.isfinite(parts), np.abs(parts), 0).astype(np.int64)
    last = whole & -whole
    bits: Array = np.where(whole == 0, 0, 53 - np.log2(np.maximum(last, 1)).astype(int))
    return bits
