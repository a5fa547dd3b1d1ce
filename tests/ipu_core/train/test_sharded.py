"""State in shards: the Block that is accounted, run by as many replicas as there are shards, makes the loop's bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from ipu_core import Adam, Lamb, Optimizer, Sgd, Target, TrainLoop, nn, plan, trace
from ipu_core.errors import NothingSaved
from ipu_core.ir.block import Array, Block, Equation, Var
from ipu_core.ir.bodies import flat
from ipu_core.ir.passes.sharded import sharded
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.regions import Branch
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.evaluate import _Walk
from ipu_core.ir.run.kernels import given_order
from ipu_core.train.fullest import fullest
from lowprec import Collective, Key
from tests.ipu_core.train.test_replicas import MEET, _met, batches, loss, params

CROSSING = (*MEET, "reduce_scatter", "all_gather")
REPLICAS = 4
FEW = Target("gc200", tiles=16)  # that arrays of a model as small as this share
OPTIMIZERS: list[Optimizer] = [
    Sgd(0.1, momentum=0.9, clip_norm=0.5), Adam(0.05), Lamb(0.02), Lamb(0.02, clip_norm=0.1)
]  # fmt: skip


def odd() -> dict[str, Array]:
    """Parameters whose last shards are filled up."""
    rng = np.random.default_rng(3)
    return {name: 0.4 * rng.normal(size=shape).astype(np.float32)
            for name, shape in {"w": (6, 9), "b": (9,), "v": (9, 3)}.items()}  # fmt: skip


def shard(array: Array, number: int) -> Array:
    """A replica's shard of an array, filled up with zeros."""
    flat_array = np.ravel(array)
    length = -(-flat_array.size // REPLICAS)
    padded = np.concatenate([flat_array, np.zeros(REPLICAS * length - flat_array.size, array.dtype)])
    return padded[number * length : (number + 1) * length]


def by_replicas(loop: TrainLoop, block: Block, inputs: list[Any], key: Key) -> list[list[Array]]:
    """The outputs of a step on every replica, each with its shards of the state."""

    def rule(number: int) -> Any:
        def made(equation: Equation, operands: list[Any], path: Any) -> Array:
            if equation.op == "slice" and equation.operands[0].name.endswith(".flat"):
                return shard(operands[0], number)  # the account takes the first for all
            drawn = None if equation.draws is None else key.fold_in(equation.draws)
            return declared(equation, operands, drawn, given_order(equation, loop.accumulations), loop.control)

        return made

    walks = []
    for number in range(REPLICAS):
        values: dict[Var, Any] = dict(block.constants)
        for position, (var, value) in enumerate(zip(block.inputs, inputs, strict=True)):
            array = np.asarray(value)
            if position >= block.carried and array.ndim:
                array = np.split(array, REPLICAS)[number]
            elif array.shape != var.type.shape:
                array = shard(array, number)
            values[var] = cast(array, var.type.format)
        walks.append(_Walk(values, cast, rule(number)))
    _together(walks, list(block.equations), loop, key)
    return [[walk.values[var] for var in block.outputs] for walk in walks]


def _together(walks: list[_Walk], equations: list[Equation], loop: TrainLoop, key: Key) -> None:
    for equation in equations:
        if isinstance(branch := equation.region, Branch):
            if walks[0].values[branch.flag]:
                _together(walks, list(branch.body.equations), loop, key)
            for walk in walks:
                for result, new, old in branch.chosen:
                    walk.values[result] = walk.values[new if walk.values[branch.flag] else old]
        elif equation.op not in CROSSING:
            for walk in walks:
                walk.compute([equation], ())
        else:
            every = np.stack([walk.values[equation.operands[0]] for walk in walks])
            for number, walk in enumerate(walks):
                walk.values[equation.output] = _crossed(equation, every, number, loop)


def _crossed(equation: Equation, every: Array, number: int, loop: TrainLoop) -> Array:
    if equation.op == "all_gather":
        shape = equation.params["shape"]
        return every.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    if equation.op == "reduce_scatter":
        return shard(_met(equation, every, loop.control, None), number)
    return _met(equation, every, loop.control, None)


@pytest.mark.parametrize("kept", ["optimizer.*", ("optimizer.*", "params.*"), "params.*"], ids=str)
@pytest.mark.parametrize("scale", [None, 256.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_updates_on_shards_have_the_bits_of_whole_ones(optimizer: Optimizer, scale: Any, kept: Any) -> None:
    plain = lambda p, b: nn.softmax_cross_entropy(nn.relu(b[0] @ p["w"] + p["b"]) @ p["v"], b[1])  # noqa: E731
    rows, how = 4 * REPLICAS, Collective(wire="float16")
    loop = TrainLoop(
        plain, odd(), batches(rows, 0), optimizer=optimizer, loss_scale=scale,
        precision="fp32.32" if scale is None else "fp16.16/nearest",  # halves would hide the last bit of a norm
        replicas=REPLICAS, collective=how, engine="direct", reorder=False,
    )  # fmt: skip
    kept_names = (kept,) if isinstance(kept, str) else kept
    block = sharded(loop.block, kept_names)
    ops = [each.op for each in flat(block.equations)]
    assert ops.count("reduce_scatter") == 3
    assert ops.count("all_gather") >= 3
    for step in range(2):
        inputs, key = loop.next_step(batches(rows, step))
        every = by_replicas(loop, block, inputs, key)
        loop.train(batches(rows, step))
        for position, leaf in enumerate(loop.state.leaves.values()):
            for number, outputs in enumerate(every):
                own = outputs[position]
                lp.testing.assert_same_bits(own, leaf if own.shape == leaf.shape else shard(leaf, number))


def test_a_long_shard_is_summed_as_where_it_lies_alone() -> None:
    # A shard of 32,768 numbers has many parts by the rule; as a row of four of these it would have others.
    wide = {"w": np.random.default_rng(0).normal(size=(32, 4096)).astype(np.float32)}
    square = lambda p, b: nn.mean((b @ p["w"]) ** 2)  # noqa: E731
    x = np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32)
    loop = TrainLoop(
        square, wide, x, optimizer=Lamb(0.02), precision="fp32.32", replicas=REPLICAS, engine="direct", reorder=False
    )
    (rows, *_) = [each for each in loop.block.equations if each.params.get("shards") == "rows"]
    alone = trace(lambda y: y.sum(), np.zeros(32 * 4096 // REPLICAS, np.float32))
    (order,) = plan(alone, Target("gc200")).accumulations.values()
    assert loop.accumulations[rows.number].order_words() == order.order_words()
    assert order.splits > 1
    block = sharded(loop.block, ("optimizer.*",))
    inputs, key = loop.next_step(x)
    every = by_replicas(loop, block, inputs, key)
    loop.train(x)
    (leaf,) = [leaf for name, leaf in loop.state.leaves.items() if name == "params.w"]
    position = list(loop.state.leaves).index("params.w")
    for outputs in every:
        lp.testing.assert_same_bits(outputs[position], leaf)


def test_one_shard_that_overflows_keeps_the_state_of_all() -> None:
    mean = lambda p, x: nn.mean(x @ p["w"])  # noqa: E731
    x = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    loop = TrainLoop(
        mean, {"w": np.zeros((8, 4), np.float32)}, x, optimizer=Adam(0.1), precision="fp16.16/nearest",
        loss_scale=1024.0, replicas=REPLICAS, engine="direct", reorder=False,
        collective=Collective(wire="float8_e4m3fn"),
    )  # fmt: skip
    block = sharded(loop.block, ("optimizer.*",))
    x[:, -1] = 100  # of the last row of the gradient, in the last shard, the sum saturates on the wire, nothing before
    inputs, key = loop.next_step(x)
    before = list(loop.state.leaves.values())
    for outputs in by_replicas(loop, block, inputs, key):
        for old, new in zip(before, outputs, strict=False):
            assert not new.any()
            assert old.dtype == new.dtype
    loop.train(x)
    assert len(loop.skipped) == 1


def test_memory_falls_and_no_bit_changes() -> None:
    rng, rows = np.random.default_rng(0), 64
    wide = {"w": 0.1 * rng.normal(size=(6, 4096)).astype(np.float32), "b": np.zeros(4096, np.float32),
            "v": 0.1 * rng.normal(size=(4096, 3)).astype(np.float32)}  # fmt: skip
    kept: dict[str, Any] = dict(optimizer=Adam(0.01), precision="fp32.32", replicas=16, target="bow-pod16")
    whole = TrainLoop(loss, wide, batches(rows, 0), **kept)
    shards = TrainLoop(loss, wide, batches(rows, 0), sharded="optimizer.*", **kept)
    assert whole.profile is not None
    assert shards.profile is not None
    # Two moments of 36,864 + 4,096 + 4,096 float32: a sixteenth of them stays on a chip.
    moments = 2 * 4 * (6 * 4096 + 4096 + 4096 * 3)
    freed = int(whole.profile.memory.always_live.sum()) - int(shards.profile.memory.always_live.sum())
    assert freed > 0.8 * 15 / 16 * moments
    assert whole.train(batches(rows, 0)) == shards.train(batches(rows, 0))
    lp.testing.assert_same_bits(whole.params["w"], shards.params["w"])
    assert "in shards optimizer.*" in str(shards.execution)
    for name in ("w", "state.optimizer.first_moment.w"):  # called the same with any setting
        sizes = [int(each.profile.memory.tiles_of(name).sum()) for each in (whole, shards)]
        assert sizes[1] == (sizes[0] if name == "w" else sizes[0] // 16)
    assert whole.training.digest() == shards.training.digest()


@pytest.mark.parametrize("names", ["params.*", "optimizer.*"])
def test_shards_that_cost_more_than_they_free_are_said_with_both_figures(names: str) -> None:
    kept: dict[str, Any] = dict(
        optimizer=Adam(0.01), precision="fp32.32", replicas=4, target=FEW, streamed="optimizer.*"
    )
    whole = TrainLoop(loss, params(), batches(16, 0), **kept)
    with pytest.warns(NothingSaved) as said:
        shards = TrainLoop(loss, params(), batches(16, 0), sharded=names, **kept)
    assert whole.profile is not None
    assert shards.profile is not None
    own, without = shards.profile.memory.peak_bytes, whole.profile.memory.peak_bytes
    assert own > without
    assert [str(each.message) for each in said] == [
        f"sharded='{names}' makes the fullest tile fuller: {own:,} bytes, {without:,} without it; what is gathered is "
        "whole where it is used"
    ]


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_what_is_kept_in_shards_and_streamed_is_a_share() -> None:
    kept: dict[str, Any] = dict(
        optimizer=Adam(0.01), precision="fp32.32", replicas=4, target="m2000", streamed="optimizer.*"
    )
    whole = TrainLoop(loss, params(), batches(16, 0), **kept)
    shards = TrainLoop(loss, params(), batches(16, 0), sharded="optimizer.*", **kept)
    assert whole.profile is not None
    assert shards.profile is not None
    assert shards.profile.memory.remote == whole.profile.memory.remote // 4


def test_refusals() -> None:
    kept: dict[str, Any] = dict(optimizer=Adam(0.01), precision="fp32.32", replicas=4)
    with pytest.raises(ValueError, match=r"sharded= is for the state of several replicas"):
        TrainLoop(loss, params(), batches(16, 0), sharded="params.*", **{**kept, "replicas": 1})
    with pytest.raises(ValueError, match="no part of the state that can be in shards is called 'moments'"):
        TrainLoop(loss, params(), batches(16, 0), sharded="moments", **kept)
    plain = {**kept, "optimizer": Sgd(0.1)}
    for engine in ("direct", "tiles"):
        with pytest.raises(
            ValueError, match=r"sharded='optimizer.\*': this optimizer keeps no state that .*; 'params.\*' ar"
        ):
            TrainLoop(loss, params(), batches(16, 0), sharded="optimizer.*", engine=engine, **plain)
    with pytest.raises(TypeError, match="sharded must be names"):
        TrainLoop(loss, params(), batches(16, 0), sharded=[3], **kept)


class ByRows(Sgd):
    """An optimizer whose step needs a whole row: no shard has one."""

    def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
        own = {name: g if len(g.shape) < 2 else g * (g * g).sum(1, keepdims=True) for name, g in gradients.items()}
        return super().update(params, own, state, lr)


def test_an_update_that_needs_more_than_its_elements_is_refused() -> None:
    kept: dict[str, Any] = dict(optimizer=ByRows(0.1, momentum=0.9), precision="fp32.32", replicas=4)
    with pytest.raises(
        ValueError, match=r"the update of [vw] is more than one of its elements each: .* needs all of it"
    ):
        TrainLoop(loss, params(), batches(16, 0), sharded="optimizer.*", **kept)


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_what_a_setting_saves_is_measured_with_the_shards() -> None:
    loop = TrainLoop(
        loss, params(), batches(16, 0), optimizer=Adam(0.01), precision="fp16.16/stochastic", replicas=4,
        target=FEW, sharded="optimizer.*",
    )  # fmt: skip
    assert loop.profile is not None
    own, whole = loop.profile.memory.peak_bytes, dataclasses.replace(loop.execution, sharded=())
    planned = loop._stepper.prepared.planned
    assert fullest(planned, loop.execution) == own
    assert fullest(planned, whole) != own


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")
def test_a_name_that_ends_anothers_is_its_own() -> None:
    """The moments of "block.norm.bias" are not those of "norm.bias"."""
    weights = {"norm": {"bias": np.zeros(9, np.float32)}, "block": {"norm": {"bias": np.ones(9, np.float32)}},
               "w": odd()["w"]}  # fmt: skip

    def loss_of(p: Any, b: Any) -> Any:
        return nn.mean((b @ p["w"] + p["block"]["norm"]["bias"]) ** 2 + p["norm"]["bias"])

    rows = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    made = [
        TrainLoop(loss_of, weights, rows, optimizer=Adam(0.1), precision="fp32.32", replicas=4, sharded=names,
                  target=Target(tiles=8))
        for names in ((), "optimizer.*")
    ]  # fmt: skip
    assert made[0].train(rows) == made[1].train(rows)
    moment = "state.optimizer.first_moment.block.norm.bias"
    whole, shards = (int(loop.profile.memory.tiles_of(moment).sum()) for loop in made if loop.profile is not None)
    assert shards < whole
