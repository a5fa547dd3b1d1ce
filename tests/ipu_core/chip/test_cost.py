"""Cycle formulas: the published estimators' own values, and the peak rates they approach."""

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget

GC200 = Target("gc200")


def test_amp_workers_follow_the_published_table() -> None:
    assert cost.amp_worker(np.arange(5), 4).tolist() == [21, 32, 41, 38, 42]
    assert cost.amp_worker(np.arange(1, 5), 8).tolist() == [47, 46, 46, 54]


@pytest.mark.parametrize(
    "target, operands, partials, units, load",
    [
        ("gc200", "float16", "float16", 16, 32),
        ("gc200", "float16", "float32", 8, 16),
        ("gc200", "float32", "float32", 16, 32),
        ("gc2", "float16", "float16", 8, 16),
        ("c600", "float8_e4m3fnuz", "float16", 16, 32),
    ],
)
def test_one_pass_of_the_unit(target: str, operands: str, partials: str, units: int, load: int) -> None:
    shape = cost.amp_shape(Target(target), operands, partials)
    assert (shape.units, shape.load_cycles) == (units, load)


def test_a_mode_the_chip_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedByTarget):
        cost.amp_shape(Target("c600"), "float32", "float32")
    slow = Target("gc200", macs=(("float16", "float16", 3),))
    with pytest.raises(UnsupportedByTarget, match=r"gc200 with 3 multiply-accumulates .* takes at least 4"):
        cost.amp_shape(slow, "float16", "float16")
    assert cost.amp_shape(Target("gc200", macs=(("float16", "float16", 4),)), "float16", "float16").units == 1


@pytest.mark.parametrize("operands, partials", [("float16", "float16"), ("float16", "float32"), ("float32", "float32")])
def test_large_products_approach_the_peak_and_never_pass_it(operands: str, partials: str) -> None:
    shape = cost.amp_shape(GC200, operands, partials)
    rate = [
        m * k * n / cost.matmul(GC200, m, k, n, shape=shape, group=16) / GC200.macs_per_cycle(operands, partials)
        for m, k, n in ((6, 16, 16), (60, 256, 64), (600, 1024, 256), (6000, 4096, 256))
    ]
    assert rate == sorted(rate)
    assert 0.98 < rate[-1] < 1


def test_the_supervisors_formula_by_hand() -> None:
    shape = cost.amp_shape(GC200, "float16", "float16")
    # m = 60: 10 positions a worker, 26 + 4*10 = 66; two passes over k, one over n
    inner, first = 6 * (66 - 7), 6 * 66
    outer = 50 + 6 * (7 + 3 * 1) + 13 + (15 + (19 + (6 + 32 + inner))) + 11 + (18 + (7 + 32 + first))
    assert cost.matmul(GC200, 60, 32, 16, shape=shape, group=16) == outer


def test_chains_that_go_on_have_no_zeroing_pass() -> None:
    shape = cost.amp_shape(GC200, "float16", "float16")

    def cycles(k: int, goes_on: bool) -> int:
        return int(cost.matmul(GC200, 60, k, 16, shape=shape, group=16, goes_on=goes_on))

    one_more = cycles(48, False) - cycles(32, False)
    assert cycles(48, True) - cycles(32, True) == one_more
    assert cycles(32, True) - cycles(32, False) == (15 + 19 + 6 + 32 + 6 * 59) - (11 + 18 + 7 + 32 + 6 * 66)


def test_smaller_groups_take_more_passes() -> None:
    shape = cost.amp_shape(GC200, "float16", "float16")
    cycles = [int(cost.matmul(GC200, 60, 256, 16, shape=shape, group=group)) for group in (1, 4, 16, 64)]
    assert cycles[0] > cycles[1] > cycles[2] == cycles[3]


def test_elementwise_casts_and_sums() -> None:
    assert cost.elementwise(GC200, "add", 240, 2) == 6 * (20 + 10)
    assert cost.elementwise(GC200, "add", 240, 4) == 6 * (20 + 20)
    assert cost.elementwise(GC200, "exp", 240, 4) > cost.elementwise(GC200, "add", 240, 4)
    assert cost.cast(GC200, 240, 4) == 6 * (26 + 20)
    assert cost.reduce(GC200, 8, 48, 2) == 6 * (20 + 2 * (3 + 8)) + 33
    assert cost.reduce(GC200, 6000, 1, 2) < 6 * 6000 / 4
    # rows whose terms lie together: a worker has three of 17 rows, or a sixth of each of two
    assert cost.reduce(GC200, 512, 17, 2, together=True) == 6 * (20 + 3 * (12 + 128)) + 33
    assert cost.reduce(GC200, 768, 2, 2, together=True) == 6 * (20 + 2 * (12 + 32) + 1 * (3 + 6)) + 33
    assert cost.local_copy(GC200, np.array([0, 1, 80])).tolist() == [0, 121, 130]
    with pytest.raises(ValueError, match=r"no cycles for operation 'mul'; there are .*multiply"):
        cost.elementwise(GC200, "mul", 1, 2)


def test_formulas_take_arrays() -> None:
    sizes = np.array([1, 7, 64])
    shape = cost.amp_shape(GC200, "float16", "float16")
    together = cost.matmul(GC200, sizes, 32, 16, shape=shape, group=16)
    assert together.tolist() == [int(cost.matmul(GC200, m, 32, 16, shape=shape, group=16)) for m in sizes]
