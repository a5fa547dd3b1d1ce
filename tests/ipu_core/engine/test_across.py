"""What replicas make together, as a program: what it computes on a machine that runs alone, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from ipu_core import CrossReplica, CrossReplicas, Engine, Graph, Sequence, System, Target
from ipu_core.chip import collectives, cost
from ipu_core.engine.steps import StepAccount
from lowprec import Collective

TILES, SIZE = 4, 1000


class Parts:
    """A graph with some arrays over four tiles."""

    def __init__(self, fmt: str = "float32") -> None:
        self.target = Target("bow", tiles=TILES)
        self.graph = Graph(self.target)
        self.x, self.y = (self.spread(fmt, SIZE, name) for name in "xy")
        self.shard = self.spread(fmt, SIZE // 8, "shard")

    def spread(self, fmt: str, size: int, name: str) -> Any:
        tensor = self.graph.add_variable(fmt, (size,), name)
        for tile in range(TILES):
            self.graph.set_tile_mapping(tensor[tile * size // TILES : (tile + 1) * size // TILES], tile)
        return tensor

    def step(self, program: Any) -> StepAccount:
        (step,) = Engine(self.graph, program).profile().steps
        return step.account


WIRE = Collective("ring", wire="float16")


def test_a_sum_is_that_of_as_many_equal_arrays() -> None:
    parts = Parts()
    values = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    for how in (Collective(), WIRE, Collective("ring_pair", wire="bfloat16", rounding="stochastic")):
        programs = Sequence(
            CrossReplica(parts.x, parts.y, 8, collective=how, operation=3),
            CrossReplica(parts.x, parts.shard, 8, "reduce_scatter", how, operation=3),
        )
        engine = Engine(parts.graph, programs, key=7)
        engine.write(parts.x, values)
        engine.run()
        # The engine's first run has the key with 0 folded in, and operations fold in their number.
        want = lp.all_reduce(np.broadcast_to(values, (8, SIZE)), how, key=lp.Key(7).fold_in(0).fold_in(3))
        lp.testing.assert_same_bits(engine.read(parts.y), want.astype(np.float32))
        lp.testing.assert_same_bits(engine.read(parts.shard), want.astype(np.float32)[: SIZE // 8])


def test_what_has_no_sum_is_what_all_have() -> None:
    parts = Parts()
    engine = Engine(parts.graph, Sequence(
        CrossReplica(parts.x, parts.y, 8, "all_reduce_max"), CrossReplica(parts.shard, parts.x, 8, "all_gather"),
    ))  # fmt: skip
    engine.write(parts.x, np.arange(SIZE))
    engine.write(parts.shard, np.arange(SIZE // 8))
    engine.run()
    np.testing.assert_array_equal(engine.read(parts.y), np.arange(SIZE))
    np.testing.assert_array_equal(engine.read(parts.x), np.tile(np.arange(SIZE // 8), 8))


def test_a_ring_costs_its_messages_and_every_chip_its_additions() -> None:
    parts, system = Parts(), System("bow-pod16", chips=8)
    step = parts.step(CrossReplica(parts.x, parts.y, 8, collective=WIRE, system=system))
    over = collectives.all_reduce(system, 2 * SIZE, 8, algorithm="ring")  # two bytes each, whatever x is kept in
    assert step.kind == "links"
    assert step.exchange_cycles == int(np.ceil(over.seconds * parts.target.clock))
    # Of 250 elements of a tile 7 messages bring an eighth each.
    assert step.compute_cycles == int(cost.elementwise(parts.target, "add", -(-250 * 7 // 8), 4))
    # The links carry 14/8 of the bytes, each of which leaves a tile and arrives at one.
    np.testing.assert_array_equal(step.gather.sent, np.full(TILES, -(-250 * 2 * 14 // 8)))
    np.testing.assert_array_equal(step.gather.received, step.gather.sent)
    assert (step.reads, step.writes) == ({parts.x.variable}, {parts.y.variable})


def test_a_scatter_and_a_gather_are_half_of_it_each() -> None:
    parts, system = Parts(), System("bow-pod16", chips=8)
    scatter = parts.step(CrossReplica(parts.x, parts.shard, 8, "reduce_scatter", Collective(), system))
    gather = parts.step(CrossReplica(parts.shard, parts.x, 8, "all_gather", system=system))
    both = parts.step(CrossReplica(parts.x, parts.y, 8, collective=Collective(), system=system))
    assert abs(scatter.exchange_cycles + collectives_of(gather, "ring", system, parts) - both.exchange_cycles) <= 2
    assert gather.compute_cycles == 0
    assert scatter.compute_cycles == both.compute_cycles


def collectives_of(step: StepAccount, algorithm: str, system: System, parts: Parts) -> int:
    """The cycles of a gathering by a given algorithm; where none is said it is that of the links' choice."""
    usual = collectives.all_gather(system, 4 * SIZE, 8)
    assert step.exchange_cycles == int(np.ceil(usual.seconds * parts.target.clock))
    ring = collectives.all_gather(system, 4 * SIZE, 8, algorithm=algorithm)
    return int(np.ceil(ring.seconds * parts.target.clock))


