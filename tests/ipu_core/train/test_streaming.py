"""Streaming: one load and one store per moment around its update, exact accounts, the same bits on both engines."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine.profile import Profile, Step
from ipu_core.errors import OutOfStreamingMemory, OutOfTileMemory
from ipu_core.ir.passes.streaming import streamable
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import map_leaves
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import Value
from ipu_core.report.html import to_html
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Lamb, Optimizer, Sgd
from tests.examples import examples

SMALL = Target("gc200", tiles=24)
BERT = Precision.parse("mlperf-bert")
WIDTHS = (20, 24, 5)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    return nn.softmax_cross_entropy(nn.mlp(params, x), y)


def params(widths: tuple[int, ...] = WIDTHS) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [
        {"weight": (rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32), "bias": np.zeros(n, np.float32)}
        for m, n in itertools.pairwise(widths)
    ]


def batches(step: int, features: int = WIDTHS[0]) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(step).normal(size=(16, features)).astype(np.float32)
    return x, np.argmax(x[:, :5], axis=1).astype(np.int32)


def loop(precision: Precision | str = BERT, engine: str = "tiles", **more: Any) -> TrainLoop:
    settings = {"optimizer": Lamb(0.01, weight_decay=0.01), "target": SMALL, "key": 7} | more
    return TrainLoop(loss, params(), batches(0), precision=precision, engine=engine, **settings)


def profile(made: TrainLoop) -> Profile:
    assert made.profile is not None
    return made.profile


def transfers(made: TrainLoop) -> list[Step]:
    return [step for step in profile(made).steps if step.kind == "remote"]


def assert_same(a: TrainLoop, b: TrainLoop) -> None:
    ours, theirs = a.arrays(), b.arrays()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()] == []


def test_a_load_and_a_store_per_moment_in_turn() -> None:
    names = [step.name for step in transfers(loop())]
    parts = [f"{layer}.{part}" for layer in (0, 1) for part in ("bias", "weight")]
    moments = [f"state.optimizer.{moment}.{part}" for part in parts for moment in ("first_moment", "second_moment")]
    assert names == [f"{verb} {moment}" for moment in moments for verb in ("load", "store")]


def test_one_tensors_moments_are_on_the_tiles_at_a_time() -> None:
    """Between the load of a moment and the next tensor's first load nothing of another tensor's is written or read."""
    live: set[str] = set()
    held = 0
    for step in profile(loop()).steps:
        touched = {v.name for v in step.account.reads | step.account.writes if "moment" in v.name}
        live = touched if step.name.startswith("load") and "first" in step.name else live | touched
        held = max(held, len({name.split("moment.")[1] for name in live}))
    assert held == 1


@pytest.mark.parametrize("precision", [BERT, Precision.parse("mlperf-bert-pod16")], ids=lambda p: p.name)
def test_always_live_memory_falls_by_exactly_the_moments(precision: Precision) -> None:
    for reorder in (True, False):
        far, near = (loop(each, reorder=reorder) for each in (precision, precision.changed(streamed=False)))
        moments = sum(array.nbytes for name, array in far.arrays().items() if "moment" in name)
        assert profile(far).memory.remote == moments
        always = [profile(made).memory.always["variables"].sum() for made in (near, far)]
        assert always[0] - always[1] == moments
    # Without shared compute sets, which streamed moments do not have, the rest is the same too.
    for name in ("constants", "vertex state", "code"):
        assert (profile(far).memory.always[name] == profile(near).memory.always[name]).all()
    assert (profile(far).memory.unstreamed == profile(near).memory.peak).all()
    assert profile(far).memory.peak_bytes < profile(near).memory.peak_bytes


def test_the_time_is_that_of_the_bytes_and_stated_syncs() -> None:
    target = Target("gc200", tiles=24, streaming_share=5e7)  # slower than the exchange, even for a bias
    far, near = (loop(each, target=target, reorder=False) for each in (BERT, BERT.changed(streamed=False)))
    sizes = {f"state.{name}": array.nbytes for name, array in far.arrays().items() if "moment" in name}
    for step in transfers(far):
        size = sizes[step.name.split()[1]]
        assert step.account.exchange_cycles == math.ceil(size * target.clock / target.streaming_bandwidth)
        assert step.account.sync_cycles == target.sync_cycles
    assert profile(far).cycles - profile(near).cycles == profile(far).streaming_cycles
    assert profile(far).loaded == profile(far).stored == sum(sizes.values())
    text = str(profile(far))
    assert f"streaming memory: {sum(sizes.values()):,} of 32,000,000,000 bytes\ntransfers: 16, " in text
    assert "us at 0.05 GB/s, its machine's share, 1,440 cycles of sync included\n" in text
    assert f"fullest tile without: {int(profile(far).memory.unstreamed.max()):,} bytes if all" in text
    assert "streaming memory" not in str(profile(near))
    assert "<td>transfers</td><td>16, " in to_html(profile(far))


def test_200_steps_are_equal_streamed_or_not_on_both_engines() -> None:
    runs = [loop(), loop(BERT.changed(streamed=False)), loop(engine="direct")]
    losses = [made.run(batches, 200).tobytes() for made in runs]
    assert len(set(losses)) == 1
    for other in runs[1:]:
        assert_same(runs[0], other)


OPTIMIZERS: list[Optimizer] = [Sgd(0.1, momentum=0.9, nesterov=True), Adam(1e-2), Lamb(0.01)]


@examples(quick=5, slow=8)
@given(
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(["fp32.32/streamed", "fp16.32/stochastic/streamed", "mlperf-bert", "mlperf-bert-pod16"]),
    st.sampled_from([(), "params.*", "*.weight"]),
    st.integers(1, 40),
)
def test_any_state_may_be_streamed(optimizer: Optimizer, precision: str, streamed: Any, tiles: int) -> None:
    target = Target("gc200", tiles=tiles)
    far = loop(precision, optimizer=optimizer, streamed=streamed, target=target)
    near = loop(f"{precision}/unstreamed", optimizer=optimizer, target=target, accumulations=far.accumulations)
    assert far.run(batches, 3).tobytes() == near.run(batches, 3).tobytes()
    assert_same(far, near)
    direct = loop(precision, "direct", optimizer=optimizer, streamed=streamed, accumulations=far.accumulations)
    direct.run(batches, 3)
    assert_same(far, direct)


def test_master_weights_are_loaded_for_each_part_of_the_step_and_stored_once() -> None:
    made = loop("fp16.32/unstreamed", optimizer=Sgd(0.1), streamed="params.*.weight")
    names = [step.name for step in transfers(made)]
    assert names == [
        "load 0.weight",
        "load 1.weight",
        "load 0.weight",
        "store 0.weight",
        "load 1.weight",
        "store 1.weight",
    ]
    assert profile(made).memory.remote == sum(layer["weight"].nbytes for layer in params())


@dataclass(frozen=True)
class Delayed:
    """Steps by the gradients of the step before, which are read last when those that replace them are there."""

    lr: float = 0.1

    def init(self, params: Any) -> Any:
        return {"before": map_leaves(np.zeros_like, params)}

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        new = map_leaves(lambda old, gradient: old - gradient * lr, params, state["before"])
        return new, {"before": gradients}


@pytest.mark.parametrize("reorder", [False, True])
def test_a_new_value_is_stored_once_the_old_one_is_read_no_more(reorder: bool) -> None:
    loops = [
        loop("fp32.32", optimizer=Delayed(), streamed=streamed, reorder=reorder)
        for streamed in ((), "optimizer.before.*")
    ]
    for made in loops:
        made.run(batches, 4)
    assert loops[1].block.streamed
    assert_same(*loops)


def test_a_model_that_fits_only_streamed() -> None:
    """Eight layers of 224 on 8 tiles of the real size: Lamb's moments are two thirds of what lives always."""
    widths = 64, *(224,) * 9, 5
    target = Target("gc200", tiles=8)

    def build(precision: str) -> TrainLoop:
        return TrainLoop(loss, params(widths), batches(0, 64), optimizer=Lamb(0.01), precision=precision, target=target)

    with pytest.raises(OutOfTileMemory):
        build("fp32.32")
    made = build("fp32.32/streamed")
    losses = made.run(lambda step: batches(step % 2, 64), 8)
    assert losses[-2:].mean() < losses[:2].mean()
    assert int(profile(made).memory.unstreamed.max()) > target.tile_memory


