"""Hamiltonian Monte Carlo: dynamics, acceptance, adaptation, what chains say, and going on where it stopped."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Hmc
from ipu_core.ir.bodies import equations_of
from ipu_core.reproduce import densities, sampled
from ipu_core.reproduce.sampled import HMC
from ipu_core.sampling.adaptation import DualAveraging, scales_of, windows
from ipu_core.sampling.chains import Chains

WIDTHS = np.array([0.5, 2.0, 1.0], np.float32)
START = {"a": np.ones((3, 2), np.float32), "b": np.zeros((3,), np.float32)}


def density(positions: Any) -> Any:
    """Independent normal numbers of the first two WIDTHS and of the third."""
    a = positions["a"] * (1 / WIDTHS[:2])
    return -0.5 * (a * a).sum(axis=1) - 0.5 * positions["b"] * positions["b"]


def by_hand(q: Any, z: Any, step: float, scales: Any, leapfrog: int) -> tuple[Any, Any]:
    """Leapfrog steps of `density` in plain float64, of flat positions (chains, 3)."""

    def slope(x: Any) -> Any:
        return -x / WIDTHS.astype(np.float64) ** 2

    for _ in range(leapfrog):
        z = z + 0.5 * step * scales * slope(q)
        q = q + step * scales * z
        z = z + 0.5 * step * scales * slope(q)
    return q, z


def flat(positions: Any) -> Any:
    return np.concatenate([positions["a"], positions["b"][:, None]], axis=1).astype(np.float64)


def test_a_trajectory_is_that_of_plain_leapfrog_steps() -> None:
    scales = {"a": np.array([0.5, 2], np.float32), "b": np.array(1.5, np.float32)}
    sampler = Hmc(density, START, leapfrog=7, step_size=0.3, scales=scales, precision="float64", key=3)
    given = sampler._given(2**32)  # of the first draw
    z = flat(given["momentum"])
    q, end = by_hand(flat(START), z, float(given["step"]), np.array([0.5, 2, 1.5]), 7)

    def energy(q: Any, z: Any) -> Any:
        return 0.5 * ((q / WIDTHS) ** 2).sum(axis=1) + 0.5 * (z**2).sum(axis=1)

    grown = energy(q, end) - energy(flat(START), z)
    chains = sampler.run(1)
    np.testing.assert_allclose(chains.energy_error[0], grown, atol=1e-12)
    np.testing.assert_allclose(chains.accept[0], np.exp(np.minimum(-grown, 0)), atol=1e-12)
    taken = given["uniform"] < np.exp(np.minimum(-grown, 0))
    np.testing.assert_allclose(flat(sampler.positions), np.where(taken[:, None], q, flat(START)), atol=1e-12)
    np.testing.assert_allclose(chains.log_density[0], -0.5 * ((flat(sampler.positions) / WIDTHS) ** 2).sum(axis=1))


def test_what_is_not_accepted_stays_and_no_number_is_never_accepted() -> None:
    far = Hmc(density, START, leapfrog=5, step_size=40.0, jitter=0, key=1)
    chains = far.run(4)
    assert chains.divergences == 12
    assert chains.acceptance == 0
    assert all(np.array_equal(far.positions[name], START[name]) for name in START)
    assert np.isnan(Hmc(density, START, leapfrog=60, step_size=1e9).run(1).energy_error).all()


def test_the_step_forward_and_back_is_the_identity_but_for_rounding() -> None:
    """Leapfrog steps can be undone by turning momenta round, which is why acceptance is all that is needed."""
    scales = np.ones(3)
    q, z = by_hand(flat(START), np.ones((3, 3)), 0.2, scales, 50)
    back, turned = by_hand(q, -z, 0.2, scales, 50)
    np.testing.assert_allclose(back, flat(START), atol=1e-12)
    np.testing.assert_allclose(turned, -np.ones((3, 3)), atol=1e-12)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "fp16.16/nearest", "fp8"])
def test_both_engines_give_the_same_bits(precision: str) -> None:
    runs = [
        Hmc(density, START, leapfrog=4, step_size=0.3, precision=precision, engine=engine)
        for engine in ("direct", "tiles")
    ]
    direct, tiles = (run.run(5) for run in runs)
    assert all(np.array_equal(direct.draws[name], tiles.draws[name]) for name in START)
    assert np.array_equal(direct.energy_error, tiles.energy_error)
    assert runs[0].profile is None
    assert runs[1].profile is not None
    assert runs[1].profile.cycles > 0


def test_positions_are_kept_in_the_format_of_weights() -> None:
    half = Hmc(density, START, leapfrog=4, precision="fp16.16/stochastic").run(20).draws["a"]
    assert np.array_equal(half, half.astype(np.float16).astype(np.float32))
    wide = Hmc(density, START, leapfrog=4, precision="fp16.16/stochastic/weights=float32").run(20).draws["a"]
    assert not np.array_equal(wide, wide.astype(np.float16).astype(np.float32))


def test_a_thousand_steps_are_the_program_of_two() -> None:
    counts = {n: sum(1 for _ in equations_of(Hmc(density, START, leapfrog=n).block)) for n in (2, 3, 1000)}
    assert len(set(counts.values())) == 1


def test_a_gaussian_and_a_logistic_regression_come_out_right() -> None:
    known = densities.Known(densities.CENTRES, densities.DEVIATIONS.astype(np.float64) ** 2)
    assert sampled._off([sampled.sampled("gaussian", "fp32.32", 600, 0)], known) < 3
    assert sampled._off([sampled.sampled("logistic", "fp32.32", 600, 0)], densities.logistic_answer()) < 3


def test_the_answer_of_the_logistic_regression_is_the_grids() -> None:
    coarse, fine = densities.logistic_answer(401), densities.logistic_answer(801)
    np.testing.assert_allclose(coarse.mean, fine.mean, rtol=1e-9)
    np.testing.assert_allclose(coarse.variance, fine.variance, rtol=1e-9)


# Adaptation


def test_warming_up_finds_the_scales_and_the_rate_of_acceptance() -> None:
    sampler = Hmc(density, START, leapfrog=4, step_size=0.01)
    sampler.warm_up(400, accept=0.8)
    assert abs(sampler.run(400).acceptance - 0.8) < 0.1
    np.testing.assert_allclose(sampler.scales["a"], WIDTHS[:2], rtol=0.2)
    np.testing.assert_allclose(sampler.scales["b"], 1, rtol=0.2)


def test_dual_averaging_comes_to_where_acceptance_is_the_rate() -> None:
    state = DualAveraging.begun(0.3, 0.8)
    for _ in range(300):
        state = state.after(math.exp(-math.exp(state.step)))  # falls with the step: 0.8 at 0.2231
    assert abs(math.exp(state.average) - 0.2231) < 0.02
    # by hand, as the paper has the first: mu - sqrt(1)/0.05 * (1/11) (0.8 - 0.5)
    assert abs(DualAveraging.begun(0.1, 0.8).after(0.5).step + 20 / 11 * 0.3) < 1e-12


def test_windows_of_scales_lie_behind_each_other() -> None:
    assert windows(400) == {120: 60, 220: 120, 320: 220}
    assert windows(10) == {}
    draws = [np.array([[1.0], [3.0]]), np.array([[1.0], [3.0]])]
    assert abs(float(scales_of(draws)[0]) - math.sqrt(4 / 9 * 4 / 3 + 5e-3 / 9)) < 0.004


# What chains say


def chains_of(draws: Any) -> Chains:
    zeros = np.zeros(draws.shape[:2])
    return Chains(draws, zeros, zeros, zeros, 1.0, np.ones(draws.shape[2:]), 1, "float64")


def test_effective_sample_sizes_of_what_is_known() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(4000, 4, 2))
    walk = np.empty_like(noise)
    walk[0] = noise[0]
    for i in range(1, len(noise)):  # its autocorrelation time is (1 + r) / (1 - r) = 3
        walk[i] = 0.5 * walk[i - 1] + noise[i]
    np.testing.assert_allclose(chains_of(noise).effective_sample_size(), 16000, rtol=0.08)
    np.testing.assert_allclose(chains_of(walk).effective_sample_size(), 16000 / 3, rtol=0.08)
    np.testing.assert_allclose(chains_of(walk).standard_error(), math.sqrt(4 / 3 * 3 / 16000), rtol=0.08)
    np.testing.assert_allclose(chains_of(noise).variance_error(), math.sqrt(2 / 16000), rtol=0.08)
    swings = chains_of(np.where(np.arange(4000)[:, None, None] % 2, noise, -walk))
    assert (swings.effective_sample_size() > 6000).all()


def test_chains_that_lie_apart_are_told() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(500, 3, 1))
    assert chains_of(noise).r_hat()[0] < 1.01
    apart = noise + np.arange(3)[:, None]
    assert chains_of(apart).r_hat()[0] > 1.3
    assert chains_of(apart).effective_sample_size()[0] < 20
    drift = noise + np.linspace(0, 4, 500)[:, None, None]  # halves of one chain differ
    assert chains_of(drift).r_hat()[0] > 1.3
    assert np.isnan(chains_of(np.zeros((100, 2, 1))).effective_sample_size()).all()


def test_the_table_names_every_part() -> None:
    words = str(Hmc(density, START, leapfrog=4, step_size=0.3).run(20))
    assert re.search(r"fp32\.32: 20 draws of 3 chains, 4 leapfrog steps of 0\.3, acceptance 0\.\d+ ± ", words)
    assert "\na " in words
    assert "\nb " in words


# Going on


def test_what_is_cut_off_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def made(**given: Any) -> Hmc:
        return Hmc(density, START, **{"leapfrog": 3, "step_size": 0.2, "precision": "fp16.16/stochastic", **given})

    whole = made()
    whole.warm_up(60)
    wanted = whole.run(20)

    def cut(done: int, of: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    parts = made()
    with pytest.raises(KeyboardInterrupt):
        parts.warm_up(60, progress=cut)
    parts.save(tmp_path / "a.npz")
    parts = made()
    parts.load(tmp_path / "a.npz")
    parts.warm_up(60)
    with pytest.raises(KeyboardInterrupt):
        parts.run(20, progress=cut)
    assert len(parts.so_far().draws["a"]) == 7
    parts.save(tmp_path / "a.npz")
    parts = made()
    parts.load(tmp_path / "a.npz")
    found = parts.run(20)
    assert parts.step_size == whole.step_size
    assert all(np.array_equal(found.draws[name], wanted.draws[name]) for name in START)
    assert np.array_equal(found.energy_error, wanted.energy_error)
    with pytest.raises(ValueError, match=r"of another sampler: leapfrog 3, here 4"):
        made(leapfrog=4).load(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="precision"):
        made(precision="fp32.32").load(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="another density"):
        Hmc(lambda q: density(q) * 2, START, leapfrog=3, precision="fp16.16/stochastic").load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"leapfrog": 0}, "leapfrog must be an integer of at least 1, not 0"),
        ({"step_size": 0}, "step_size must be a positive number, not 0"),
        ({"step_size": math.nan}, "step_size must be a positive number"),
        ({"jitter": 1}, r"jitter must be a share in \[0, 1\), not 1"),
        ({"precision": "unit-fp16"}, "unit scaling, which would change the density"),
        ({"precision": "float64", "engine": "tiles"}, "on no machine"),
        ({"scales": {"a": np.ones(3), "b": 1}}, r"scales must be positive numbers of shape \(2,\)"),
        ({"scales": {"a": np.zeros(2), "b": 1}}, "scales must be positive numbers"),
        ({"start": {"a": np.ones((3, 2)), "b": np.ones(2)}}, r"as its first axis, as many of them, not a \(3, 2\)"),
        ({"start": {"a": np.ones((3, 2), np.int32), "b": np.ones(3)}}, "start.a must be floats"),
        ({"start": {}}, "start holds no array"),
        ({"log_density": lambda q: density(q).sum()}, r"one number of each chain, shape \(3,\), not shape \(\)"),
        ({"log_density": lambda q: 1.0}, "not a float"),
        ({"start": {"a": np.full((3, 2), np.nan), "b": np.ones(3)}}, "start.a must hold finite numbers"),
        ({"start": {"a": np.ones((3, 0)), "b": np.ones(3)}}, "start.a must hold finite numbers, at least one of each"),
        ({"start": [[0.0, 0.0], [1.0, 1.0]]}, r"a list is a nest of parts: give np.array"),
        ({"start": {"a": np.ones((3, 2)) + 1j, "b": np.ones(3)}}, "start.a must be floats"),
    ],
)
def test_wrong_samplers_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Hmc(**{"log_density": density, "start": START, **given})


def test_densities_are_added_up_in_float32_whatever_the_precision() -> None:
    """A constant of a density changes nothing but what float32 loses of the energies, in halves too."""
    far = Hmc(lambda q: density(q) - np.float32(1e5), START, leapfrog=4, precision="fp16.16/stochastic").run(40)
    near = Hmc(density, START, leapfrog=4, precision="fp16.16/stochastic").run(40)
    assert (far.log_density < -9e4).all()
    assert abs(far.acceptance - near.acceptance) < 0.02


def test_a_density_without_a_value_is_said_where_it_is() -> None:
    def half(q: Any) -> Any:  # infinite for the chains that begin below 0
        return np.log(np.maximum(q.sum(axis=1), 0.0))

    start = np.array([[1.0], [-1.0], [2.0], [-2.0]], np.float32)
    for run in (lambda s: s.warm_up(10), lambda s: s.run(3)):
        with pytest.raises(ValueError, match="infinite or no number where chains 1, 3 are"):
            run(Hmc(half, start))


def test_what_a_sampler_is_cannot_be_changed_under_it() -> None:
    sampler = Hmc(density, START, leapfrog=2)
    for name in ("leapfrog", "precision", "chains", "positions"):
        with pytest.raises(AttributeError):
            setattr(sampler, name, 1)
    sampler.positions["a"][:] = 7
    sampler.scales["a"][:] = 7
    assert np.array_equal(sampler.positions["a"], START["a"])
    with pytest.raises(ValueError, match="step_size must be a positive number, not -1"):
        sampler.step_size = -1
    sampler.step_size = 0.25
    assert sampler.run(2).step_size == 0.25
    with pytest.raises(ValueError, match="step_size can be set before run alone"):
        sampler.step_size = 0.5
    with pytest.raises(ValueError, match="scales can be set before run alone"):
        sampler.scales = START


def test_a_warm_up_is_of_so_many_draws() -> None:
    sampler = Hmc(density, START, leapfrog=2)
    sampler.warm_up(20)
    step = sampler.step_size
    with pytest.raises(ValueError, match="begun with 20 draws, whose windows are shares of them, not 40"):
        sampler.warm_up(40)
    sampler.run(3)
    sampler.warm_up(20)  # a script that is run again
    assert sampler.step_size == step


def test_what_diverged_is_not_in_the_median() -> None:
    words = str(Hmc(density, START, leapfrog=60, step_size=1e9).run(3))
    assert "energy off by more, 9 diverged" in words


def test_wrong_calls_are_refused() -> None:
    sampler = Hmc(density, START, leapfrog=2)
    with pytest.raises(ValueError, match="no draws yet"):
        sampler.so_far()
    with pytest.raises(ValueError, match=r"rate in \(0, 1\)"):
        sampler.warm_up(10, accept=1.0)
    sampler.run(3)
    with pytest.raises(ValueError, match="would throw some away"):
        sampler.run(2)
    with pytest.raises(ValueError, match="warm_up comes before run"):
        sampler.warm_up(5)


# The reproduction


def test_the_net_is_that_of_the_talk() -> None:
    x, y = densities.regression_data(sampled.Key(0))
    assert x.shape == (densities.ROWS, 22)
    assert y.shape == (densities.ROWS, 1)
    layers = densities.prior(sampled.Key(1), 2)
    assert [layer["weight"].shape for layer in layers] == [(2, 22, 40), (2, 40, 40), (2, 40, 1)]
    hidden = np.tanh(x @ layers[0]["weight"][1] + layers[0]["bias"][1])
    hidden = np.tanh(hidden @ layers[1]["weight"][1] + layers[1]["bias"][1])
    wanted = hidden @ layers[2]["weight"][1] + layers[2]["bias"][1]
    np.testing.assert_allclose(np.asarray(densities.network(layers, x))[1], wanted, atol=1e-5)


@pytest.mark.slow
def test_sampling_as_published() -> None:
    assert [f.holds for f in HMC.run((0, 1, 2), 1.0, lambda words: None)] == [True] * 5
