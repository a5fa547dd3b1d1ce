"""Hamiltonian Monte Carlo in float32 on the chip, as Graphcore's Argonne talk ran it, and in narrower arithmetic.

The talk: a net of three dense layers (22 inputs, 40 units), trajectories of 1,000 leapfrog steps that stay on the
device, FP32.32. A sampler has oracles that a training has not: what is known of the density, and the energy, which
exact dynamics keep. The layers' sizes beyond these words, the data and the prior are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ipu_core.ir.bodies import equations_of
from ipu_core.reproduce import densities
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.sampling.chains import Chains
from ipu_core.sampling.hmc import EXACT, Hmc
from lowprec import Key

CHAINS, DRAWS, WARM = 4, 1000, 300
NET_DRAWS, NET_LEAPFROG, NET_STEP = 100, 100, 0.02
LONG, SHORT = 1000, 2
"""Leapfrog steps of the talk's trajectory, and of one that is as short as a loop gets."""
PRECISIONS = (
    EXACT, "fp32.32", "fp16.32/weights=float32", "fp16.32/stochastic", "fp16.16/stochastic", "fp16.16/nearest",
)  # fmt: skip
MACHINE = "fp32.32"
CHANCE = 0.01
"""That an answer which is right is taken for a wrong one."""


@dataclass(frozen=True)
class Measured:
    """What was sampled, a list over seeds in each.

    Attributes:
        gaussian, logistic: by precision.
        net: the talk's net, by precision.
        energies: by precision: how far the energy errors of one long trajectory are from float64's, in nats, the
            largest of the chains.
        equations: of programs of LONG and SHORT steps.
    """

    gaussian: Mapping[str, list[Chains]]
    logistic: Mapping[str, list[Chains]]
    net: Mapping[str, list[Chains]]
    energies: Mapping[str, list[float]]
    equations: tuple[int, int]


def sampled(density: str, precision: str, draws: int, seed: int) -> Chains:
    """Chains of one of the densities with an answer; the step and the scales are adapted in the precision itself."""
    if density == "gaussian":
        sampler = Hmc(densities.gaussian, _begin(4, seed), leapfrog=8, precision=precision, key=seed)
    else:
        data = densities.logistic_data()
        sampler = Hmc(densities.logistic, _begin(2, seed), *data, leapfrog=8, precision=precision, key=seed)
    sampler.warm_up(WARM)
    return sampler.run(draws)


def _begin(width: int, seed: int) -> Any:
    return np.broadcast_to(np.linspace(-1, 1, CHAINS, dtype=np.float32)[:, None], (CHAINS, width)) + np.float32(seed)


def settled(seed: int) -> Any:
    """Positions of the net that a chain in float32 has come to."""
    sampler = _net("fp32.32", densities.prior(Key(seed).fold_in(7), CHAINS), seed, NET_LEAPFROG)
    sampler.run(50)
    return sampler.positions


def _net(precision: str, start: Any, seed: int, leapfrog: int, jitter: float = 0.1) -> Hmc:
    data = densities.regression_data(Key(0))
    return Hmc(
        densities.regression, start, *data, leapfrog=leapfrog, step_size=NET_STEP, scales=densities.prior_scales(),
        jitter=jitter, precision=precision, key=seed,
    )  # fmt: skip