def test_streaming_memory_that_is_full_refuses_with_the_figures() -> None:
    moments = sum(array.nbytes for name, array in loop().arrays().items() if "moment" in name)
    loop(target=replace(SMALL, streaming_memory=moments))
    with pytest.raises(
        OutOfStreamingMemory, match=f"need {moments:,} bytes of {moments - 1:,} of streaming memory"
    ) as caught:
        loop(target=replace(SMALL, streaming_memory=moments - 1))
    assert caught.value.buffers[0] == ("state.optimizer.first_moment.0.weight", 20 * 24 * 2)


def test_a_name_that_nothing_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"called 'weights'; nearest are .*params.0.weight"):
        loop(streamed=["weights"])


def test_a_restored_run_goes_on_bit_for_bit() -> None:
    whole, again = loop(), loop()
    whole.run(batches, 4)
    again.restore(whole.arrays(), whole.step)
    assert whole.run(batches, 4).tobytes() == again.run(batches, 4).tobytes()
    assert_same(whole, again)


MORE: list[dict[str, Any]] = [
    {},
    {"loss_scale": 64.0},
    {"micro_batches": 4, "loss_scale": "automatic", "precision": "mlperf-bert-pod16"},
    {"micro_batches": 4, "streamed": "params.*"},
]


@pytest.mark.parametrize("more", MORE, ids=str)
def test_overlap_changes_time_and_memory_and_no_bit(more: dict[str, Any]) -> None:
    plain, over = loop(reorder=False, **more), loop(reorder=False, overlap=True, **more)
    assert plain.run(batches, 6).tobytes() == over.run(batches, 6).tobytes()
    assert_same(plain, over)
    a, b = profile(plain), profile(over)
    assert sorted(step.name for step in transfers(plain)) == sorted(step.name for step in transfers(over))
    assert (a.loaded, a.stored, a.streaming_cycles) == (b.loaded, b.stored, b.streaming_cycles)
    assert b.hidden_cycles > 0 == a.hidden_cycles
    assert a.cycles == b.cycles + b.hidden_cycles
    assert b.memory.always_bytes == a.memory.always_bytes
    more_at_a_time = [sum(point.total for point in made.memory.lifetimes) for made in (a, b)]
    assert more_at_a_time[0] < more_at_a_time[1]
    together = loop(overlap=True, **more)
    together.run(batches, 6)
    assert_same(plain, together)
    assert profile(together).cycles + profile(together).hidden_cycles < a.cycles
    beside = "loss_scale" in more  # the old state stays beside the new one until the guard has spoken
    assert profile(together).memory.remote == a.memory.remote * (2 if beside else 1)
    entries = [v.name for s in profile(together).steps for v in s.account.writes if v.name.startswith("entry")]
    assert bool(entries) == beside
    careful = loop(overlap=True, control=FloatingPointControl(inv=True), **more)  # may not update on what is skipped
    assert profile(careful).memory.remote == a.memory.remote


