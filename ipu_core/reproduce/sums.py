"""Sums that stop growing (Croci, Fasi, Higham, Mary and Mikaitis, R. Soc. Open Sci. 9:211631, 2022, section 8a)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.reproduce.finding import Finding, Progress, Reproduction
from lowprec import Key

# from the paper and from Higham's blog: where the sum stops, and with which term
STOPS = {"float16": (7.0859375, 513), "bfloat16": (5.0625, 65)}
TERMS, REPEATS = 10_000, 10
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
BEYOND = 3.09
"""Deviations of a normal number, which one of a thousand exceeds."""


def partial_sums(fmt: str, terms: int, **rounding: Any) -> npt.NDArray[np.float32]:
    """The partial sums of 1 + 1/2 + 1/3 + ..., every term and every sum rounded to a format."""
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float32)
    return np.asarray(lowprec.cumulative_sum(ones, fmt, **rounding), np.float32)


class SumError(NamedTuple):
    """Errors of the sum of so many terms, relative to float64's of the same terms.

    Attributes:
        nearest: rounded to nearest.
        largest, typical: of some stochastic runs the largest, and the root of the mean square.
        independent: what `typical` is if every rounding has mean 0 whatever the others did.
    """

    nearest: float
    largest: float
    typical: float
    independent: float


def errors(fmt: str, terms: int, seeds: Sequence[int]) -> SumError:
    """Of the sum to nearest, and of REPEATS stochastic ones of each seed."""
    # the error of the sum alone: the terms are rounded before, for both
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float64)
    exact, off, variances = float(ones.sum()), [], []
    for key in (Key(seed).fold_in(repeat) for seed in seeds for repeat in range(REPEATS)):
        path = np.asarray(partial_sums(fmt, terms, rounding="stochastic", key=key), np.float64)
        off.append((path[-1] - exact) / exact)
        variances.append(_variance(np.append(0, path[:-1]) + ones, fmt) / exact**2)
    nearest = abs(float(partial_sums(fmt, terms)[-1]) - exact) / exact
    typical, independent = (math.sqrt(float(np.mean(each))) for each in (np.square(off), variances))
    return SumError(nearest, max(map(abs, off)), typical, independent)


def _variance(sums: npt.NDArray[np.float64], fmt: str) -> float:
    """That of the sum of all errors of sums which are each rounded up or down with a mean of 0."""
    # such errors are orthogonal, whatever the sums depend on: their variances add up
    down, up = (np.asarray(lowprec.round(sums, fmt, way), np.float64) for way in ("down", "up"))
    return float(np.sum((sums - down) * (up - sums)))


def chance(runs: int) -> tuple[float, float]:
    """Between which shares of the true deviation that of so many runs lies, but for one case of a thousand to a side.

    By Wilson and Hilferty the third root of chi square is nearly normal.
    """
    low, high = (1 - 2 / (9 * runs) + z * math.sqrt(2 / (9 * runs)) for z in (-BEYOND, BEYOND))
    return max(low, 0.0) ** 1.5, high**1.5


class SumErrors(NamedTuple):
    """What `measure` finds, by format.

    Attributes:
        stops: the value at which the sum to nearest stops, and the number of the first term that changes nothing.
        errors: `errors` by the number of terms.
    """

    stops: dict[str, tuple[float, int]]
    errors: dict[str, dict[int, SumError]]


def measure(seeds: Sequence[int], share: float, progress: Progress) -> SumErrors:
    """The stops, and the errors of 10 to 100,000 terms (10,000 with a share below 1)."""
    stops, found = {}, {}
    lengths = [10**power for power in range(1, 6 if share >= 1 else 5)]
    for fmt in STOPS:
        sums = partial_sums(fmt, TERMS)
        last = int(np.flatnonzero(np.diff(sums))[-1]) + 2  # the number of the last term that changed the sum
        stops[fmt] = float(sums[-1]), last + 1
        progress(f"sums in {fmt}")
        found[fmt] = {n: errors(fmt, n, seeds) for n in lengths}
    return SumErrors(stops, found)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress), REPEATS * len(seeds))


def judged(measured: SumErrors, runs: int) -> list[Finding]:
    """The findings in what was measured, with so many stochastic runs of each length."""
    findings = [
        Finding(
            f"the harmonic sum in {fmt} stops at {value:.4f} with term {term}",
            f"{measured.stops[fmt][0]:.4f}, term {measured.stops[fmt][1]} changes nothing",
            measured.stops[fmt] == (value, term),
        )
        for fmt, (value, term) in STOPS.items()
    ]
    of, bound = measured.errors["float16"][TERMS], math.sqrt(TERMS) * ROUNDOFF["float16"]
    findings.append(
        Finding(
            f"{TERMS:,} terms in float16: errors are bounded by the root of n times the unit roundoff, {bound:.3f}, "
            "where they are stochastic, and not to nearest",
            f"{of.nearest:.3f} to nearest; stochastic {of.typical:.3f} (root of the mean square, {of.largest:.3f} at "
            f"most in {runs} runs)",
            of.typical < bound < of.nearest,
        )
    )
    low, high = chance(runs)
    for fmt, unit in ROUNDOFF.items():
        shares = {n: each.typical / each.independent for n, each in measured.errors[fmt].items()}
        most = max(each.largest / (math.sqrt(n) * unit) for n, each in measured.errors[fmt].items())
        findings.append(
            Finding(
                f"stochastic errors in {fmt} are those of independent roundings of mean 0, which grow as the root of n "
                f"at most (deviation {low:.2f} to {high:.2f} of theirs: chance of {runs} runs)",
                f"{min(shares.values()):.2f} to {max(shares.values()):.2f} of theirs in sums of {min(shares)} to "
                f"{max(shares):,} terms; at most {most:.2f} times the root of n and the unit roundoff",
                low <= min(shares.values()) and max(shares.values()) <= high,
            )
        )
    return findings


SUMS = Reproduction("sums", "sums that stop growing", "Croci et al. 2022, section 8a; Higham's blog", run)
