"""Maxima of magnitudes: no array of magnitudes is made for them, and the bits are those of one that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.lowering.magnitudes import compared_magnitudes
from ipu_core.compile.machine import Machine
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace

FEW = Target("gc200", tiles=6)
X = np.random.default_rng(1).normal(size=(24, 40)).astype(np.float16)
X[3, 7], X[5, 5] = -9.0, -0.0


def double(x: Any) -> Any:
    """A value that an equation makes."""
    return x + x


COMPARED: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: np.abs(double(x)).max(),
    "rows": lambda x: np.abs(double(x)).max(1),
    "columns": lambda x: np.abs(double(x)).max(0),
    "in stages": lambda x: np.reshape(np.abs(double(x)), (60, 16)).max(1).max(),
    "a transpose": lambda x: np.abs(double(x)).T.max(1),
    "a part": lambda x: np.abs(double(x))[::2, 4:].max(1),
    "two maxima": lambda x: np.abs(double(x)).max(0).sum() + np.abs(double(x)).max(1).sum(),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "an input": lambda x: np.abs(x).max(),
    "a part of a value": lambda x: np.abs(double(x)[:, 4:]).max(1),
    "a sum too": lambda x: [(m := np.abs(double(x))).max(1), m.sum(1)],
    "an output": lambda x: [(m := np.abs(double(x))).max(1), m],
    "no maximum": lambda x: np.abs(double(x)) + 1.0,
}


def block_of(function: Callable[[Any], Any], precision: str = "fp16.16/stochastic") -> Block:
    """A function of one array, typed."""
    return Precision.parse(precision).apply(trace(function, X))


def assert_same(block: Block, x: Any) -> None:
    """Tiles and direct engine agree to the bit, NaN and zeros too."""
    machine, x = Machine.build(block, FEW), x.astype(np.float16)
    for mine, theirs in zip(
        machine.run([x], 3), Executable(block, machine.plan.accumulations).run([x], 3), strict=True
    ):
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("name", COMPARED)
def test_no_array_of_magnitudes_is_made_for_maxima(name: str) -> None:
    block = block_of(COMPARED[name])
    made = {e.output for e in block.equations if e.op == "absolute"}
    assert compared_magnitudes(block) == made
    profile = Machine.build(block, FEW).profile
    assert not any("absolute" in step.name for step in profile.steps)


@pytest.mark.parametrize("name", MADE)
def test_magnitudes_that_something_else_needs_are_made(name: str) -> None:
    block = block_of(MADE[name])
    assert not compared_magnitudes(block)
    assert any("absolute" in step.name for step in Machine.build(block, FEW).profile.steps)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "fp16.32"])
@pytest.mark.parametrize("name", [*COMPARED, *MADE])
def test_the_bits_are_those_of_the_direct_engine(name: str, precision: str) -> None:
    block = block_of((COMPARED | MADE)[name], precision)
    for special in (None, np.inf, -np.inf, np.nan, -np.nan):
        x = X.astype(np.float32)
        if special is not None:
            x[11, 13] = special
        assert_same(block, x)


def test_zeros_of_either_sign_have_the_magnitude_zero() -> None:
    block = block_of(COMPARED["rows"])
    assert_same(block, np.copysign(np.zeros_like(X, np.float32), X.astype(np.float32)))


def test_exceptions_are_raised_as_before() -> None:
    machine = Machine.build(
        block_of(COMPARED["all"]), FEW, control=FloatingPointControl(inv=True, div0=True, oflo=True)
    )
    (largest,) = machine.run([X], 1)
    assert largest == 18.0


def test_in_a_loop_each_round_finds_its_own() -> None:
    def function(x: Any) -> Any:
        return nn.scan(lambda total, row: (total + np.abs(double(row)).max(), total), x[0, 0], x)[0]

    block = trace(function, X.astype(np.float32))
    machine = Machine.build(block, FEW)
    x = X.astype(np.float32)
    (mine,) = machine.run([x], 1)
    expected = x[0, 0]
    for row in x:
        expected = np.float32(expected + np.abs(row + row).max())
    assert mine == expected
