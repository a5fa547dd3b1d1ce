"""Sums in narrow accumulators (Wang, Choi, Brand, Chen and Gopalakrishnan, NeurIPS 2018, arXiv 1812.08011; Sakr et al.,
ICLR 2019, arXiv 1901.06588).

Wang adds 65,536 numbers of mean 1 and deviation 1 in a float of 9 mantissa bits, one after another and in chunks. Sakr
measures what a narrow accumulator loses by the variance of sums of many samples, as a part of that of exact sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.study.reproduce.finding import Finding, Progress, Reproduction
from lowprec import FloatFormat, Key

FP16 = FloatFormat("fp16_169", 6, 9)
TERMS, CHUNKS, STOP = 65_536, (32, 64, 256), 4096
PRODUCT_BITS, SAMPLES, CHUNK = 5, 512, 64
LENGTHS = (64, 256, 1024, 4096, 16_384)
MANTISSAS = (3, 4, 5, 6, 7, 8, 9, 10)
WITHIN, ENOUGH = 0.10, 0.95


def terms(seed: int) -> npt.NDArray[np.float32]:
    """Numbers spread evenly about 1 with a standard deviation of 1."""
    generator = np.random.Generator(np.random.Philox(seed))
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
    generator = np.random.Generator(np.random.Philox((seed, length)))
    products, accumulator = FloatFormat("product", 6, PRODUCT_BITS), FloatFormat("accumulator", 6, mantissa)
    x = np.asarray(lowprec.round(generator.standard_normal((length, samples)).astype(np.float32), products))
    ours = np.asarray(lowprec.sum(x, accumulator, axis=0, **order), np.float64)
    return float(np.var(ours) / np.var(x.sum(axis=0, dtype=np.float64)))


def formula(mantissa: int, length: int) -> float:
    """The variance retention ratio: sums vanish beyond 2^mantissa deviations of a term, first after i terms or never.

    q_i = 2 Q(2^m / sqrt(i)) (1 - 2 Q(2^m / sqrt(i - 1))) stands for the first, 1 - 2 Q(2^m / sqrt(n)) for the second;
    the ratio is the mean of i / n under these weights. It is what we know as the paper's lemma 1, of sums that stop;
    theorem 1 adds terms that are cut in part, by which it is smaller by up to 0.07 here. No text of the paper but its
    beginning was at hand to compare it with.
    """

    def beyond(steps: float) -> float:
        return math.erfc(2**mantissa / math.sqrt(2 * steps)) if steps else 0.0

    first = [beyond(i) * (1 - beyond(i - 1)) for i in range(1, length)]
    never = 1 - beyond(length)
    kept = sum(i * weight for i, weight in enumerate(first, 1)) + length * never
    return kept / (length * (sum(first) + never))


class Measured(NamedTuple):
    """What `measure` finds.

    Attributes:
        sums: of every seed.
        plain, chunks: retained variance by (mantissa bits, length), of sums one after another and in chunks of CHUNK.
    """

    sums: list[Sums]
    plain: dict[tuple[int, int], float]
    chunks: dict[tuple[int, int], float]


def measure(seeds: Sequence[int], share: float, progress: Progress) -> Measured:
    """Sums of all seeds, and the variance that every accumulator retains (up to 1,024 terms with a share below 1)."""
    found = [sums(seed) for seed in seeds]
    progress(f"sums of {TERMS:,} terms")
    plain, chunks = {}, {}
    for length in LENGTHS if share >= 1 else LENGTHS[:3]:
        for mantissa in MANTISSAS:
            kept = [retained(mantissa, length, seed) for seed in seeds]
            cut = [retained(mantissa, length, seed, order="blocked", block=CHUNK) for seed in seeds]
            plain[mantissa, length], chunks[mantissa, length] = float(np.mean(kept)), float(np.mean(cut))
        progress(f"variance of sums of {length:,} products")
    return Measured(found, plain, chunks)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(measured: Measured) -> list[Finding]:
    """The findings in what was measured."""
    return [*_stops(measured.sums), *_variances(measured.plain, measured.chunks)]


def _stops(found: Sequence[Sums]) -> list[Finding]:
    plain = sorted({each.plain for each in found})
    off = max(abs(value - 1) for each in found for value in each.chunks.values())
    stochastic = max(abs(each.stochastic - 1) for each in found)
    return [
        Finding(
            f"a sum of {TERMS:,} terms of mean 1 in (1,6,9), one after another, stops at {STOP}",
            ", ".join(f"{value:g}" for value in plain),
            plain == [STOP],
        ),
        Finding(
            f"chunks of {CHUNKS[0]} and more follow float32 (within 5 %)", f"{100 * off:.1f} % off at most", off <= 0.05
        ),
        Finding(
            "stochastic rounding follows it without chunks (within 10 %)",
            f"{100 * stochastic:.1f} % off at most",
            stochastic <= 0.10,
        ),
    ]


def _variances(plain: dict[tuple[int, int], float], chunks: dict[tuple[int, int], float]) -> list[Finding]:
    said = {case: formula(*case) for case in plain}
    off = {case: abs(kept / said[case] - 1) for case, kept in plain.items()}
    enough = [off[case] for case in plain if said[case] >= ENOUGH]
    within = [case for case in plain if off[case] <= WITHIN]
    less, more = min(plain, key=lambda case: plain[case] / said[case]), max(plain, key=lambda c: plain[c] / said[c])
    pairs = [(plain[m, n], plain[m + 1, 4 * n]) for m, n in plain if (m + 1, 4 * n) in plain]
    apart = max(abs(one - other) for one, other in pairs)
    worst = min(plain, key=lambda case: plain[case])
    return [
        Finding(
            f"accumulators that Sakr's formula finds wide enough ({100 * ENOUGH:.0f} % kept) keep the variance that it "
            f"says (within {100 * WITHIN:.0f} %)",
            f"{100 * max(enough):.1f} % off at most, {len(enough)} of {len(plain)} accumulators ({_range(plain)})",
            max(enough) <= WITHIN,
        ),
        Finding(
            "one mantissa bit more is good for four times the length (variances within 0.1)",
            f"{apart:.3f} apart at most",
            apart <= 0.1,
        ),
        Finding(
            f"chunks of {CHUNK} keep the variance that long sums lose",
            f"{chunks[worst]:.2f} in place of {plain[worst]:.2f} ({worst[0]} bits, {worst[1]:,} terms)",
            chunks[worst] >= plain[worst] + 0.3,
        ),
        Finding(
            f"the formula as we know it in all of that range (within {100 * WITHIN:.0f} %)",
            f"{len(within)} of {len(plain)} are; from {plain[less]:.2f} where it says {said[less]:.2f} to "
            f"{plain[more]:.2f} where it says {said[more]:.2f}",
            None,
        ),
    ]


def _range(cases: Iterable[tuple[int, int]]) -> str:
    bits, lengths = zip(*cases, strict=True)
    return f"{min(bits)} to {max(bits)} bits, {min(lengths):,} to {max(lengths):,} terms"


ACCUMULATORS = Reproduction(
    "accumulators",
    "sums in narrow accumulators",
    "Wang et al. 2018, arXiv 1812.08011; Sakr et al. 2019, 1901.06588",
    run,
)
