"""Every figure of a Target and every field of a Precision changes something: cycles, bytes, a place, a format, a bit.

One that nothing reads would be believed all the same; it stands below with the reason, or not at all.
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.energy import energy_of
from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.errors import OutOfStreamingMemory
from ipu_core.graph import Copy, DataStream, Graph, RemoteBuffer, RemoteStore, Sequence, StreamCopy
from ipu_core.graph.streams import check_remote_memory
from ipu_core.ir.precision.operand_scaling import OperandScaling
from ipu_core.ir.precision.precision import Precision
from ipu_core.library.elementwise import add_array
from ipu_core.library.matmul import matmul
from ipu_core.placement.convolution import Convolution, plan_convolution
from ipu_core.placement.matmul import Placement, plan_sum, product_of
from ipu_core.placement.orders import OrderRule, convolution_order, product_order
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Lamb
from lowprec import Accumulation, Rounding, bfloat16, float16

CHIP = Target("gc200", tiles=24, tile_memory=60_000)
ORDER = Accumulation(splits=2, accumulate="float16")

CHANGED: dict[str, Any] = {
    "tiles": 20,
    "workers": 5,
    "tile_memory": 36_000,
    "clock": 1e9,
    "macs": (("float16", "float16", 32),),
    "exchange_bytes_per_cycle": 3,
    "exchange_bytes_per_cycle_shared": 4,
    "tiles_per_supertile": 1,
    "exchange_fixed_cycles": 90,
    "sync_cycles": 80,
    "local_copy_bytes_per_cycle": 4,
    "reorder_cycles": 5.0,
    "host_port": 1e9,
    "host_share": 1e9,
    "streaming_share": 1e9,
    "streaming_memory": 10_000,
    "power": (100.0, 400.0),
    "energy": {"exchange": 2.0},
    "adder": "pairwise",
}
NOT_READ = {
    "name": "a label, not a figure: it is printed",
    "load_store_bytes_per_cycle": "only `sram_bandwidth` reads it, to compare with what is published; the cycles of"
    " codelets are the published estimators', whose vectors are 64 bits wide on every chip",
    "link_bandwidth": "no program of this model leaves its chip; a workload's stage does, see its tests",
    "published_sram_bandwidth": "a published figure to compare `sram_bandwidth` with",
}


def costs_of_plans(target: Target) -> list[Any]:
    """Places, orders and costs of a product, a large product and a convolution."""
    small, large = product_of(target, 96, 128, 64), product_of(target, 160, 512, 160)
    sizes = Convolution("image", (2, 4, 6, 1, 32), (3, 1, 16), (1, 1), (1, 1), "float16")
    order = convolution_order(OrderRule.of(target), sizes).with_types("float16")
    plans = [plan_sum(target, small, ORDER), plan_sum(target, large, ORDER), plan_convolution(target, sizes, order)]
    chosen = product_order(OrderRule.of(target), 64, 512, 64)
    return [chosen, order, *((plan.placement, plan.cycles, plan.memory) for plan in plans)]


def cycles_of_steps(target: Target) -> tuple[list[int], int, float, bool]:
    """Cycles of every step of a program with transfers, copies and a product whose tiles share rows, placed by hand."""
    graph = Graph(target)
    a, b = (add_array(graph, "float16", shape, name) for name, shape in (("a", (64, 64)), ("b", (64, 64))))
    plan = plan_sum(target, product_of(target, 64, 64, 64), ORDER, placement=Placement(3, 4, 1))
    c, products = matmul(graph, a, b, plan)
    d = add_array(graph, "float16", (64, 64), "d")
    buffer = RemoteBuffer("far", "float16", (64, 64))
    feeds = [StreamCopy(DataStream(name, "float16", (64, 64)), into) for name, into in (("a", a), ("b", b))]
    moves = Copy(c, d), Copy(c.transpose(1, 0), d, reorders=True)
    engine = Engine(graph, Sequence(*feeds, *products, *moves, RemoteStore(d, buffer)), allow_out_of_memory=True)
    profile = engine.profile()
    more = RemoteBuffer("more", "float16", (64, 64), entries=2)
    return [step.cycles for step in profile.steps], profile.memory.peak_bytes, profile.microseconds, room(more, target)


def room(buffer: RemoteBuffer, target: Target) -> bool:
    """Whether streaming memory has room for a buffer of 16,384 bytes."""
    try:
        check_remote_memory([buffer], target)
    except OutOfStreamingMemory:
        return False
    return True


@pytest.mark.parametrize("name", [field.name for field in fields(Target)])
def test_every_figure_of_a_target_is_read(name: str) -> None:
    if name in NOT_READ:
        assert name not in CHANGED
        return
    other = replace(CHIP, **{name: CHANGED[name]})
    assert (costs_of_plans(CHIP), cycles_of_steps(CHIP), energies(CHIP)) != (
        costs_of_plans(other), cycles_of_steps(other), energies(other),
    )  # fmt: skip


def energies(target: Target) -> tuple[Any, ...]:
    """Of a second in which a million bytes pass the exchange."""
    made = energy_of(1.0, target.power, {"exchange": 10**6}, dict(target.energy))
    return made.joules, made.parts


@pytest.mark.parametrize("name", ["exchange_bytes_per_cycle_shared", "tiles_per_supertile"])
def test_what_supertiles_share_counts_in_plans_and_in_programs_alike(name: str) -> None:
    other = replace(CHIP, **{name: CHANGED[name]})
    place = Placement(3, 4, 1)
    plans = [plan_sum(chip, product_of(chip, 64, 64, 64), ORDER, placement=place) for chip in (CHIP, other)]
    assert plans[0].exchange_cycles < plans[1].exchange_cycles
    steps = [cycles_of_steps(chip)[0] for chip in (CHIP, other)]
    assert sum(steps[1]) - sum(steps[0]) == plans[1].cycles - plans[0].cycles


def test_a_higher_shared_rate_makes_neighbours_share() -> None:
    """Whether tile numbers run along rows or columns says which operand neighbours share: the search sees the rate."""
    orders = {plan_sum(replace(CHIP, tiles_per_supertile=n), product_of(CHIP, 315, 20, 38), ORDER).placement.order
              for n in (1, 2)}  # fmt: skip
    assert orders == {"columns", "rows"}


PARAMS = {"w": np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6), "b": np.zeros(6, np.float32)}
BATCH = {"x": np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8), "y": np.array([0, 5, 2, 1], np.int32)}
MEANT = {
    **dict.fromkeys(("operands", "gradients", "output", "weights", "first_moment", "second_moment"), bfloat16),
    "partials": float16,
    "gradient_sum": bfloat16,
    "rounding": Rounding("stochastic"),
    "running_mean": True,
    "store_root": True,
    "scaling": OperandScaling(),
    "promote": 2,
    "group": 2,
    "splits": 3,
    "adder": "pairwise",
    "rules": ("w:weights=bfloat16",),
    "unit_scaled": True,
    "everywhere": True,
    "norms": "operands",
    "roundings": {"operands": Rounding("odd")},
    "scaled_state": 3.0,  # a power of two would change none, short of under- and overflow
}
NOTHING_READS = {
    "name": "a label",
    "streamed": "where the moments live changes no bit, but cycles and memory",
}


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(nn.tanh(nn.layer_norm(batch["x"] @ params["w"] + params["b"])), batch["y"])


def bits_after_two_steps(precision: Precision) -> bytes:
    loop = TrainLoop(
        loss, PARAMS, BATCH, optimizer=Lamb(0.01), precision=precision, engine="direct", key=1, micro_batches=2
    )
    for _ in range(2):
        loop.train(BATCH)
    return b"".join(np.asarray(loop.params[name], np.float32).tobytes() for name in sorted(PARAMS))


@pytest.mark.parametrize("name", [field.name for field in fields(Precision)])
def test_every_field_of_a_precision_changes_a_bit(name: str) -> None:
    if name in NOTHING_READS:
        assert name not in MEANT
        return
    needs: dict[str, Any] = {"rounding": {"operands": float16}, "promote": {"partials": float16}}
    # Groups end where partial sums are rounded.
    needs |= {"group": {"partials": float16}, "splits": {"group": 2}}
    needs["store_root"] = {"second_moment": bfloat16}
    needs |= {"everywhere": {"operands": float16}, "norms": {"operands": float16}, "roundings": {"operands": float16}}
    plain = Precision("", **needs.get(name, {}))
    assert bits_after_two_steps(replace(plain, **{name: MEANT[name]})) != bits_after_two_steps(plain)


def test_where_the_moments_live_changes_cycles_and_memory() -> None:
    near_or_far = [Precision("", streamed=streamed) for streamed in (False, True)]
    loops = [TrainLoop(loss, PARAMS, BATCH, optimizer=Lamb(0.01), precision=p, target=CHIP) for p in near_or_far]
    near, far = (made.profile for made in loops)
    assert near is not None and far is not None  # noqa: PT018
    assert (near.loaded, near.memory.remote) == (0, 0)
    assert far.cycles > near.cycles
    assert far.memory.always_bytes < near.memory.always_bytes
