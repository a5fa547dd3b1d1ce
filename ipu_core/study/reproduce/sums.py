"""Sums that stop growing (Croci, Fasi, Higham, Mary and Mikaitis, R. Soc. Open Sci. 9:211631, 2022, section 8a)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.study.reproduce.finding import Finding, Progress, Reproduction
from lowprec import Key

STOPS = {"float16": (7.0859375, 513), "bfloat16": (5.0625, 65)}
TERMS, REPEATS, FACTOR = 10_000, 10, 4
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def partial_sums(fmt: str, terms: int, **rounding: Any) -> npt.NDArray[np.float32]:
    """The partial sums of 1 + 1/2 + 1/3 + ..., every term and every sum rounded to a format."""
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float32)
    return np.asarray(lowprec.cumulative_sum(ones, fmt, **rounding), np.float32)


def errors(fmt: str, terms: int, seeds: Sequence[int]) -> tuple[float, float]:
    """Errors of the sum relative to float64's of the same terms: to nearest, and the largest of stochastic runs."""
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float64)
    exact = float(ones.sum())

    def error(**rounding: Any) -> float:
        return abs(float(partial_sums(fmt, terms, **rounding)[-1]) - exact) / exact

    keys = [Key(seed).fold_in(repeat) for seed in seeds for repeat in range(REPEATS)]
    return error(), max(error(rounding="stochastic", key=key) for key in keys)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    findings = []
    for fmt, (value, term) in STOPS.items():
        sums = partial_sums(fmt, TERMS)
        last = int(np.flatnonzero(np.diff(sums))[-1]) + 2  # the number of the last term that changed the sum
        findings.append(
            Finding(
                f"the harmonic sum in {fmt} stops at {value:.4f} with term {term}",
                f"{sums[-1]:.4f}, term {last + 1} changes nothing",
                (float(sums[-1]), last + 1) == (value, term),
            )
        )
    progress("sums of 10,000 terms")
    nearest, stochastic = errors("float16", TERMS, seeds)
    findings.append(
        Finding(
            "10,000 terms in float16: to nearest errs by more than 0.25, stochastic by less than 0.05",
            f"{nearest:.3f}; {stochastic:.3f} at most in {REPEATS * len(seeds)} runs",
            nearest > 0.25 and stochastic < 0.05,
        )
    )
    for fmt, unit in ROUNDOFF.items():
        lengths = [10**power for power in range(1, 6 if share >= 1 else 5)]
        progress(f"stochastic sums in {fmt}")
        worst = {n: errors(fmt, n, seeds)[1] / (math.sqrt(n) * unit) for n in lengths}
        largest = max(worst, key=lambda n: worst[n])
        findings.append(
            Finding(
                f"stochastic errors in {fmt} grow as the root of n times the unit roundoff (within {FACTOR} of it)",
                f"at most {worst[largest]:.2f} of it (n = {largest:,})",
                worst[largest] < FACTOR,
            )
        )
    return findings


SUMS = Reproduction("sums", "sums that stop growing", "Croci et al. 2022, section 8a; Higham's blog", run)
