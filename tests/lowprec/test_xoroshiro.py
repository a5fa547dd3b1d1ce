"""The IPU's generator: first outputs, seeding, jump, and the published counts of a hardware test."""

from __future__ import annotations

import numpy as np
import pytest

from lowprec import Xoroshiro128aox
from lowprec.xoroshiro import MASK, register_state, step, tile_state

GC2 = (0x55555555, 0x55555555)


def test_first_outputs() -> None:
    want = [0x1, 0x80001000004001, 0x18406018000121, 0x8080563010444126]
    assert [int(v) for v in Xoroshiro128aox(1, 0).draw(4)] == want


def test_step_works_on_arrays_of_states() -> None:
    s0, s1 = np.arange(1, 9, dtype=np.uint64), np.full(8, MASK, np.uint64)
    out, n0, n1 = step(s0, s1)
    for i in range(8):
        assert (int(out[i]), int(n0[i]), int(n1[i])) == step(int(s0[i]), int(s1[i]))


def test_seeding() -> None:
    s0, s1 = tile_state((1, 2), 3, tile=5, worker=4)
    assert s0 == 2 << 32 | 1
    assert s1 == (3 ^ 0x55555555) << 32 | ((5 << 4) ^ 0xAAAAAAA0) | 4
    s0, s1 = register_state(0x80000001)
    assert s0 == 0x7FFFFFFE_80000001
    assert s1 == (((0x7FFFFFFE << 13) & 0xFFFFFFFF | 0x80000001 >> 19) << 32) | (
        (0x80000001 << 13) & 0xFFFFFFFF | 0x7FFFFFFE >> 19
    )


def test_jump_is_two_to_the_64_steps() -> None:
    """The transition is linear over bits, so its matrix squared 64 times is the jump."""

    def advance(state: int) -> int:
        _, s0, s1 = step(state & MASK, state >> 64)
        return s0 | s1 << 64

    def apply(columns: list[int], state: int) -> int:
        result = 0
        for i, column in enumerate(columns):
            result ^= column if state >> i & 1 else 0
        return result

    columns = [advance(1 << i) for i in range(128)]
    for _ in range(64):
        columns = [apply(columns, column) for column in columns]
    generator = Xoroshiro128aox(0x0123456789ABCDEF, 0xFEDCBA9876543210)
    want = apply(columns, generator.s0 | generator.s1 << 64)
    before = generator.copy()
    generator.jump()
    assert generator.s0 | generator.s1 << 64 == want
    assert generator != before


@pytest.mark.parametrize(
    "worker, trials, counts",
    [
        (1, 10000, [0, 997, 1984, 3007, 4051, 5091, 6072, 7047, 8080, 9028]),
        (0, 100, [0, 12, 19, 29, 36, 46, 54, 64, 72, 84]),
    ],
)
def test_published_counts_of_stochastic_rounding(worker: int, trials: int, counts: list[int]) -> None:
    """PopLibs' own test of 2019, on a GC2 (worker 1) and on its simulator (worker 0): 1024 + f/10 to half, N times."""
    ups = []
    for f in range(10):
        generator = Xoroshiro128aox.for_tile(GC2, worker=worker, warm_up=10)
        x = np.float32(1024) + np.float32(f) * np.float32(0.1)
        discarded = int(x.view(np.uint32)) & 0x1FFF
        draws = generator.draw(2 * trials)[::2] & np.uint64(0x1FFF)
        ups.append(int(np.count_nonzero(draws + np.uint64(discarded) >= 0x2000)))
    assert ups == counts


def test_bad_states() -> None:
    with pytest.raises(ValueError, match=r"\(0, 0\) never leaves itself"):
        Xoroshiro128aox(0, 0)
    with pytest.raises(ValueError, match="state word"):
        Xoroshiro128aox(1 << 64, 0)
    with pytest.raises(ValueError, match="tile must be in"):
        tile_state((0, 0), 0, tile=-1, worker=0)
    with pytest.raises(ValueError, match="PRNG_SEED"):
        register_state(1 << 32)


def test_it_prints_and_does_not_hash() -> None:
    generator = Xoroshiro128aox(16, 1)
    assert repr(generator) == "Xoroshiro128aox(0x10, 0x1)"
    assert generator == generator.copy()
    with pytest.raises(TypeError):
        hash(generator)