def test_with_overlap_neighbours_are_updated_at_once_that_need_no_more_than_the_largest() -> None:
    """Their moments are on the tiles at a time: no more of them than one tensor has, though there is room for all."""
    x, y = np.zeros((512, WIDTHS[0]), np.float32), np.zeros(512, np.int32)

    def made(overlap: bool) -> TrainLoop:
        more = {"optimizer": Lamb(0.01), "precision": BERT, "target": SMALL, "overlap": overlap}
        return TrainLoop(loss, params((20, 24, 24, 5)), (x, y), **more)

    far = {name: array.nbytes for name, array in made(True).arrays().items() if "second_moment" in name}
    found = {}
    for overlap in (True, False):
        steps = [step.account for step in profile(made(overlap)).steps if step.kind == "execute"]
        found[overlap] = [{v.name.removeprefix("state.") for v in s.reads | s.writes} & far.keys() for s in steps]
    assert max(map(len, found[False])) == 1
    assert max(map(len, found[True])) > 1
    assert max(sum(far[name] for name in names) for names in found[True]) == max(far.values())


@pytest.mark.parametrize(("rate", "bound"), [(20e9, "compute"), (5e7, "transfers")])
def test_with_overlap_a_step_takes_as_long_as_the_slower_of_tiles_and_streaming_memory(rate: float, bound: str) -> None:
    target = Target("gc200", tiles=24, streaming_share=rate)
    over = loop(target=target, overlap=True)
    transfers = profile(over).streaming_cycles
    both = {"compute": profile(over).cycles + profile(over).hidden_cycles - transfers, "transfers": transfers}
    assert max(both, key=lambda name: both[name]) == bound
    assert max(both.values()) <= profile(over).cycles < 1.05 * max(both.values())
    # What is streamed is updated in rows, which leaves sums fewer places to run beside others.
    one_by_one, near = (
        profile(loop(precision, target=target, overlap=True, parallel=False)).cycles
        for precision in (BERT, BERT.changed(streamed=False))
    )
    assert one_by_one < 1.05 * max(near, transfers)
    assert f"{profile(over).hidden_cycles:,} of {both['transfers']:,} cycles beside other steps" in str(profile(over))


def test_new_state_that_is_two_old_ones_stays_on_the_tiles() -> None:
    """One value stored to two places would be two stores of one tensor."""
    a = np.ones(4, np.float32)

    def step(state: Any, x: Any) -> Any:
        moved = state[0] + x
        return [moved, moved, state[2] * x], x.sum()

    assert streamable(trace(step, [a, a, a], a, carry=True)) == {2}
