"""Systems: their sums follow from the chips, figures by keyword, what is refused."""

import dataclasses
import pickle
import warnings
from typing import Any

import pytest

from ipu_core import System, Target, Unvalidated
from ipu_core.chip.system import SYSTEMS, read_chips, read_system
from ipu_core.errors import UnsupportedByTarget

PEAKS = [  # chips and published PFLOP/s
    ("c2", 2, 0.249), ("m2000", 4, 1.0), ("pod4", 4, 1.0), ("pod16", 16, 4.0), ("pod64", 64, 16.0),
    ("pod128", 128, 32.0), ("pod256", 256, 64.0), ("bow-2000", 4, 1.4), ("bow-pod16", 16, 5.6), ("bow-pod32", 32, 11.2),
    ("bow-pod64", 64, 22.4), ("bow-pod128", 128, 44.8), ("bow-pod256", 256, 89.6), ("bow-pod512", 512, 179.2),
    ("bow-pod1024", 1024, 358.4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "chips", "peak"), PEAKS)
def test_sums_follow_from_the_chips(name: str, chips: int, peak: float) -> None:
    system = System(name)
    assert (system.name, system.chips) == (name, chips)
    assert system.peak_flops("float16", "float16") == pytest.approx(peak * 1e15, rel=0.01)
    for figure in ("memory", "streaming_memory", "streaming_bandwidth", "host_bandwidth", "sram_bandwidth",
                   "exchange_bandwidth", "link_bandwidth"):  # fmt: skip
        assert getattr(system, figure) == chips * getattr(system.target, figure)
    assert system.power == tuple(chips * watts for watts in system.target.power)
    assert (system.family, system.seconds(3e9)) == (system.target.family, system.target.seconds(3e9))


def test_every_name_is_tested() -> None:
    assert {name for name, _, _ in PEAKS} | {"good"} == set(SYSTEMS)


def test_published_links_hosts_and_racks() -> None:
    assert System("c2").memory == 608 * 2**20
    assert System("m2000").host_bandwidth == 100e9 / 8  # 100 Gb/s for four chips
    assert System("bow-2000").gateway_bandwidth == 2 * 100e9 / 8
    assert System("bow-pod64").gateway_share == 2 * 100e9 / 8 / 4
    assert [System(f"bow-pod{n}").racks for n in (16, 64, 128, 256, 1024)] == [1, 1, 2, 4, 16]
    # two links of ten, the planner's 128 Gibit/s times 0.85 each
    assert System("pod64").neighbour_bandwidth == pytest.approx(2 * 14.6e9, rel=1e-3)
    assert System(Target("c600")).neighbour_bandwidth == 0


def test_a_sync_across_chips_is_the_planner_s() -> None:
    pod = System("bow-pod128")
    assert [pod.sync_seconds(n) for n in (1, 4, 16)] == [0, pytest.approx(60e-9), pytest.approx(150e-9)]
    assert pod.sync_seconds() == pytest.approx(15e-9 * 33 * 2)
    with pytest.raises(ValueError, match="chips must be an integer of at most 128"):
        pod.sync_seconds(129)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bow-pod64/chips=4", System("bow-pod64", chips=4)),
        ("bow-pod64", System("bow-pod64")),
        ("bow-pod16/clock=1.5e9/sync_hop=0", System("bow-pod16", clock=1.5e9, sync_hop=0)),
        ("bow/tiles=736/adder=dot4", Target("bow", tiles=736, adder="dot4")),
        ("c600", Target("c600")),
        ("bow/chips=2", System("bow", chips=2)),
    ],
)
def test_chips_as_they_are_typed(text: str, meant: Target | System) -> None:
    assert read_chips(text) == meant
    assert read_system(text) == (meant if isinstance(meant, System) else System(meant.name, **meant.changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pod63/chips=4", "pod63/chips=4: unknown system 'pod63'"),
        ("pod64/chips=0", "pod64/chips=0: chips must be an integer of at least 1, not 0"),
        ("pod64/chips=2.0", "pod64/chips=2.0: chips must be an integer, not 2.0"),
        ("bow/tyles=3", "bow/tyles=3: System has no figure 'tyles'; it has target, chips"),
        ("bow/tiles=9999", "bow/tiles=9999: tiles must be at most 1,472"),
        ("bow/tiles", "bow/tiles: a figure is typed once, as in bow-pod64/chips=4, not as 'tiles'"),
        ("bow/=3", "not as '=3'"),
        ("bow/chips=2/chips=3", "not as 'chips=3'"),
        ("bow/name=c600", "not as 'name=c600'"),
    ],
)
def test_chips_that_are_typed_wrongly_are_refused(text: str, said: str) -> None:
    for read in (read_chips, read_system):
        with pytest.raises(ValueError, match=said):
            read(text)


