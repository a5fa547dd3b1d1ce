"""New state over the old: where it may be written in place, and that the machine computes what whole arrays do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.errors import FloatingPointException
from ipu_core.ir.liveness.lifetimes import in_place
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, convert

W = np.random.default_rng(3).normal(size=(6, 6)).astype(np.float32)
FEW = Target("gc200", tiles=5)
UPDATES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "of itself": (lambda w: 0.5 * w, True),
    "beside a copy": (lambda w: w + 0.5 * w.T, True),  # the product of the transpose is made before
    "over its transpose": (lambda w: apply("scaled_add", w, w.T, 0.5), False),
    "over its transpose alone": (lambda w: w.T * 2.0, False),
    "over a row of itself": (lambda w: w + w[:1], False),
    "over its transpose seen back": (lambda w: w + w.T.T, True),
    "of a product": (lambda w: w @ w, False),
    "of a sum of itself": (lambda w: w - w.sum(0), True),
    "of its sum alone": (lambda w: np.ones((6, 6), np.float32) * w.sum(), True),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_in_place_read_no_element_that_is_written(name: str) -> None:
    update, over = UPDATES[name]

    def step(w: Any) -> Any:
        total = w.sum()
        return update(w), total

    block = trace(step, W, carry=True)
    assert bool(in_place(block)) == over
    machine, direct = Machine.build(block, FEW), Executable(block)
    state = [W]
    for key in range(3):
        got, wanted = machine.run(state, key), direct.run(state, key)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        state = [got[0]]
    np.testing.assert_allclose(direct.run([W], 0)[0], update(W.astype(np.float64)), rtol=1e-5)


def test_old_state_that_is_read_later_or_given_out_is_kept() -> None:
    def found(f: Callable[..., Any], *others: Any) -> list[int]:
        block = trace(f, [W, W + 1], *others, carry=True)
        return sorted(block.inputs.index(old) for old in in_place(block).values())

    assert found(lambda s: ([s[0] * 2.0, s[1] * 3.0],)) == [0, 1]
    assert found(lambda s: ([s[0] * 2.0, s[1] + s[0]],)) == [1]  # the first is read after it was replaced
    assert found(lambda s: ([s[0] * 2.0, s[1] * 3.0], s[0])) == [1]
    assert found(lambda s: ([s[1], s[0] * 2.0],)) == []  # the second goes out as the first
    assert found(lambda s: ([(new := s[0] * 2.0), new],)) == [0]  # only one of them can lie there
    assert found(lambda s: ([(s[0] @ s[0]).T, s[1] * 3.0],)) == [1]  # the first is a view of what is computed
    assert found(lambda s: ([convert(s[0], "float16"), s[1] * 3.0],)) == [1]


def test_states_that_change_places_meet_no_half_written_array() -> None:
    block = trace(lambda s: ([s[1], s[0]], s[0].sum()), [W, W + 1], carry=True)
    machine, direct = Machine.build(block, FEW), Executable(block)
    for got, wanted in zip(machine.run([W, W + 1], 0), direct.run([W, W + 1], 0), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_overflow_is_seen_where_the_result_is_written_over_its_operand() -> None:
    block = trace(lambda s, lr: (s * 1e30, lr * 2.0), W, np.float32(0), carry=True)
    assert in_place(block)
    machine = Machine.build(block, FEW, control=FloatingPointControl(oflo=True))
    machine.run([W, np.float32(1)], 0)
    with pytest.raises(FloatingPointException, match="overflow"):
        machine.run([W * np.float32(1e20), np.float32(1)], 0)
