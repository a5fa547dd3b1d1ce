"""Lifetimes: views as NumPy makes them, last readers through views, one analysis for all who ask."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.compile.schedule.residency import residency
from ipu_core.ir.bodies import equations_of, regions_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.regions import Loop
from ipu_core.ir.run.buffers import allocate
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, broadcast
from ipu_core.train.optim import Sgd
from ipu_core.train.step import step_block

A = np.arange(24, dtype=np.float32).reshape(4, 6)
MOVES = {
    "transpose": lambda a: a.T,
    "slice": lambda a: a[1:, ::2],
    "broadcast": lambda a: broadcast(a, (3, 4, 6)),
    "reshape": lambda a: a.reshape(2, 12),
    "reshape of a slice": lambda a: a[:, 1:3].reshape(4, 1, 2),
    "reshape of a transpose": lambda a: a.T.reshape(3, 8),
    "stop_gradient": lambda a: apply("stop_gradient", a),
    "nothing of it": lambda a: a[:0].T,
}


@pytest.mark.parametrize("name", MOVES)
def test_a_value_lies_as_numpys_view_does(name: str) -> None:
    block = trace(lambda a: MOVES[name](a) * 2.0, A)
    views, arrays = lifetimes(block).views, allocate(block, {}).arrays
    for var, view in views.items():
        root, array = arrays[view.root], arrays[var]
        assert array.strides == tuple(step * 4 for step in view.strides) or array.size == 0
        if array.size:
            assert (array.__array_interface__["data"][0] - root.__array_interface__["data"][0]) == 4 * view.offset
        assert view.whole == (array is root or (view.root is not var and name == "stop_gradient"))
    copied = {var.name for var, view in views.items() if view.root is var}
    assert len(copied) == (3 if name == "reshape of a transpose" else 2)


def test_a_value_lives_until_its_last_view_is_read() -> None:
    block = trace(lambda a: (a.T, (a * 2.0).T[1:] + 1.0, a[0] * 3.0), A)
    views, last = lifetimes(block).views, lifetimes(block).last
    (source,) = block.inputs
    product = next(e.output for e in block.equations if e.op == "multiply" and e.output.type.shape == (4, 6))
    added = next(i for i, e in enumerate(block.equations) if e.op == "add")
    assert last[source] == len(block.equations)  # an output is a view of it
    assert last[product] == added
    assert {views[e.output].root for e in block.equations if e.op in ("transpose", "slice")} == {source, product}


def test_one_analysis_serves_all_who_ask() -> None:
    block, same = (trace(lambda w, x: (w + x.sum(), x.sum()), A, A, carry=True) for _ in range(2))
    assert lifetimes(block) is lifetimes(block)
    assert in_place(block) is in_place(block)
    assert residency(block, Target("gc200")) is residency(block, Target("gc200"))
    assert residency(block, Target("gc200")) is not residency(block, Target("gc2"))
    assert lifetimes(block) is not lifetimes(same)


def test_a_total_is_read_until_its_rounds_end_and_behind_them() -> None:
    params = {"w": np.ones((6, 3), np.float32)}
    block = step_block(lambda p, x: (x @ p["w"]).sum(), Sgd(0.1), params, A, micro_batches=2)
    ((loop, step),), last, every = regions_of(block, Loop), lifetimes(block).last, equations_of(block)
    reads = {var: i for i, e in enumerate(every) for var in e.operands if lifetimes(block).views[var].root is var}
    assert loop.carries
    for old, new in loop.carries:
        assert last[new] == reads[new] >= step.last
        assert last[old] == reads[old] < step.last
    (w,) = block.inputs[: block.carried]
    assert last[w] == len(every) - 1
    unread = trace(lambda a: (a * 2.0, a.sum()), A)
    assert lifetimes(unread).last[unread.outputs[1]] == len(unread.equations)


@pytest.mark.parametrize("read", [lambda s: s.T, lambda s: np.broadcast_to(s[:1], (4, 4))])
def test_no_state_is_written_over_while_its_elements_are_read_elsewhere(read: Callable[[Any], Any]) -> None:
    state, x = A[:, :4].copy(), A[:, 1:5].copy()
    block, same = (trace(lambda s, x, f=f: (f(s) + x,), state, x, carry=True) for f in (read, lambda s: s))
    assert not in_place(block)
    assert in_place(same)
    runs = Executable(block)
    runs.write([state])
    runs.feed([x], 0)
    np.testing.assert_array_equal(runs.read()[0], read(state) + x)
