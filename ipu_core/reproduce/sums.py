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
TERMS, REPEATS, FACTOR = 10_000, 10, 4
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def partial_sums(fmt: str, terms: int, **rounding: Any) -> npt.NDArray[np.float32]:
    """The partial sums of 1 + 1/2 + 1/3 + ..., every term and every sum rounded to a format."""
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float32)
    return np.asarray(lowprec.cumulative_sum(ones, fmt, **rounding), np.float32)


def errors(fmt: str, terms: int, seeds: Sequence[int]) -> tuple[float, float]:
    """Errors of the sum relative to float64's of the same terms: to nearest, and the largest of stochastic runs."""
    # the error of the sum alone: the terms are rounded before, for both
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float64)
    exact = float(ones.sum())

    def error(**rounding: Any) -> float:
        return abs(float(partial_sums(fmt, terms, **rounding)[-1]) - exact) / exact

    # the largest error of several runs is judged: one could be small by luck
    keys = [Key(seed).fold_in(repeat) for seed in seeds for repeat in range(REPEATS)]
    return error(), max(error(rounding="stochastic", key=key) for key in keys)


class SumErrors(NamedTuple):
    """What `measure` finds, by format.

    Attributes:
        stops: the value at which the sum to nearest stops, and the number of the first term that changes nothing.
        errors: `errors` by the number of terms.
    """

    stops: dict[str, tuple[float, int]]
    errors: dict[str, dict[int, tuple[float, float]]]


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
    nearest, stochastic = measured.errors["float16"][TERMS]
    findings = [
        Finding(
            f"the harmonic sum in {fmt} stops at {value:.4f} with term {term}",
            f"{measured.stops[fmt][0]:.4f}, term {measured.stops[fmt][1]} changes nothing",
            measured.stops[fmt] == (value, term),
        )
        for fmt, (value, term) in STOPS.items()
    ]
    findings.append(
        Finding(
            "10,000 terms in float16: to nearest errs by more than 0.25, stochastic by less than 0.05",
            f"{nearest:.3f}; {stochastic:.3f} at most in {runs} runs",
            nearest > 0.25 and stochastic < 0.05,
        )
    )
    for fmt, unit in ROUNDOFF.items():
        worst = {n: largest / (math.sqrt(n) * unit) for n, (_, largest) in measured.errors[fmt].items()}
        where = max(worst, key=lambda n: worst[n])
        findings.append(
            Finding(
                f"stochastic errors in {fmt} grow as the root of n times the unit roundoff (within {FACTOR} of it)",
                f"at most {worst[where]:.2f} of it (n = {where:,})",
                worst[where] < FACTOR,
            )
        )
    return findings


SUMS = Reproduction("sums", "sums that stop growing", "Croci et al. 2022, section 8a; Higham's blog", run)
