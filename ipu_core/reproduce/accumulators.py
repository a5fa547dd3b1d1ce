"""Sums in narrow accumulators (Wang, Choi, Brand, Chen and Gopalakrishnan, NeurIPS 2018, arXiv 1812.08011; Sakr et al.,
ICLR 2019, arXiv 1901.06588).

Wang adds 65,536 numbers of mean 1 and deviation 1 in a float of 9 mantissa bits, one after another and in chunks. Sakr
measures what a narrow accumulator loses by the variance of sums of many samples, as a part of that of exact sums,
and calls one wide enough for n terms where n times the share lost, by his formula, is less than the logarithm of 50.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.reproduce.finding import Finding, Progress, Reproduction
from lowprec import FloatFormat, Key

# Wang's (1,6,9): sign, 6 exponent and 9 mantissa bits, not IEEE's half
FP16 = FloatFormat("fp16_169", 6, 9)
TERMS, CHUNKS, STOP = 65_536, (32, 64, 256), 4096
PRODUCT_BITS, SAMPLES, CHUNK = 5, 512, 64
LENGTHS = (64, 256, 1024, 4096, 16_384)
MANTISSAS = (3, 4, 5, 6, 7, 8, 9, 10)
RULE = math.log(50)
"""The paper's cut-off of the number of terms times the share that is lost."""
WITHIN = RULE / LENGTHS[0]
"""Of the variance: what the rule lets the shortest sums lose, and within which a formula counts as right."""
UNIT = 2.0**-10
"""The unit roundoff of FP16."""
RESNET, PLAIN_BITS, CHUNK_BITS = (576, 1152, 2304, 4608), (7, 8, 8, 9), (5, 5, 5, 6)
"""Lengths of the products in ResNet-18's blocks 1 to 4, forward, and their bits in the paper's table 1, as others quote
it."""
STOPPING, SERIES = 2**24, 200  # terms of all samples; members of a series

Kept = dict[tuple[int, int], float]
"""A share of the variance by (mantissa bits, length)."""


def terms(seed: int) -> npt.NDArray[np.float32]:
    """Numbers spread evenly about 1 with a standard deviation of 1."""
    generator = np.random.Generator(np.random.Philox(seed))
    # uniform: one of width 2 sqrt(3) has the deviation 1
    return np.asarray(1 + math.sqrt(3) * (2 * generator.random(TERMS) - 1), np.float32)


class Sums(NamedTuple):
    """The sum of `terms` in FP16 over the exact one, and the plain sum itself."""

    plain: float
    chunks: dict[int, float]
    stochastic: float


def sums(seed: int) -> Sums:
    """One after another to nearest, in chunks, and one after another stochastically."""
    x = terms(seed)
    exact = float(x.sum(dtype=np.float64))
    chunks = {size: float(lowprec.sum(x, FP16, order="blocked", block=size)) / exact for size in CHUNKS}
    stochastic = float(lowprec.sum(x, FP16, "stochastic", key=Key(seed))) / exact
    return Sums(float(lowprec.sum(x, FP16)), chunks, stochastic)


def retained(mantissa: int, length: int, seed: int, samples: int = SAMPLES, **order: Any) -> float:
    """The variance of sums of products in an accumulator, over that of the exact sums of the same samples."""
    # the same samples for every width of accumulator: ratios of variances then share their noise
    generator = np.random.Generator(np.random.Philox((seed, length)))
    # 6 exponent bits for both: neither overflows, so that only the mantissa decides
    products, accumulator = FloatFormat("product", 6, PRODUCT_BITS), FloatFormat("accumulator", 6, mantissa)
    x = np.asarray(lowprec.round(generator.standard_normal((length, samples)).astype(np.float32), products))
    ours = np.asarray(lowprec.sum(x, accumulator, axis=0, **order), np.float64)
    return float(np.var(ours) / np.var(x.sum(axis=0, dtype=np.float64)))


