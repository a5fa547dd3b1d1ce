"""Targets: the published peaks follow from the figures, and what is not known is refused."""

import dataclasses

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget

PEAKS = [  # published FLOP/s; the data sheets round to two or three digits
    ("gc2", "float16", "float16", 124.5e12),
    ("gc2", "float32", "float32", 31.1e12),
    ("gc200", "float16", "float16", 250e12),
    ("gc200", "float16", "float32", 125e12),
    ("gc200", "float32", "float32", 62.5e12),
    ("bow", "float16", "float16", 350e12),
    ("c600", "float16", "float16", 280e12),
    ("c600", "float8_e4m3fnuz", "float16", 560e12),
]


@pytest.mark.parametrize(("name", "operands", "partials", "published"), PEAKS)
def test_peak_rates_follow_from_the_figures(name: str, operands: str, partials: str, published: float) -> None:
    assert Target(name).peak_flops(operands, partials) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", ["gc2", "gc200", "bow"])
def test_bandwidths_follow_from_the_figures(name: str) -> None:
    target = Target(name)
    assert target.sram_bandwidth == pytest.approx(target.published_sram_bandwidth, rel=0.05)
    assert target.exchange_bandwidth == pytest.approx({"gc2": 8e12, "gc200": 8e12, "bow": 11e12}[name], rel=0.03)


def test_memory_of_the_chips() -> None:
    assert Target("gc2").memory == 304 * 2**20
    assert Target().memory == 897 * 2**20


def test_missing_figures_are_refused() -> None:
    with pytest.raises(UnsupportedByTarget, match="c600 has no figure for float32 x float32"):
        Target("c600").peak_flops("float32", "float32")
    with pytest.raises(UnsupportedByTarget, match="float16 x float16 into float16"):
        Target("c600").macs_per_cycle("float16", "float32")


def test_bad_targets_name_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="gc2, gc200, bow, c600"):
        Target("gc300")
    with pytest.raises(TypeError, match="no figure 'tile'"):
        Target("gc200", tile=4)
    with pytest.raises(ValueError, match="tiles must be positive, not 0"):
        Target("gc200", tiles=0)


@pytest.mark.parametrize(
    ("figures", "kind", "words"),
    [
        ({"tiles": 1.5}, TypeError, "tiles must be an integer, not 1.5"),
        ({"tiles": True}, TypeError, "tiles must be an integer, not True"),
        ({"tiles": "4"}, TypeError, "tiles must be an integer, not '4'"),
        ({"clock": "fast"}, TypeError, "clock must be a number, not 'fast'"),
        ({"clock": float("nan")}, ValueError, "clock must be positive, not nan"),
        ({"exchange_bytes_per_cycle": 0}, ValueError, "exchange_bytes_per_cycle must be positive, not 0"),
        ({"sync_cycles": -1}, ValueError, "sync_cycles must be 0 or positive, not -1"),
        ({"tiles": 10**9}, ValueError, "tiles must be at most 1,048,576, not 1000000000"),
        ({"tiles_per_supertile": 3}, ValueError, "tiles_per_supertile must be 1 or 2, not 3"),
        ({"macs": 3}, TypeError, "macs must be"),
        ({"macs": (("float16", "float16", 0),)}, TypeError, "macs must be"),
    ],
)
def test_figures_of_another_kind_are_refused(figures: dict[str, object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Target("gc200", **figures)


def test_figures_become_plain_numbers() -> None:
    target = Target("gc200", tiles=np.int64(4), clock=10**9, sync_cycles=0, macs=[["float16", "float16", 64]])
    assert type(target.tiles) is int
    assert type(target.clock) is float
    assert target == Target("gc200", tiles=4, clock=1e9, sync_cycles=0, macs=(("float16", "float16", 64),))
    assert len({target}) == 1


def test_figures_can_be_replaced_and_targets_compare() -> None:
    assert Target("gc200", tiles=4).tiles == 4
    assert dataclasses.replace(Target("bow"), clock=1e9).clock == 1e9
    assert Target("gc200") == Target() != Target("gc200", tiles=4)
    assert hash(Target()) == hash(Target("gc200"))


def test_transfer_cycles() -> None:
    assert Target().transfer_cycles(64, 64e9) == 2


def test_the_adder_is_a_named_switch() -> None:
    assert Target("gc200").adder == "sequential"
    assert Target("gc200", adder="dot4").adder == "dot4"
    with pytest.raises(ValueError, match="unknown adder 'tree'; it is one of sequential, dot4, pairwise"):
        Target("gc200", adder="tree")
    with pytest.raises(ValueError, match="unknown adder 'aligned'"):
        Target("gc200", adder="aligned")