def test_several_pass_in_the_messages_of_one() -> None:
    parts, system = Parts(), System("bow-pod16", chips=8, link_latency=1e-6)
    single = CrossReplica(parts.x, parts.y, 8, collective=WIRE, system=system)
    other = CrossReplica(parts.shard, parts.shard, 8, collective=WIRE, system=system, name="other")
    largest = CrossReplica(parts.shard, parts.shard, 8, "broadcast", system=system)
    alone, small, apart = (parts.step(each) for each in (single, other, largest))
    joint = parts.step(CrossReplicas(single, other))
    whole = collectives.all_reduce(system, 2 * (SIZE + SIZE // 8), 8, algorithm="ring")
    assert joint.exchange_cycles == int(np.ceil(whole.seconds * parts.target.clock))
    assert joint.exchange_cycles < alone.exchange_cycles + small.exchange_cycles
    assert joint.name == "all_reduce x: and 1 more"
    assert joint.joined == ("all_reduce x", "other")
    three = parts.step(CrossReplicas(single, other, largest))
    assert abs(three.exchange_cycles - joint.exchange_cycles - apart.exchange_cycles) <= 1


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (ValueError, "kind is one of", lambda p: CrossReplica(p.x, p.y, 8, "mean")),
        (TypeError, "collective", lambda p: CrossReplica(p.x, p.y, 8)),
        (ValueError, "has no order of additions", lambda p: CrossReplica(p.x, p.y, 8, "broadcast", WIRE)),
        (ValueError, "a shard of 1000 elements is one axis of 500",
         lambda p: CrossReplica(p.x, p.shard, 2, "reduce_scatter", WIRE)),
        (ValueError, "more than the 4 chips",
         lambda p: CrossReplica(p.x, p.y, 8, collective=WIRE, system=System("m2000"))),
        (ValueError, "does not match", lambda p: CrossReplica(p.x, p.shard, 8, collective=WIRE)),
        (ValueError, "one number of replicas", lambda p: CrossReplicas(
            CrossReplica(p.x, p.y, 8, collective=WIRE), CrossReplica(p.x, p.y, 4, collective=WIRE))),
    ],
)  # fmt: skip
def test_refusals(error: type[Exception], message: str, make: Any) -> None:
    with pytest.raises(error, match=message):
        make(Parts())


def test_random_bits_need_a_key() -> None:
    parts = Parts()
    engine = Engine(parts.graph, CrossReplica(parts.x, parts.y, 2, collective=Collective(rounding="stochastic")))
    with pytest.raises(ValueError, match="CrossReplica draws random bits: give the engine a key"):
        engine.run()