def weights(mantissa: int, length: int) -> npt.NDArray[np.float64]:
    """What Sakr's lemma 1 gives each number of terms, from 1 to the length, after which a sum may have stopped.

    A term of deviation 1 is lost beside a sum beyond 2^mantissa. Of i terms the weight is 2 Q(2^m / sqrt(i)) (1 - 2
    Q(2^m / sqrt(i - 1))): the sum is beyond, and the one before was not, as if the two were independent. Of all of
    them it is 1 - 2 Q(2^m / sqrt(n)). They add up to 1 where next to no sum stops, and to hundreds where most do.
    """
    steps = np.arange(1, length + 1)
    beyond = np.array([math.erfc(2**mantissa / math.sqrt(2 * i)) for i in steps])
    return np.append(beyond[:-1] * (1 - np.append(0.0, beyond[:-2])), 1 - beyond[-1])


def formula(mantissa: int, length: int) -> float:
    """The variance retention ratio of lemma 1 (full swamping): the mean of i / n under `weights`.

    It falls towards 1/3, not 0. It is what we know of the paper, of which no text but the beginning was at hand.
    Theorem 1, of terms that are also cut in part, is left out: of the weights of its stages we know but guesses. With
    four of these it gives `RESNET` the same bits, and is no nearer to sums that lose much.
    """
    given = weights(mantissa, length)
    return float(given @ np.arange(1, length + 1) / (length * given.sum()))


