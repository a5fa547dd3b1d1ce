"""Random numbers on tiles: distributions, bits that depend on an element's index alone, cycles by hand."""

from typing import Any

import numpy as np
import pytest

from ipu_core import cost
from ipu_core.engine.engine import Engine
from ipu_core.engine.profile import Profile
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Program, Sequence
from ipu_core.hardware_random import HardwareRandom
from ipu_core.library.elementwise import add_array
from ipu_core.library.random import bernoulli, normal, uniform
from ipu_core.target import Target
from lowprec import Key, random_bits

SHAPE = (300, 200)


def drawn(build: Any, tiles: int = 64, key: int = 7, **how: Any) -> tuple[np.ndarray[Any, Any], Profile]:
    graph, programs = Graph(Target("gc200", tiles=tiles)), list[Program]()
    made = build(graph, SHAPE, programs, **how)
    kept = add_array(graph, made.format, SHAPE, "kept", temporary=False)
    engine = Engine(graph, Sequence(*programs, Copy(made, kept)), key=key)
    engine.run()
    return engine.read(kept), engine.profile()


def test_uniform_numbers_have_their_moments_and_bits() -> None:
    x, profile = drawn(uniform, low=-2.0, high=4.0, operation=3)
    assert x.min() >= -2
    assert x.max() <= 4
    assert x.mean() == pytest.approx(1, abs=4 * np.sqrt(3 / x.size))
    assert x.var() == pytest.approx(3, rel=0.02)
    assert np.histogram(x, 10, (-2, 4))[0] == pytest.approx(x.size / 10, rel=0.06)
    unit, _ = drawn(uniform, operation=3)
    words = random_bits(Key(7).fold_in(0).fold_in(3), SHAPE, 24)
    np.testing.assert_array_equal(unit.astype(np.float64), words / 2**24)
    each = -(-x.size // 64)
    assert profile.steps[0].account.compute_cycles <= cost.dropout(Target("gc200", tiles=64), each + 200, 4)


def test_normal_numbers_have_their_moments_and_tails() -> None:
    x, _ = drawn(normal, mean=1.0, deviation=2.0)
    z = (x.astype(np.float64) - 1) / 2
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert z.std() == pytest.approx(1, rel=0.01)
    assert (z**4).mean() == pytest.approx(3, rel=0.06)
    for edge, share in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        assert (abs(z) > edge).mean() == pytest.approx(share, abs=4 * np.sqrt(share / z.size))
    assert abs(z).max() < 5.78
    key = Key(7).fold_in(0).fold_in(0)  # of the first run, of the operation
    u, v = ((random_bits(key.fold_in(n), SHAPE, 24) + float(n == 0)) / 2**24 for n in (0, 1))
    np.testing.assert_allclose(z, np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_truth_values_have_their_probability(probability: float) -> None:
    x, _ = drawn(bernoulli, probability=probability, fmt="float16")
    assert set(np.unique(x)) <= {0, 1}
    assert x.mean(dtype=float) == pytest.approx(probability, abs=4 * np.sqrt(probability * (1 - probability) / x.size))


@pytest.mark.parametrize("build", [uniform, normal, bernoulli])
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_bits_do_not_depend_on_the_layout_but_on_key_and_operation(build: Any, fmt: str) -> None:
    x = drawn(build, fmt=fmt)[0]
    for tiles in (1, 7, 1472):
        np.testing.assert_array_equal(drawn(build, tiles, fmt=fmt)[0], x)
    for other in (drawn(build, fmt=fmt, operation=1)[0], drawn(build, key=8, fmt=fmt)[0]):
        assert (other != x).any()


def test_normal_cycles_by_hand() -> None:
    # 100 floats are 50 vectors of four cycles, and the workers' start
    assert cost.normal(Target("gc200"), 100, 4) == 4 * 50 + 22 * 6


@pytest.mark.parametrize(
    "build, wrong, message",
    [
        (uniform, {"low": 1.0, "high": 0.0}, "low <= high, not 1.0 and 0.0"),
        (normal, {"deviation": -1.0}, "at least 0, not -1.0"),
        (bernoulli, {"probability": 1.5}, r"in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_numbers_are_refused(build: Any, wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Graph(Target("gc200", tiles=4)), SHAPE, [], **wrong)


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
@pytest.mark.parametrize("build", [uniform, normal])
def test_the_tiles_own_generators_are_refused(build: Any) -> None:
    graph, programs = Graph(Target("gc200", tiles=4)), list[Program]()
    build(graph, SHAPE, programs)
    start = HardwareRandom((1, 2)).state(4, graph.target.workers)
    with pytest.raises(ValueError, match="drawn with a key, not by the tiles' own generators"):
        Engine(graph, Sequence(*programs), random=start).run()