def test_every_target_is_a_system_of_one() -> None:
    few = Target("gc200", tiles=4)
    one = System(few)
    assert (one.name, one.chips, one.racks, one.machine) == ("gc200", 1, 1, 1)
    assert one.peak_flops("float16", "float32") == few.peak_flops("float16", "float32")
    assert (one.memory, one.host_bandwidth) == (few.memory, few.host_bandwidth)
    assert System("bow") == System(Target("bow"))
    with pytest.raises(UnsupportedByTarget, match="no figure for float32"):
        System("c600").peak_flops("float32", "float32")


def test_any_figure_by_keyword_of_the_system_or_of_its_chips() -> None:
    pod = System("bow-pod16", clock=1e9, gateway_latency=2e-6, chips=8, streaming_memory=64 * 10**9)
    assert (pod.target, pod.gateway_latency, pod.chips) == (
        Target("bow", clock=1e9, streaming_memory=64 * 10**9), 2e-6, 8,
    )  # fmt: skip
    assert System("bow-pod16", target=Target("gc200"), clock=1e9).target == Target("gc200", clock=1e9)
    assert dataclasses.replace(pod, sync_hop=0) == System(
        "bow-pod16", target=pod.target, gateway_latency=2e-6, chips=8, sync_hop=0.0
    )
    assert pickle.loads(pickle.dumps(pod)) == pod
    assert len({pod, dataclasses.replace(pod)}) == 1


def test_the_good_computer_warns_and_reaches_what_was_announced() -> None:
    with pytest.warns(Unvalidated, match="a roadmap"):
        good = System("good")
    assert good.chips == 8192
    assert good.peak_flops("float16", "float16") > 10e18
    assert good.streaming_memory == pytest.approx(4e15, rel=0.01)
    assert good.streaming_bandwidth > 10e15
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        System("bow-pod1024")


@pytest.mark.parametrize(
    ("arguments", "changes", "error", "words"),
    [
        (("pod63",), {}, ValueError, "unknown system 'pod63'; valid systems are c2, m2000, bow-2000, pod4"),
        ((4,), {}, ValueError, "unknown system 4"),
        ((), {"chip": 2}, TypeError, "System has no figure 'chip'; it has target, chips, rack"),
        ((), {"chips": 0}, ValueError, "chips must be an integer of at least 1"),
        ((), {"chips": 1.5}, TypeError, "chips must be an integer"),
        ((), {"link_rate": 0}, ValueError, "link_rate must be positive"),
        ((), {"link_efficiency": 1.5}, ValueError, "link_efficiency must be a share"),
        ((), {"sync_hop": float("inf")}, ValueError, "sync_hop must be 0 or positive"),
        ((), {"gateway_latency": "1 us"}, TypeError, "gateway_latency must be a number"),
        ((), {"target": "bow"}, TypeError, "target must be a Target"),
        ((), {"tiles": 1473}, ValueError, "at most 1,472"),
        (("c2",), {"chips": 4}, ValueError, "4 chips are more than a rack of 2, and there are no gateways"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: Any, changes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        System(*arguments, **changes)


def test_chips_that_are_named_alone_share_gateways_as_they_are_sold() -> None:
    for chip, pod in (("bow", "bow-pod128"), (Target("gc200"), "pod128")):
        assert System(chip, chips=128).gateway_share == System(pod).gateway_share
    assert System("gc2", chips=2).machine == 2
    assert System("bow", chips=8, machine=1).machine == 1