def in_chunks(mantissa: int, length: int) -> float:
    """The formula for sums in chunks of CHUNK: what each of these keeps, times what the sum of their sums keeps."""
    return formula(mantissa, CHUNK) * formula(mantissa, length // CHUNK)


def bits(rule: Callable[[int, int], float], length: int) -> int:
    """The fewest mantissa bits that are enough by a formula."""
    return next(mantissa for mantissa in range(1, 24) if _accepts(rule, mantissa, length))


def passage(mantissa: int, length: int) -> float:
    """What a sum keeps that is exact until it is first beyond 2^mantissa, and then stops for good.

    By Wald's identity that is the mean number of terms until then, or of all, over all of them: of a Brownian motion
    between two walls, which are 0.5826 deviations further off for one in steps (Siegmund, 1979).
    """
    # the survival of the motion as a Fourier series: only odd members are not zero
    odd = np.arange(1, 2 * SERIES, 2)
    rates = (odd * math.pi / (2 * (2**mantissa + 0.5826))) ** 2 / 2
    partial = np.cumsum(np.resize([4.0, -4.0], SERIES) / (odd * math.pi) * -np.expm1(-rates * length) / rates)
    return float(partial[-2:].mean() / length)  # members alternate


def stopping(seed: int, lengths: Sequence[int]) -> tuple[Kept, Kept]:
    """The variance that two kinds of sums keep, by (mantissa bits, length), over that of the exact sums.

    The first stop for good where they are first beyond 2^mantissa. The second stop after as many terms as `weights`
    make it likely, whatever they are then: all that the formula supposes.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    products, samples = FloatFormat("product", 6, PRODUCT_BITS), STOPPING // max(lengths)
    # the same kind of terms as in `retained`: only how a sum ends differs
    x = np.asarray(lowprec.round(generator.standard_normal((max(lengths), samples)).astype(np.float32), products))
    totals = np.cumsum(x, axis=0, dtype=np.float64)
    first, drawn = Kept(), Kept()
    for length in lengths:
        some, size = totals[:length], np.abs(totals[:length])
        for mantissa in MANTISSAS:
            beyond, likely = size >= 2**mantissa, weights(mantissa, length)
            # argmax is 0 where no sum is beyond: those run to the end
            ends = np.where(beyond.any(axis=0), beyond.argmax(axis=0), length - 1)
            chosen = generator.choice(length, samples, p=likely / likely.sum())
            for kept, each in ((first, ends), (drawn, chosen)):
                kept[mantissa, length] = float(np.var(some[each, np.arange(samples)]) / np.var(some[-1]))
    return first, drawn


class RetainedVariance(NamedTuple):
    """What `measure` finds.

    Attributes:
        sums: of every seed.
        plain, chunks: retained variance by (mantissa bits, length), of sums one after another and in chunks of CHUNK.
        stopped, drawn: that of exact sums that stop; see `stopping`.
    """

    sums: list[Sums]
    plain: Kept
    chunks: Kept
    stopped: Kept
    drawn: Kept


def measure(seeds: Sequence[int], share: float, progress: Progress) -> RetainedVariance:
    """Sums of all seeds, and the variance that every accumulator retains (up to 1,024 terms with a share below 1)."""
    found = [sums(seed) for seed in seeds]
    progress(f"sums of {TERMS:,} terms")
    plain, chunks, lengths = {}, {}, LENGTHS if share >= 1 else LENGTHS[:3]
    for length in lengths:
        for mantissa in MANTISSAS:
            kept = [retained(mantissa, length, seed) for seed in seeds]
            cut = [retained(mantissa, length, seed, order="blocked", block=CHUNK) for seed in seeds]
            plain[mantissa, length], chunks[mantissa, length] = float(np.mean(kept)), float(np.mean(cut))
        progress(f"variance of sums of {length:,} products")
    each = [stopping(seed, lengths) for seed in seeds]
    stopped, drawn = (
        {case: float(np.mean([kept[case] for kept in some])) for case in plain} for some in zip(*each, strict=True)
    )
    return RetainedVariance(found, plain, chunks, stopped, drawn)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(measured: RetainedVariance) -> list[Finding]:
    """The findings in what was measured."""
    return [*_stops(measured.sums), *_variances(measured), *_supposed(measured)]


def _stops(found: Sequence[Sums]) -> list[Finding]:
    plain = sorted({each.plain for each in found})
    off = {size: max(abs(each.chunks[size] - 1) for each in found) for size in found[0].chunks}
    stochastic = max(abs(each.stochastic - 1) for each in found)
    # terms far below a spacing of 2 UNIT s at most: each adds the variance x 2 UNIT s, all of them UNIT of the square
    three = 3 * math.sqrt(UNIT)
    return [
        Finding(
            f"a sum of {TERMS:,} terms of mean 1 in (1,6,9), one after another, stops at {STOP}",
            ", ".join(f"{value:g}" for value in plain),
            plain == [STOP],
        ),
        Finding(
            f"chunks of {CHUNKS[0]} and more follow float32 (within the root of the additions in a row times the unit "
            f"roundoff, {100 * _chunked(CHUNKS[0]):.1f} to {100 * _chunked(CHUNKS[-1]):.1f} %)",
            f"{100 * max(off.values()):.1f} % off at most",
            all(each <= _chunked(size) for size, each in off.items()),
        ),
        Finding(
            f"stochastic rounding follows it without chunks (within three deviations, {100 * three:.1f} %)",
            f"{100 * stochastic:.1f} % off at most",
            stochastic <= three,
        ),
    ]


def _chunked(size: int) -> float:
    """By how much roundings to nearest of a sum in chunks are off if they are independent, at the most."""
    return UNIT * math.sqrt(size + TERMS / size)


def _variances(measured: RetainedVariance) -> list[Finding]:
    plain, chunks = measured.plain, measured.chunks
    wide = [(plain[case], formula(*case)) for case in plain if _accepts(formula, *case)]
    cut = [(chunks[case], in_chunks(*case)) for case in chunks if _accepts(in_chunks, *case)]
    most, most_cut = (max(_off(*pair) for pair in pairs) for pairs in (wide, cut))
    ours, ours_cut = ([bits(rule, length) for length in RESNET] for rule in (formula, in_chunks))
    apart_bits = max(abs(a - b) for a, b in zip(ours + ours_cut, PLAIN_BITS + CHUNK_BITS, strict=True))
    # what is lost depends on terms / 4^bits alone: a sum of n terms reaches the root of n
    pairs = [(plain[m, n], plain[m + 1, 4 * n]) for m, n in plain if (m + 1, 4 * n) in plain]
    apart = max(abs(one - other) for one, other in pairs)
    # two standard errors of the difference of two variances of so many samples
    error = 2 * math.sqrt(2 * 2 / (SAMPLES * len(measured.sums)))
    # where most is lost there is most to keep
    worst = min(plain, key=lambda case: plain[case])
    return [
        Finding(
            f"accumulators that Sakr's rule calls wide enough keep the variance that the formula says (within "
            f"{100 * WITHIN:.0f} %)",
            f"{100 * most:.1f} % off at most in {len(wide)} of {len(plain)} accumulators ({_range(plain)}); in chunks "
            f"of {CHUNK} {100 * most_cut:.1f} % in {len(cut)}",
            max(most, most_cut) <= WITHIN,
        ),
        Finding(
            f"the rule gives sums of {_listed(RESNET)} products {_listed(PLAIN_BITS)} bits, in chunks of {CHUNK} "
            f"{_listed(CHUNK_BITS)} (within one bit)",
            f"{_listed(ours)}; {_listed(ours_cut)}",
            apart_bits <= 1,
        ),
        Finding(
            f"one mantissa bit more is good for four times the length (variances within two errors, {error:.2f})",
            f"{apart:.3f} apart at most",
            apart <= error,
        ),
        Finding(
            f"chunks of {CHUNK} keep the variance that long sums lose (most of it)",
            f"{chunks[worst]:.2f} in place of {plain[worst]:.2f} ({worst[0]} bits, {worst[1]:,} terms)",
            1 - chunks[worst] < (1 - plain[worst]) / 2,
        ),
    ]


def _supposed(measured: RetainedVariance) -> list[Finding]:
    """The formula beside sums that are as it supposes, ever less so."""
    # where the rule calls an accumulator wide enough next to nothing is lost, and any formula agrees
    narrow = [case for case in measured.plain if not _accepts(formula, *case)]
    of = f"of {len(narrow)}"
    plain, stopped = (
        sum(_agrees(kept, formula, case) for case in narrow) for kept in (measured.plain, measured.stopped)
    )
    walls = sum(_agrees(measured.stopped, passage, case) for case in narrow)
    drawn = sum(_agrees(measured.drawn, formula, case) for case in measured.drawn)
    ratios = [measured.plain[case] / formula(*case) for case in narrow]
    return [
        Finding(
            "sums that stop as the formula supposes, whatever they are then, keep what it says in accumulators of any "
            f"width (within {100 * WITHIN:.0f} %)",
            f"{drawn} of {len(measured.drawn)}",
            drawn == len(measured.drawn),
        ),
        Finding(
            f"sums rounded to nearest keep it in accumulators too narrow by the rule (within {100 * WITHIN:.0f} %)",
            f"{plain} {of}, {min(ratios):.2f} to {max(ratios):.2f} times as much: it tends to 1/3, sums to 0 (exact "
            f"ones that stop beyond 2^bits too: {stopped}; their mean first passage is right for {walls})",
            plain == len(narrow),
        ),
    ]


def _off(kept: float, said: float) -> float:
    return abs(kept / said - 1)


def _accepts(rule: Callable[[int, int], float], mantissa: int, length: int) -> bool:
    """Whether an accumulator is wide enough by a formula."""
    return length * (1 - rule(mantissa, length)) < RULE


def _agrees(kept: Kept, rule: Callable[[int, int], float], case: tuple[int, int]) -> bool:
    return _off(kept[case], rule(*case)) <= WITHIN


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _range(cases: Iterable[tuple[int, int]]) -> str:
    bits, lengths = zip(*cases, strict=True)
    return f"{min(bits)} to {max(bits)} bits, {min(lengths):,} to {max(lengths):,} terms"


ACCUMULATORS = Reproduction(
    "accumulators",
    "sums in narrow accumulators",
    "Wang et al. 2018, arXiv 1812.08011; Sakr et al. 2019, 1901.06588",
    run,
)
