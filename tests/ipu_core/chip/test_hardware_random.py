"""The tiles' generator against the vectors of Graphcore's own test, from a GC2 and from its simulator."""

import numpy as np
import pytest

from ipu_core.chip.hardware_random import (
    WARM_UP_2019,
    WorkerState,
    float32_to_half,
    half_from_bits,
    outputs,
    replica_seed,
    set_seed,
    step,
    write_prng_seed,
)
from ipu_core.errors import Unvalidated
from lowprec import Xoroshiro128aox

VECTORS = {  # PopLibs history, a test of 2019: counts of 1025 among N conversions of 1024 + float32(f * 0.1f), f = 0..9
    "hardware": (1, 10000, [0, 997, 1984, 3007, 4051, 5091, 6072, 7047, 8080, 9028]),
    "simulator": (0, 100, [0, 12, 19, 29, 36, 46, 54, 64, 72, 84]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_conversion_reproduces_the_published_counts(name: str) -> None:
    worker, n, expected = VECTORS[name]
    state = set_seed([0x55555555, 0x55555555], 0, 0, worker, warm_up=WARM_UP_2019)
    values = np.float32(1024) + np.arange(10, dtype=np.float32) * np.float32(0.1)
    drawn = outputs(state, n)[1]  # every value starts from the seed, so all meet the same draws
    halves = half_from_bits(values[:, None], drawn)
    assert np.isin(halves, [1024, 1025]).all()
    assert (halves == 1025).sum(axis=1).tolist() == expected


def test_the_newer_warm_up_gives_other_counts() -> None:
    worker, n, expected = VECTORS["simulator"]
    drawn = outputs(set_seed([0x55555555, 0x55555555], 0, 0, worker), n)[1]
    values = np.float32(1024) + np.arange(10, dtype=np.float32) * np.float32(0.1)
    assert (half_from_bits(values[:, None], drawn) == 1025).sum(axis=1).tolist() != expected


def test_first_outputs_of_the_generator() -> None:
    state = WorkerState(np.uint64(1)[None], np.uint64(0)[None])
    seen = []
    for _ in range(4):
        state, output = step(state)
        seen.append(int(output[0]))
    assert seen == [0x1, 0x80001000004001, 0x18406018000121, 0x8080563010444126]


def test_seeds_of_tiles_and_workers() -> None:
    state = set_seed([0x11111111, 0x22222222], 0x0000FFFF, [[0], [3]], [0, 5], warm_up=0)
    assert state.s0.shape == (2, 2)
    assert {hex(int(word)) for word in state.s0.ravel()} == {"0x2222222211111111"}
    assert [hex(int(word)) for word in state.s1.ravel()] == [
        "0x5555aaaaaaaaaaa0",
        "0x5555aaaaaaaaaaa5",
        "0x5555aaaaaaaaaa90",
        "0x5555aaaaaaaaaa95",
    ]
    with pytest.raises(ValueError, match="two 32-bit words"):
        set_seed([1], 0, 0, 0)


def test_writing_the_seed_register() -> None:
    state = write_prng_seed(0x80000001)
    assert hex(int(state.s0)) == "0x7ffffffe80000001"
    assert hex(int(state.s1)) == "0xffffd00000002fff"


def test_many_workers_equal_the_generator_of_one() -> None:
    state = set_seed([7, 8], 9, np.arange(3)[:, None], np.arange(6))
    one = Xoroshiro128aox.for_tile((7, 8), modifier=9, tile=2, worker=5)
    assert (int(state.s0[2, 5]), int(state.s1[2, 5])) == (one.s0, one.s1)
    _, drawn = outputs(state, 3)
    assert drawn[:, 2, 5].tolist() == one.draw(6)[::2].tolist()


def test_replica_seeds() -> None:
    assert replica_seed((0xFFFFFFFF, 7), 3, identical=True) == (0xFFFFFFFF, 7)
    assert replica_seed((0xFFFFFFFF, 7), 1, identical=False) == (0, 8)
    with pytest.raises(ValueError, match="replica"):
        replica_seed((1, 2), -1, identical=False)


def test_representable_values_never_move_and_special_ones_are_the_machines() -> None:
    state = set_seed([1, 2], 0, np.arange(8)[:, None], np.arange(6))
    values = np.array([0.0, -0.0, 1.0, -1.5, 65504.0, 70000.0, np.inf, -np.inf, np.nan], np.float32)
    after, halves = float32_to_half(np.broadcast_to(values[:, None, None], (9, 8, 6)), state)
    expected = np.array([0.0, -0.0, 1.0, -1.5, 65504, 65504, 65504, -65504, np.nan], np.float16)
    np.testing.assert_array_equal(halves, np.broadcast_to(expected[:, None, None], (9, 8, 6)))
    assert np.signbit(halves[1]).all()
    assert (after.s0 != state.s0).all()


def test_the_law_is_the_discarded_fraction() -> None:
    values = np.full((400, 64, 6), np.float32(2.0 + 2.0**-9 * 0.25))
    _, halves = float32_to_half(values, set_seed([3, 4], 9, np.arange(64)[:, None], np.arange(6)))
    n, up = halves.size, int((halves > 2).sum())
    assert abs(up - n / 4) < 5 * np.sqrt(n * 3 / 16)


def test_subnormal_results_warn() -> None:
    with pytest.warns(Unvalidated, match="subnormals"):
        halves = half_from_bits(np.float32([2.0**-24, 1.5 * 2.0**-24]), np.array([0, 4096], np.uint64))
    assert halves.tolist() == [2.0**-24, 2.0**-23]
