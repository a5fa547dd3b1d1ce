"""Parts of a model made again for their gradients: what is kept of them, what is copied, when, and by which name."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ipu_core import AdamW, Precision, Sgd, Target, nn
from ipu_core.compile.schedule.recompute_share import temporaries
from ipu_core.compile.schedule.residency import WORD, scheduled
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.checkpoint_names import checkpointed, layer_names
from ipu_core.ir.passes.checkpoints import checkpoints_of, read_anew, with_checkpoints
from ipu_core.ir.passes.guard import BACKWARD
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.verify import UseBeforeDefinition, verify
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.step import step_block
from lowprec.integers import ceil_div

TARGET = Target("gc200")
PRECISION = Precision.parse("fp16.16/stochastic")


def ideal(size: Size, rows: int = 4, optimizer: Any = None) -> Block:
    text = np.zeros((rows, size.context), np.int32)
    params = lm.initial(lm.layout(size), 0)
    return step_block(partial(lm.loss, size.heads), optimizer or Sgd(0.1), params, (text, text))


def every(_: Any) -> bool:
    return True


def again(block: Block, *patterns: str, precision: Precision = PRECISION) -> Block:
    return verify(with_checkpoints(precision.apply(checkpointed(block, patterns)), every))


def copies(block: Block) -> list[Equation]:
    return [equation for equation in equations_of(block) if equation.drawn is not None]


SMALL = Size(width=16, layers=3, heads=2, context=8)


def test_a_layer_more_keeps_one_stash_more_in_any_order() -> None:
    """The input of a block, in half precision, and nothing else of it."""
    sizes = [Size(width=32, layers=layers, heads=2, context=64) for layers in (2, 3)]
    grain = WORD * TARGET.tiles
    one = ceil_div(32 * 64 * 32 * 2, grain) * grain
    blocks = [again(ideal(size, 32), "blocks.*") for size in sizes]
    for order in (lambda block: block, partial(scheduled, target=TARGET)):
        first, second = (temporaries(order(block), TARGET) for block in blocks)
        assert second - first == one
    plain = [PRECISION.apply(ideal(size, 32)) for size in sizes]
    first, second = (temporaries(scheduled(block, TARGET), TARGET) for block in plain)
    assert second - first > 30 * one


def test_gradients_read_copies_of_products_and_sums_too_each_once() -> None:
    plain = PRECISION.apply(ideal(SMALL))
    block = again(ideal(SMALL), "blocks.*")
    made = {equation.number: equation for equation in equations_of(plain)}
    again_ = copies(block)
    assert {"dot", "reduce_sum", "reduce_max", "exp", "gelu"} <= {e.op for e in again_}
    assert len({(e.drawn, e.checkpoint) for e in again_}) == len(again_)
    for copy in again_:
        first = made[copy.keyed]
        assert (copy.op, copy.params, copy.arithmetic, copy.output.type) == (
            first.op, first.params, first.arithmetic, first.output.type,
        )  # fmt: skip
        assert copy.draws == first.draws
    inside = {e.output for e in equations_of(block) if e.checkpoint and e.role not in BACKWARD and e.drawn is None}
    parts = {e.output: e.checkpoint for e in equations_of(block) if e.role not in BACKWARD}
    for equation in equations_of(block):
        if equation.role in BACKWARD and equation.checkpoint:
            own = [var for var in equation.operands if var in inside and parts[var] is equation.checkpoint]
            assert not own, equation.name


def test_copies_stand_just_before_the_gradients_of_their_part_and_wait_for_them() -> None:
    for block in (again(ideal(SMALL), "blocks.*"), scheduled(again(ideal(SMALL), "blocks.*"), TARGET)):
        order = [(e.checkpoint.name, e.drawn is not None) for e in equations_of(block)
                 if e.checkpoint and (e.drawn is not None or e.role in BACKWARD)]  # fmt: skip
        firsts = {name: next(place for place, one in enumerate(order) if one[0] == name) for name, _ in order}
        assert sorted(firsts, key=firsts.__getitem__) == ["blocks.2", "blocks.1", "blocks.0"]
        place = {e.output: number for number, e in enumerate(equations_of(block))}
        for copy in copies(block):
            assert copy.waits is not None
            assert place[copy.waits] < place[copy.output]


def test_a_copy_that_waits_for_what_is_made_later_is_no_program() -> None:
    block = again(ideal(SMALL), "blocks.*")
    at = next(number for number, e in enumerate(block.equations) if e.drawn is not None)
    moved = [*block.equations]
    moved.insert(0, moved.pop(at))
    with pytest.raises(UseBeforeDefinition):
        verify(replace(block, equations=tuple(moved)))


def test_parts_are_the_shortest_beginnings_that_a_pattern_fits() -> None:
    def names(*patterns: str) -> list[str]:
        return [part.name for part in checkpoints_of(checkpointed(ideal(SMALL), patterns))]

    blocks = [f"blocks.{number}" for number in range(3)]
    assert names("blocks.*") == names("layers") == blocks
    assert names("blocks") == ["blocks"]
    assert names("blocks.1") == ["blocks.1"]
    assert names("*.attention") == [f"{name}.attention" for name in blocks]
    assert names("blocks.1", "blocks.*.attention") == ["blocks.0.attention", "blocks.1", "blocks.2.attention"]
    assert names("blocks.*", "blocks.2.attention.*") == blocks


@pytest.mark.parametrize("pattern, near", [("block.*", "blocks"), ("blocks.7", "blocks.0"), ("auto", "names are ")])
def test_a_pattern_that_names_nothing_is_refused_with_what_is_near(pattern: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"recompute='{pattern.replace('*', '[*]')}' is the name of nothing.*{near}"):
        checkpointed(ideal(SMALL), [pattern])


def perceptron(params: Any, batch: Any) -> Any:
    h = batch[0]
    for number, layer in enumerate(params["layers"]):
        h = h @ layer["weight"] + layer["bias"]
        h = h if number + 1 == len(params["layers"]) else nn.gelu(h)
    return nn.mse(h, batch[1])


def layers(*sizes: int) -> list[dict[str, Any]]:
    return [{"weight": nn.he_normal(1, (n, m)), "bias": np.zeros(m, np.float32)} for n, m in
            itertools.pairwise(sizes)]  # fmt: skip


def test_what_has_no_name_is_of_the_part_that_it_reads() -> None:
    """The activation behind a layer is made again with it; only what goes from layer to layer is kept."""
    batch = np.zeros((4, 8), np.float32), np.zeros((4, 2), np.float32)
    block = checkpointed(step_block(perceptron, Sgd(0.1), {"layers": layers(8, 16, 16, 2)}, batch), ["layers.*"])
    of = {e.checkpoint.name for e in equations_of(block) if e.op == "gelu" and e.checkpoint}
    assert of == {"layers.0", "layers.1"}
    assert {e.checkpoint for e in equations_of(block) if e.family == "loss" and e.role == "forward"} == {None}
    assert "gelu_gradient" in {e.op for e in equations_of(block) if e.role in BACKWARD and e.checkpoint}


@pytest.mark.parametrize(
    "names, wanted",
    [
        (["blocks.0.mlp.0.weight", "blocks.0.mlp.1.weight", "blocks.0.norm.scale", "head.weight"], {"blocks.0"}),
        (["layers.0.weight", "layers.1.weight"], {"layers.0", "layers.1"}),
        (["s.0.b.0.a.weight", "s.0.b.0.c.weight", "s.0.b.1.a.weight", "s.0.b.1.c.weight"], {"s.0.b.0", "s.0.b.1"}),
        (["layer1.0.conv1.weight", "layer1.0.down.0.weight", "fc.weight"], {"layer1.0"}),
        (["hidden.weight", "hidden.bias", "out"], {"hidden", "out"}),
    ],
)
def test_a_layer_is_the_innermost_numbered_part_with_layers_in_it(names: list[str], wanted: set[str]) -> None:
    block = ideal(SMALL)
    first = equations_of(block)[0]
    named = [replace(first, parameter=name, role="forward") for name in names]
    assert layer_names(Block((), (), tuple(named))) == wanted


def test_the_outer_of_parts_in_each_other_is_meant() -> None:
    def inner(p: Any, x: Any) -> Any:
        return nn.gelu(x @ p["weight"])

    def outer(p: Any, x: Any) -> Any:
        return nn.checkpoint(inner)(p[1], nn.checkpoint(inner)(p[0], x))

    def loss(around: bool, params: Any, batch: Any) -> Any:
        f = nn.checkpoint(outer) if around else outer
        with nn.name_scope("all.0", batch):
            h = f(params["layers"], batch)
        return nn.mean(nn.square(h))

    params, batch = {"layers": layers(8, 8, 8)}, np.zeros((4, 8), np.float32)
    two, one = (step_block(partial(loss, around), Sgd(0.1), params, batch) for around in (False, True))
    assert (len(checkpoints_of(two)), len(checkpoints_of(one))) == (2, 1)
    within = checkpoints_of(checkpointed(two, ["all.*"]))
    assert [part.name for part in within] == ["all.0"]
    (whole,) = checkpoints_of(one)
    assert set(checkpoints_of(checkpointed(one, ["layers.*"]))) == {whole}


def test_what_lives_to_the_end_or_in_streaming_memory_is_read_from_there() -> None:
    size = Size(width=16, layers=1, heads=2, context=8)
    far = streaming(PRECISION.apply(checkpointed(ideal(size), ["blocks.*"])), ["*.gelu", "blocks.0.attention.exp"])
    block = verify(with_checkpoints(far, every))
    names = {e.output.name for e in copies(block)}
    assert far.offloaded
    assert names
    for var in far.offloaded:
        assert f"{var.name}.again" not in names
    near = with_checkpoints(PRECISION.apply(checkpointed(ideal(size), ["blocks.*"])), every)
    assert {f"{var.name}.again" for var in far.offloaded} <= {e.output.name for e in copies(near)}


def test_a_part_of_which_gradients_read_nothing_has_no_copies() -> None:
    def loss(params: Any, batch: Any) -> Any:
        h = nn.checkpoint(lambda p, x: x + p)(params["shift"], batch)
        return nn.mean(nn.square(h))

    params = {"shift": np.zeros(8, np.float32)}
    block = PRECISION.apply(step_block(loss, Sgd(0.1), params, np.zeros((4, 8), np.float32)))
    (part,) = checkpoints_of(block)
    assert part not in read_anew(with_checkpoints(block, every))


def test_casts_of_weights_are_made_again_with_the_part_that_reads_them() -> None:
    """Half-precision copies of all float32 weights would else be kept over the whole step."""
    block = again(ideal(SMALL), "blocks.*", precision=Precision.parse("fp16.32"))
    cast = [e for e in copies(block) if e.op == "convert" and e.parameter and e.parameter.endswith("qkv.weight")]
    assert len(cast) == SMALL.layers


@pytest.mark.parametrize("precision", ["fp8.16/delayed", "fp8.16/current", "mxfp8"])
def test_scaled_operands_are_of_the_part_of_what_they_are_made_of(precision: str) -> None:
    block = again(ideal(SMALL, optimizer=AdamW(0.1)), "blocks.*", precision=Precision.parse(precision))
    families = {e.family for e in copies(block)}
    assert families & {"cast", "scaled_cast"}
    plain = Precision.parse(precision).apply(ideal(SMALL, optimizer=AdamW(0.1)))
    read = {var for e in equations_of(block) if e.drawn is not None for var in (e.output,)}
    kept = [var for e in equations_of(block) if e.op == "concatenate" and e.family == "scaling" for var in e.operands]
    assert not read.intersection(kept)  # the history is advanced by the first alone
    assert len(plain.outputs) == len(block.outputs)
