"""Recurrent cells and their runs over sequences, with the gates and formulas of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipu_core.ir.trace.scan import scanned
from ipu_core.ir.trace.values import Value, elementwise, matmul, shape_of
from ipu_core.nn.operations import sigmoid, tanh
from lowprec.checks import entries, shown, truth

Weights = Mapping[str, Value]


def lstm_cell(params: Weights, x: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
    """One step of long short-term memory: the new (hidden, cell).

    i, f, o = sigmoid and g = tanh of x @ input + hidden @ hidden's weight + bias, in the order i, f, g, o;
    cell = f * cell + i * g and hidden = o * tanh(cell).

    Args:
        params: {"input": (inputs, 4 n), "hidden": (n, 4 n), "bias": (4 n,)}.
        x: (rows, inputs).
        state: (hidden, cell), each (rows, n).
    """
    hidden, cell = _pair(state)
    of_input, of_hidden, bias = entries("params", params, ("input", "hidden", "bias"))
    sums = elementwise("add", elementwise("add", matmul(x, of_input), matmul(hidden, of_hidden)), bias)
    i, f, g, o = _runs(sums, 4)
    cell = elementwise("add", elementwise("multiply", sigmoid(f), cell), elementwise("multiply", sigmoid(i), tanh(g)))
    return elementwise("multiply", sigmoid(o), tanh(cell)), cell


def gru_cell(params: Weights, x: Value, hidden: Value) -> Value:
    """One step of a gated recurrent unit: the new hidden state.

    r, z = sigmoid of x @ input + bias + hidden @ hidden's weight + hidden's bias; the candidate is
    n = tanh(x @ input + bias + r * (hidden @ hidden's weight + hidden's bias)); hidden = (1 - z) * n + z * hidden.

    Args:
        params: {"input": (inputs, 3 n), "hidden": (n, 3 n), "bias": (3 n,), "hidden_bias": (3 n,)}, each r, z, n.
        x: (rows, inputs).
        hidden: (rows, n).
    """
    of_input, of_hidden, bias, hidden_bias = entries("params", params, ("input", "hidden", "bias", "hidden_bias"))
    ours = _runs(elementwise("add", matmul(x, of_input), bias), 3)
    # two biases, since the reset gate multiplies the hidden state's product and its bias, not the input's
    theirs = _runs(elementwise("add", matmul(hidden, of_hidden), hidden_bias), 3)
    reset, update = (sigmoid(elementwise("add", a, b)) for a, b in zip(ours[:2], theirs[:2], strict=True))
    candidate = tanh(elementwise("add", ours[2], elementwise("multiply", reset, theirs[2])))
    # (1 - z) n + z h as n + z (h - n): one product fewer
    kept = elementwise("multiply", update, elementwise("subtract", hidden, candidate))
    return elementwise("add", candidate, kept)


def lstm(params: Weights, x: Value, state: tuple[Value, Value] | None = None) -> tuple[Value, tuple[Value, Value]]:
    """Runs of `lstm_cell` along places: all hidden states and the last (hidden, cell).

    Args:
        params: of the cell.
        x: (rows, places, inputs).
        state: before the first place; None: zeros.

    Returns:
        (rows, places, n), and a pair of (rows, n).
    """
    start = (_zeros(params, x), _zeros(params, x)) if state is None else state
    return _run(lambda before, part: lstm_cell(params, part, before), lambda s: s[0], x, start, params)


def gru(params: Weights, x: Value, hidden: Value | None = None) -> tuple[Value, Value]:
    """Runs of `gru_cell` along places: all hidden states (rows, places, n) and the last (rows, n).

    Args:
        params: of the cell.
        x: (rows, places, inputs).
        hidden: before the first place; None: zeros.
    """
    start = _zeros(params, x) if hidden is None else hidden
    return _run(lambda before, part: gru_cell(params, part, before), lambda s: s, x, start, params)


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    x: Any,
    axis: int = 0,
    *,
    reverse: bool = False,
    unroll: bool = False,
) -> tuple[Any, Any]:
    """A function run along an axis, each time from the state that the last run left: a loop of one body.

    The body is traced once for its types and once for its equations, however many places there are, and stays on
    the device as a `Repeat`; so does that of its gradient, which goes the other way. What the gradient reads of
    each place is kept, a row for each, or made again where the body says so (`nn.checkpoint`, or ``recompute=`` by
    name). Every place draws random bits of its own: place i those that the body's equations draw with the key of
    iteration i (place 0 with that of the step). What does not depend on the place is computed once. On arrays it is
    a Python loop.

    Args:
        f: from (state, x at a place) to (new state, result). In a loop it has one value for all places: what it leaves
            elsewhere than in these cannot be read after the scan.
        state: before the first place, nested in any way; in a loop it keeps its shapes.
        x: an array of one place at least, or several, nested.
        axis: of x, and of the results.
        reverse: whether it runs from the last place to the first; results stay at their places.
        unroll: as many copies of the body as there are places, each with numbers of its own. So it is under unit
            scaling, where every place has factors of its own, and where neither state nor x are traced.

    Returns:
        The last state, and the results along the axis, nested as f gives them.

    Raises:
        ValueError: no places; arrays of different lengths; in a loop a state that changes its shapes or how it is
            nested, or a value of the body that is read outside.
        TypeError: no function, or one that does not give a pair; a state that changes between integers and floats.
    """
    if not callable(f):
        raise TypeError(f"scan takes a function (state, x) -> (state, result), not {shown(f)}")
    return scanned(f, state, x, axis, reverse=truth("reverse", reverse), unroll=truth("unroll", unroll))


def _run(
    cell: Callable[[Any, Value], Any], shown: Callable[[Any], Value], x: Value, state: Any, params: Weights
) -> tuple[Value, Any]:
    def step(before: Any, part: Value) -> tuple[Any, Value]:
        after = cell(before, part)
        return after, shown(after)

    last, outputs = scanned(step, state, x, 1, reads=params)
    return outputs, last


def _pair(state: Any) -> tuple[Value, Value]:
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise TypeError(f"the state of an LSTM is (hidden, cell), not {shown(state)}")
    return state[0], state[1]


def _zeros(params: Weights, x: Value) -> Value:
    (hidden,) = entries("params", params, ("hidden",))
    if len(shape_of(x)) != 3 or len(shape_of(hidden)) != 2:
        raise ValueError(
            f"a recurrent layer takes x (rows, places, inputs) and a hidden weight of two axes, not {shape_of(x)} and "
            f"{shape_of(hidden)}"
        )
    # a traced value has no dtype yet: the precision decides it
    dtype = x.dtype if isinstance(x, np.ndarray) else np.float32
    return np.zeros((shape_of(x)[0], shape_of(hidden)[0]), dtype)


def _runs(x: Value, count: int) -> list[Value]:
    """Equal runs of the last axis."""
    if not shape_of(x) or shape_of(x)[-1] % count:
        raise ValueError(f"the weights of {count} gates lie side by side: {shape_of(x)} is not {count} equal parts")
    size = shape_of(x)[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]