def measure(seeds: Sequence[int], share: float, progress: Progress) -> Measured:
    """Everything, for every precision and seed."""
    draws, few = max(8, round(share * DRAWS)), max(8, round(share * NET_DRAWS))
    starts = {seed: settled(seed) for seed in seeds}
    found: dict[str, dict[str, list[Any]]] = {"gaussian": {}, "logistic": {}, "net": {}, "energy": {}}
    for precision in PRECISIONS:
        for density in ("gaussian", "logistic"):
            found[density][precision] = [sampled(density, precision, draws, seed) for seed in seeds]
        net = [_net(precision, starts[seed], seed, NET_LEAPFROG).run(few) for seed in seeds]
        found["net"][precision] = net
        found["energy"][precision] = [
            _net(precision, starts[seed], seed, LONG, jitter=0).run(1).energy_error[0] for seed in seeds
        ]
        progress(
            f"{precision}: the net's acceptance {_acceptance(net)}, {_sizes(net)} effective draws of {few * CHAINS}"
        )
    exact = found["energy"][EXACT]
    off = {
        precision: [float(np.abs(one - other).max()) for one, other in zip(rows, exact, strict=True)]
        for precision, rows in found["energy"].items()
    }
    start = starts[seeds[0]]
    long, short = (sum(1 for _ in equations_of(_net(MACHINE, start, 0, n).block)) for n in (LONG, SHORT))
    return Measured(found["gaussian"], found["logistic"], found["net"], off, (long, short))


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(found: Measured) -> list[Finding]:
    """The findings in what was measured."""
    normal = densities.Known(densities.CENTRES, densities.DEVIATIONS.astype(np.float64) ** 2)
    answer = densities.logistic_answer()
    gaussian = {name: _off(chains, normal) for name, chains in found.gaussian.items()}
    logistic = {name: _off(chains, answer) for name, chains in found.logistic.items()}
    net, exact = found.net[MACHINE], found.net[EXACT]
    of_gaussian, of_logistic, of_one = (errors_allowed(count) for count in (2 * normal.mean.size, 4, 1))
    errors, narrow = found.energies, found.energies["fp16.16/nearest"]
    apart = _apart(net, exact)
    return [
        Finding(
            f"FP32.32: means and variances of a Gaussian are right (all {2 * normal.mean.size} within "
            f"{of_gaussian:.1f} standard errors: chance in one case of a hundred)",
            _by_name(gaussian),
            gaussian[MACHINE] <= of_gaussian,
        ),
        Finding(
            f"FP32.32: so are those of a logistic regression, beside a sum on a grid (all 4 within {of_logistic:.1f})",
            _by_name(logistic),
            logistic[MACHINE] <= of_logistic,
        ),
        Finding(
            f"FP32.32: the net's trajectories are accepted as in float64 (within {of_one:.1f} standard errors)",
            "; ".join(f"{name} {_acceptance(chains)}" for name, chains in found.net.items()),
            apart <= of_one,
        ),
        Finding(
            f"one trajectory of {LONG:,} steps: FP32.32's energy is float64's to a tenth of a nat, FP16.16's is not",
            "; ".join(f"{name} off by {spread(off)}" for name, off in errors.items() if name != EXACT),
            max(errors[MACHINE]) < 0.1 < min(narrow),
        ),
        Finding(
            f"{LONG:,} leapfrog steps are a loop on the device: the program of {SHORT} steps",
            f"{found.equations[0]} equations beside {found.equations[1]}",
            found.equations[0] == found.equations[1],
        ),
    ]


def errors_allowed(figures: int) -> float:
    """How many standard errors the farthest of so many right figures is off, but for a chance of CHANCE."""
    return NormalDist().inv_cdf(1 - CHANCE / (2 * figures))


def _off(chains: Sequence[Chains], known: densities.Known) -> float:
    """Of all elements' means and variances the farthest from what they are, over all seeds, in standard errors."""
    most = 0.0
    for name, right in zip(("mean", "variance"), known, strict=True):
        own = np.array([getattr(each, name)() for each in chains])
        error = {"mean": "standard_error", "variance": "variance_error"}[name]
        errors = np.array([getattr(each, error)() for each in chains])
        # Seeds are independent: their mean, and the error of that.
        together = np.sqrt((errors**2).sum(axis=0)) / len(chains)
        most = max(most, float(np.max(np.abs(own.mean(axis=0) - right) / together)))
    return most


def _apart(one: Sequence[Chains], other: Sequence[Chains]) -> float:
    """Of two acceptances, in standard errors of their difference."""
    pairs = [[(each.acceptance, each.acceptance_error) for each in chains] for chains in (one, other)]
    means = [np.mean([a for a, _ in pair]) for pair in pairs]
    errors = [np.sqrt(sum(e**2 for _, e in pair)) / len(pair) for pair in pairs]
    return float(abs(means[0] - means[1]) / np.hypot(*errors))


def _by_name(off: Mapping[str, float]) -> str:
    return "; ".join(f"{name} {value:.1f}" for name, value in off.items())


def _acceptance(chains: Sequence[Chains]) -> str:
    return spread([each.acceptance for each in chains])


def _sizes(chains: Sequence[Chains]) -> str:
    """Effective sample sizes of the log density, the slowest of what is looked at, of all chains together."""
    return spread([each.effective_draws for each in chains], 0)


HMC = Reproduction("hmc", "sampling in float32 on the device", "Graphcore's talk at Argonne: HMC of a dense net", run)
