"""Labels that only choose: no one-hot rows are made, the bits are those of rows that are, and the loss needs less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.bill import bill
from ipu_core.compile.labelled import labelled
from ipu_core.compile.machine import Machine
from ipu_core.compile.schedule.residency import residency
from ipu_core.ir.block import Block, dtype_of
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace

FEW = Target("gc200", tiles=6)
RNG = np.random.default_rng(5)
SHAPES = [(12, 800), (3, 4, 800), (50, 200), (2, 6000), (7, 1733), (64, 111)]
"""Rows on a tile, and rows cut into pieces of as many columns, or of a prime number of them."""


def picked(x: Any, labels: Any) -> Any:
    """The element of every row at its label, of values that an equation makes."""
    wide = x * 1.0
    return nn.where(nn.one_hot(labels, wide.shape[-1]), wide, 0.0).sum(-1)


def added(x: Any, labels: Any) -> Any:
    """Rows with numbers at their labels."""
    return nn.where(nn.one_hot(labels, x.shape[-1]), -0.25, 0.0) + nn.exp(x)


def added_of_rows(x: Any, labels: Any) -> Any:
    """The same, of each row its own, from the right."""
    return nn.exp(x) + nn.where(
        nn.one_hot(labels, x.shape[-1]), x.max(-1, keepdims=True) * 2.0, x.sum(-1, keepdims=True)
    )


def both(x: Any, labels: Any) -> Any:
    """Both of the same rows."""
    rows, wide = nn.one_hot(labels, x.shape[-1]), x * 1.0
    return [nn.where(rows, wide, 0.0).sum(-1, keepdims=True), nn.exp(wide) + nn.where(rows, -1.0, 0.5)]


DONE: dict[str, Callable[..., Any]] = {"picked": picked, "added": added, "of rows": added_of_rows, "both": both}
MADE: dict[str, Callable[..., Any]] = {
    "an output": lambda x, y: [h := nn.one_hot(y, x.shape[-1]), nn.where(h, x * 1.0, 0.0).sum(-1)],
    "a product too": lambda x, y: [(h := nn.one_hot(y, x.shape[-1])) * x, nn.where(h, x * 1.0, 0.0).sum(-1)],
    "another sum": lambda x, y: nn.where(nn.one_hot(y, x.shape[-1]), x * 1.0, 0.0).sum(),
    "columns": lambda x, y: nn.where(nn.one_hot(y, x.shape[-1]), x * 1.0, 0.0).sum(0),
    "negative zeros": lambda x, y: nn.where(nn.one_hot(y, x.shape[-1]), x * 1.0, -0.0).sum(-1),
    "the others": lambda x, y: nn.where(nn.one_hot(y, x.shape[-1]), x * 1.0, 1.0).sum(-1),
    "what is chosen twice": lambda x, y: [(c := nn.where(nn.one_hot(y, x.shape[-1]), x * 1.0, 0.0)).sum(-1), c + x],
    "twice the same": lambda x, y: (c := nn.where(nn.one_hot(y, x.shape[-1]), 0.5, 0.0)) + c,
}  # fmt: skip


def block_of(function: Callable[..., Any], shape: tuple[int, ...], precision: str = "fp32.32") -> Block:
    return Precision.parse(precision).apply(
        trace(function, np.zeros(shape, np.float32), np.zeros(shape[:-1], np.int32))
    )


def assert_same(block: Block, *arrays: Any, **how: Any) -> None:
    """Tiles and direct engine agree to the bit."""
    machine = Machine.build(block, FEW, **how)
    inputs = [array.astype(dtype_of(var.type.format)) for array, var in zip(arrays, block.inputs, strict=True)]
    theirs = Executable(block, machine.plan.accumulations).run(inputs, 3)
    for mine, other in zip(machine.run(inputs, 3), theirs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.tobytes() == np.asarray(other).tobytes()


def names(block: Block, **how: Any) -> list[str]:
    return [name for step in Machine.build(block, FEW, **how).profile.steps for name in step.operations]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DONE)
def test_labels_choose_without_rows_to_the_same_bits(name: str, shape: tuple[int, ...], share: bool) -> None:
    block = block_of(DONE[name], shape)
    assert labelled(block, FEW).rows
    assert not any("one_hot" in one or "select" in one for one in names(block))
    # labels that are no columns choose nothing; zeros keep no sign in a sum; NaN and infinities stay in their rows
    labels = RNG.integers(-1, shape[-1] + 1, shape[:-1]).astype(np.int32)
    labels.flat[:2] = 0, shape[-1] - 1
    x = RNG.normal(size=shape).astype(np.float32)
    x.reshape(-1, shape[-1])[0, :2] = -0.0, np.inf
    x.reshape(-1, shape[-1])[1] = -np.nan
    assert_same(block, x, labels, share=share)


@pytest.mark.parametrize("name", MADE)
def test_rows_that_something_else_needs_are_made(name: str) -> None:
    block = block_of(MADE[name], (12, 800))
    assert not labelled(block, FEW).rows
    assert any("one_hot" in one for one in names(block))
    assert_same(block, RNG.normal(size=(12, 800)).astype(np.float32), RNG.integers(0, 800, 12).astype(np.int32))


FULL: list[tuple[tuple[int, ...], str]] = [
    ((1, 12_000), "fp32.32"),
    ((12_000, 1), "fp32.32"),
    ((12, 40), "fp32.32"),
    ((12, 800), "fp16.16/nearest"),
]


@pytest.mark.parametrize(("shape", "precision"), FULL)
def test_a_single_row_or_column_a_small_array_and_halves_are_made(shape: tuple[int, ...], precision: str) -> None:
    block = block_of(picked, shape, precision)
    assert not labelled(block, FEW).rows
    assert_same(block, RNG.normal(size=shape), np.array([0] * shape[0], np.int32))


def test_exceptions_take_rows() -> None:
    traps = FloatingPointControl(inv=True, div0=True, oflo=True)
    assert any("one_hot" in one for one in names(block_of(picked, (12, 800)), control=traps))


LOSSES: dict[str, Callable[..., Any]] = {
    "mean": nn.cross_entropy,
    "weighted": lambda x, y: nn.softmax_cross_entropy(x, y, x[:, 0] * x[:, 0]),
    "ignored": lambda x, y: nn.cross_entropy(x, y, ignore_index=-100),
    "smooth": lambda x, y: nn.cross_entropy(x, y, label_smoothing=0.1),
}


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "fp16.32"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_have_the_bits_of_the_direct_engine(name: str, precision: str) -> None:
    x, labels = RNG.normal(size=(12, 800)).astype(np.float32), RNG.integers(0, 800, 12).astype(np.int32)
    if name == "ignored":
        labels[3] = -100
    ideal = trace(value_and_grad(LOSSES[name]), x, labels)
    block = Precision.parse(precision).apply(ideal)
    # of a smoothed loss the number of all other classes is added first, to a gradient of its own
    assert bool(labelled(block, FEW).rows) == (name != "smooth")
    assert_same(block, x, labels, share=True, parallel=True)


def test_the_loss_over_50_257_words_keeps_one_float32_array_of_them() -> None:
    rows, words, target = 256, 50_257, Target("bow")
    kinds = np.broadcast_to(np.float32(0), (rows, words)), np.zeros(rows, np.int32)
    block = Precision.parse("fp16.16/stochastic").apply(trace(value_and_grad(nn.cross_entropy), *kinds))
    for share in (False, True):
        memory = bill(block, target, share=share, parallel=share).done.memory
        array = 41_592  # bytes of it on the fullest tile
        assert sum(size == array for _, size in memory.variables) == 2  # and the logits, which are float32 here
        assert memory.peak_bytes < 3 * array + 8 * 1024  # the third is what a sum gathers
        assert residency(block, target).peak.needed <= memory.peak_bytes
