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


RATES = [  # bytes per second each way: what the port can do, what the machine gives, and of its streaming memory
    ("gc2", 64e9 / 2, 64e9 / 2 / 2, 16e9, "16 GB/s each way, its machine's share"),  # two chips share an x16
    ("gc200", 64e9 / 2, 100e9 / 8 / 4, 20e9 / 4, "3.125 GB/s each way, its machine's share"),
    ("bow", 64e9 / 2, 100e9 / 8 / 4, 20e9 / 4, "3.125 GB/s each way, its machine's share"),
    ("c600", 64e9 / 2, 64e9 / 2, 32e9, "32 GB/s each way, all that the chip's port can do"),
]


@pytest.mark.parametrize(("name", "port", "share", "streaming", "words"), RATES)
def test_rates_are_each_way_and_the_smaller_counts(
    name: str, port: float, share: float, streaming: float, words: str
) -> None:
    target = Target(name)
    assert (target.host_port, target.host_share, target.streaming_share) == (port, share, streaming)
    assert target.host_bandwidth == min(port, share)
    assert target.streaming_bandwidth == min(port, streaming)
    assert target.host_rate == words
    assert target.link_bandwidth == (0 if name == "c600" else 320e9 / 2)


def test_whichever_of_port_and_share_is_smaller_counts_and_is_named() -> None:
    narrow = Target("gc200", host_port=1e9)
    assert (narrow.host_bandwidth, narrow.streaming_bandwidth) == (1e9, 1e9)
    assert narrow.host_rate == "1 GB/s each way, all that the chip's port can do"
    assert narrow.streaming_rate == "1 GB/s, all that the chip's port can do"
    wide = Target("gc200", host_share=12.5e9, streaming_share=64e9)
    assert wide.host_rate == "12.5 GB/s each way, its machine's share"
    assert (wide.streaming_bandwidth, wide.streaming_rate) == (32e9, "32 GB/s, all that the chip's port can do")
    with pytest.raises(TypeError, match="no figure 'host_bandwidth' any more"):
        dataclasses.replace(wide, host_bandwidth=1e9)


def test_streaming_memory_is_what_systems_have_and_more_by_keyword() -> None:
    assert [Target(name).streaming_memory for name in ("gc2", "gc200", "bow", "c600")] == [0, 32 * 10**9, 32 * 10**9, 0]
    assert Target("bow", streaming_memory=64_000_000_000).streaming_memory == 64e9


def test_clocks() -> None:
    assert [Target(name).clock for name in ("gc2", "gc200", "bow", "c600")] == [1.6e9, 1.325e9, 1.85e9, 1.486e9]


@pytest.mark.parametrize(
    ("name", "chips", "operands", "petaflops", "digits"),
    [  # peaks of whole systems by their data sheets, to the last digit
        ("gc200", 128, "float16", 31.955, 3),
        ("gc200", 128, "float32", 7.989, 3),
        ("bow", 256, "float16", 89.23, 2),
        ("bow", 256, "float32", 22.31, 2),
    ],
)
def test_clocks_give_the_peaks_of_systems(name: str, chips: int, operands: str, petaflops: float, digits: int) -> None:
    assert round(chips * Target(name).peak_flops(operands, operands) / 1e15, digits) == petaflops


def test_a_chip_may_have_fewer_tiles_than_it_has_and_all_of_them() -> None:
    for name in ("gc2", "gc200", "bow", "c600"):
        most = Target(name).tiles
        assert Target(name, tiles=most).tiles == most
        with pytest.raises(ValueError, match=f"all of a {name}, not {most + 1:,}"):
            Target(name, tiles=most + 1)


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
        ({"reorder_cycles": 1e18}, ValueError, "reorder_cycles must be at most a million cycles of an element, not 1e"),
        ({"reorder_cycles": 0}, ValueError, "reorder_cycles must be positive, not 0"),
        ({"exchange_bytes_per_cycle": 0}, ValueError, "exchange_bytes_per_cycle must be positive, not 0"),
        ({"sync_cycles": -1}, ValueError, "sync_cycles must be 0 or positive, not -1"),
        (
            {"tiles": 2944},
            ValueError,
            'at most 1,472, all of a gc200, not 2,944: more are several chips, a System, such as System."m2000',
        ),
        ({"tiles": 10**9}, ValueError, "tiles must be at most 1,472, all of a gc200, not 1,000,000,000"),
        ({"host_port": 0}, ValueError, "host_port must be positive, not 0"),
        ({"host_share": "half"}, TypeError, "host_share must be a number, not 'half'"),
        ({"streaming_share": -1.0}, ValueError, "streaming_share must be positive, not -1.0"),
        ({"host_bandwidth": 64e9}, TypeError, "no figure 'host_bandwidth' any more, but host_port .* and host_share"),
        ({"streaming_bandwidth": 2e10}, TypeError, "no figure 'streaming_bandwidth' any more, but streaming_share .*"),
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
