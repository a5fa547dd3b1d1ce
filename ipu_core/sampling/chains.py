"""Draws of several chains, and what they say: means with their errors, effective sample sizes, acceptance, energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.pytree import map_leaves, named
from ipu_core.train.table import Table
from lowprec.types import Array

DIVERGED = 1000.0
"""An energy error, in nats, above which a trajectory counts as one that left the level set, as Stan counts."""


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several chains.

    Attributes:
        draws: Nested as a position, each (draws, chains, ...) in float32 (of precision "float64" that).
        log_density, accept, energy_error: (draws, chains). The probability of acceptance, and what the energy grew by
            along the trajectory, which exact dynamics keep.
        step_size: The mean length of a leapfrog step.
        scales: Nested as a position, of each part: steps and momenta are measured in them.
        leapfrog: Steps of each draw.
        precision: The arithmetic's name.
    """

    draws: Any
    log_density: Array
    accept: Array
    energy_error: Array
    step_size: float
    scales: Any
    leapfrog: int
    precision: str

    @property
    def acceptance(self) -> float:
        """The mean probability of acceptance; a trajectory that ends at NaN counts as 0."""
        return float(np.nan_to_num(np.asarray(self.accept, np.float64)).mean())

    @property
    def acceptance_error(self) -> float:
        """The standard error of `acceptance`, from its effective sample size."""
        values = np.nan_to_num(np.asarray(self.accept, np.float64))
        return float(values.std() / math.sqrt(_size(values)))

    @property
    def effective_draws(self) -> float:
        """How many independent draws the log densities are worth: one number of all that is sampled."""
        return _size(np.asarray(self.log_density, np.float64))

    @property
    def divergences(self) -> int:
        """Trajectories whose energy grew by more than 1,000 nats, or to no number."""
        return int((~(self.energy_error <= DIVERGED)).sum())

    def mean(self) -> Any:
        """The mean of every part of a position, in float64."""
        return map_leaves(lambda x: np.asarray(x, np.float64).mean(axis=(0, 1)), self.draws)

    def variance(self) -> Any:
        """The variance of every part of a position, in float64."""
        return map_leaves(lambda x: np.asarray(x, np.float64).var(axis=(0, 1), ddof=1), self.draws)

    def effective_sample_size(self) -> Any:
        """How many independent draws would say as much of the mean of every part: by autocorrelations over all chains.

        The chains' halves are taken as chains of their own, and the sum of autocorrelations ends as Geyer's initial
        monotone sequence does (Vehtari et al. 2021, Bayesian Analysis 16, section 3.2). NaN where nothing moves.
        """
        return map_leaves(lambda x: _by_element(_size, x), self.draws)

    def r_hat(self) -> Any:
        """The split potential scale reduction of every part: near 1 where all halves of all chains agree.

        Gelman and Rubin 1992, as Vehtari et al. 2021 split it; below 1.01 is usually asked for.
        """
        return map_leaves(lambda x: _by_element(_r_hat, x), self.draws)

    def standard_error(self) -> Any:
        """The Monte Carlo error of every mean: the deviation over the root of the effective sample size."""
        return map_leaves(lambda v, n: np.sqrt(v / n), self.variance(), self.effective_sample_size())

    def variance_error(self) -> Any:
        """The Monte Carlo error of every variance: that of the mean of squared deviations."""

        def one(draws: Any) -> Array:
            values = np.asarray(draws, np.float64)
            squares = (values - values.mean(axis=(0, 1))) ** 2
            return np.asarray(np.sqrt(squares.var(axis=(0, 1), ddof=1) / _by_element(_size, squares)))

        return map_leaves(one, self.draws)

    def table(self) -> Table:
        """A line of every part: of one with several elements the worst effective sample size and r-hat among them."""
        rows = []
        parts = zip(
            named(self.mean()), named(self.variance()), named(self.effective_sample_size()), named(self.r_hat()),
            strict=True,
        )  # fmt: skip
        for (name, mean), (_, variance), (_, size), (_, r_hat) in parts:
            spreads = _range(mean), _range(np.sqrt(variance))
            rows.append((name or "position", *spreads, f"{np.min(size):.0f}", f"{np.max(r_hat):.3f}"))
        count, chains = self.accept.shape
        errors = np.abs(self.energy_error[self.energy_error <= DIVERGED])
        middle = f"{np.median(errors):.2g} nats (median)" if errors.size else "more"
        title = (
            f"{self.precision}: {count} draws of {chains} chains, {self.leapfrog} leapfrog steps of "
            f"{self.step_size:.4g}, acceptance {self.acceptance:.3f} ± {self.acceptance_error:.3f}, energy off by "
            f"{middle}, {self.divergences} diverged"
        )
        return Table(title, ("of", "mean", "deviation", "fewest effective draws", "largest r-hat"), tuple(rows))

    def __repr__(self) -> str:
        return str(self.table())


def _range(values: Any) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.4g}" if np.size(values) == 1 else f"{low:.4g} ... {high:.4g}"


def _by_element(f: Any, draws: Any) -> Array:
    values = np.asarray(draws, np.float64)
    flat = values.reshape(*values.shape[:2], -1)
    return np.array([f(flat[..., i]) for i in range(flat.shape[2])]).reshape(values.shape[2:])


def _halves(values: Array) -> Array:
    """(draws, chains) -> (half the draws, twice the chains); a middle draw is left out."""
    half = len(values) // 2
    return np.concatenate([values[:half], values[len(values) - half :]], axis=1)


def _between(halves: Array) -> tuple[float, float]:
    """The mean variance within chains, and that estimated from within and between."""
    count = len(halves)
    within = float(halves.var(axis=0, ddof=1).mean())
    between = float(halves.mean(axis=0).var(ddof=1))
    return within, (count - 1) / count * within + between


def _r_hat(values: Array) -> float:
    if len(values) < 4:
        return math.nan
    within, both = _between(_halves(values))
    return math.sqrt(both / within) if within > 0 else math.nan


def _size(values: Array) -> float:
    """Of (draws, chains)."""
    if len(values) < 4:
        return math.nan
    halves = _halves(values)
    count, chains = halves.shape
    within, both = _between(halves)
    if not (within > 0 and math.isfinite(both)):
        return math.nan
    centred = halves - halves.mean(axis=0)
    spectrum = np.fft.rfft(centred, 2 * count, axis=0)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * count, axis=0)[:count].mean(axis=1) / count
    correlation = 1 - (within - covariance * count / (count - 1)) / both
    correlation[0] = 1.0
    pairs = correlation[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    # Sums of neighbours are positive and fall; where they do not any more it is noise.
    ends = np.flatnonzero(pairs < 0)
    kept = np.minimum.accumulate(pairs[: ends[0]] if len(ends) else pairs)
    time = max(-1 + 2 * float(kept.sum()), 1 / math.log10(count * chains))
    return float(count * chains / time)
