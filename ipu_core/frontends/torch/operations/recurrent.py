"""Recurrent layers, each direction a scan along its places, and random masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.frontends.torch.operations.shapes import part, stacked
from ipu_core.ir.trace.evaluation import evaluates
from ipu_core.ir.trace.scan import scanned
from ipu_core.ir.trace.values import Traced, Value, apply, broadcast, concatenate, matmul, shape_of, transpose, where
from ipu_core.nn import dropout
from ipu_core.nn.operations import drawn_out

ALPHA = 1.7580993408473766  # SELU's scale times its alpha: minus what it tends to
Step = Callable[[Value, Sequence[Value], Sequence[Value]], tuple[Value, ...]]
"""From (sums of the inputs, hidden states, weights of the hidden) to the new states."""


def runs(x: Value, count: int) -> list[Value]:
    size = shape_of(x)[-1] // count
    return [x[:, i * size : (i + 1) * size] for i in range(count)]


def hidden_sums(state: Value, weights: Sequence[Value]) -> Value:
    made = matmul(state, transpose(weights[0]))
    return made if len(weights) == 1 else combined("add", made, weights[1])


def lstm_step(sums: Value, states: Sequence[Value], weights: Sequence[Value]) -> tuple[Value, ...]:
    i, f, g, o = runs(combined("add", sums, hidden_sums(states[0], weights)), 4)
    kept, fresh = (
        combined("multiply", apply("sigmoid", f), states[1]),
        combined("multiply", apply("sigmoid", i), apply("tanh", g)),
    )
    cell = combined("add", kept, fresh)
    return combined("multiply", apply("sigmoid", o), apply("tanh", cell)), cell


def gru_step(sums: Value, states: Sequence[Value], weights: Sequence[Value]) -> tuple[Value, ...]:
    ours, theirs = runs(sums, 3), runs(hidden_sums(states[0], weights), 3)
    reset, update = (apply("sigmoid", combined("add", a, b)) for a, b in zip(ours[:2], theirs[:2], strict=True))
    candidate = apply("tanh", combined("add", ours[2], combined("multiply", reset, theirs[2])))
    kept = combined("multiply", update, combined("subtract", states[0], candidate))
    return (combined("add", candidate, kept),)


def plain_step(function: str) -> Step:
    return lambda sums, states, weights: (apply(function, combined("add", sums, hidden_sums(states[0], weights))),)


def layer(step: Step, x: Value, states: Sequence[Value], weights: Sequence[Value], backwards: bool) -> tuple[Any, ...]:
    """All hidden states of one direction of one layer, (places, rows, n), and the last states."""
    own, of_hidden = weights[0::2], weights[1::2]
    # the inputs of all places in one product: only the hidden state has to wait for the place before
    sums = matmul(x, transpose(own[0]))
    sums = combined("add", sums, own[1]) if len(own) > 1 else sums

    def at_place(before: tuple[Value, ...], part: Value) -> tuple[tuple[Value, ...], Value]:
        after = step(part, before, of_hidden)
        return after, after[0]

    last, shown = scanned(at_place, tuple(states), sums, reverse=backwards, reads=list(weights))
    return shown, last


def network(step: Step) -> Callable[..., list[Value]]:
    """Layers in one or both directions: the last layer's hidden states and every layer's last states."""

    def run(
        call: NodeCall, x: Value, states: Any, weights: Sequence[Value], biases: Any, layers: int, rate: float,
        train: Any, both: bool, batch_first: Any,
    ) -> list[Value]:  # fmt: skip
        # the overload for packed sequences has lists at these places
        if isinstance(batch_first, list | tuple) or isinstance(biases, list | tuple):
            raise NotImplementedError("packed sequences")
        single, states = len(shape_of(x)) == 2, states if isinstance(states, list | tuple) else [states]
        if single:
            x, states = stacked(call, [x], 1), [stacked(call, [s], 1) for s in states]
        x = transpose(x, (1, 0, 2)) if batch_first and not single else x
        directions, ends = 2 if both else 1, list[Sequence[Value]]()
        each = len(weights) // (layers * directions)
        for number in range(layers):
            outputs = []
            for way in range(directions):
                which = number * directions + way
                own = _own(weights[which * each : (which + 1) * each], biases)
                shown, last = layer(step, x, [part(s, 0, which) for s in states], own, bool(way))
                outputs.append(shown)
                ends.append(last)
            x = outputs[0] if directions == 1 else concatenate(outputs, 2)
            # torch drops between layers, not after the last
            x = dropout(x, rate) if rate and train and number < layers - 1 else x
        finals = [stacked(call, column, 0) for column in zip(*ends, strict=True)]
        if single:
            return [x[:, 0], *(f[:, 0] for f in finals)]
        return [transpose(x, (1, 0, 2)) if batch_first else x, *finals]

    return run


def _own(weights: Sequence[Value], biases: bool) -> list[Value]:
    """The weights of the input and the hidden state in turn, then their biases."""
    if len(weights) != (4 if biases else 2):
        raise NotImplementedError("projections of the hidden state")
    return list(weights)


def cell(step: Step, count: int) -> Callable[..., Any]:
    """One step of a layer."""

    def run(
        call: NodeCall, x: Value, states: Any, w: Value, u: Value, b: Value | None = None, c: Value | None = None
    ) -> Any:
        states = states if isinstance(states, list | tuple) else [states]
        sums = matmul(x, transpose(w))
        sums = sums if b is None else combined("add", sums, b)
        new = step(sums, states, [u] if c is None else [u, c])
        return list(new) if count > 1 else new[0]

    return run


def dropped(call: NodeCall, x: Value, rate: float, train: bool = True) -> Value:
    """Dropout; the mask is drawn from the step's key, not by torch."""
    if not train or not rate:
        return x
    # the scale of what is kept would be infinite
    if rate >= 1:
        return combined("multiply", x, 0.0)
    return (
        dropout(x, rate)
        if isinstance(x, Traced)
        # a constant has no trace to draw in: an array of ones in the trace is dropped in its place
        else combined("multiply", x, dropout(call.full(1.0, shape_of(x)), rate))
    )


def drop_channels(call: NodeCall, x: Value, rate: float, train: bool = True) -> Value:
    """Dropout of whole channels."""
    if not train or not rate:
        return x
    shape = (*shape_of(x)[:2], *(1,) * (len(shape_of(x)) - 2))
    return combined("multiply", x, dropout(call.full(1.0, shape), rate))


def drop_alpha(call: NodeCall, x: Value, rate: float, train: bool = True, *, channels: bool = False) -> Value:
    """Dropout to SELU's limit far below 0, scaled and shifted so that mean and deviation stay."""
    if not train or not rate or evaluates():
        return x
    if rate >= 1:
        return combined("multiply", x, 0.0)
    shape = (*shape_of(x)[:2], *(1,) * (len(shape_of(x)) - 2)) if channels else shape_of(x)
    kept, factor = broadcast(drawn_out(call.full(1.0, shape), rate), shape_of(x)), alpha_factor(rate)
    whole = combined("add", combined("multiply", x, factor), ALPHA * factor * rate)
    return where(kept, whole, ALPHA * factor * (rate - 1))


def alpha_factor(rate: float) -> float:
    """What alpha dropout multiplies all elements by, as torch computes it."""
    return 1 / math.sqrt((ALPHA**2 * rate + 1) * (1 - rate))


def bernoulli(call: NodeCall, x: Value, chance: float = 0.5, *_: Any) -> Value:
    """Random numbers: 1 with a given probability, else 0."""
    if not isinstance(chance, float) or not 0 < chance <= 1:
        raise NotImplementedError("a probability for each element")
    kept = drawn_out(call.full(1.0, call.shape), 1 - chance)
    return where(kept, 1.0, 0.0)


TABLE: dict[str, Callable[..., Any]] = {
    "lstm": network(lstm_step), "gru": network(gru_step), "rnn_tanh": network(plain_step("tanh")),
    "rnn_relu": network(plain_step("relu")),
    "lstm_cell": cell(lstm_step, 2), "gru_cell": cell(gru_step, 1), "rnn_tanh_cell": cell(plain_step("tanh"), 1),
    "rnn_relu_cell": cell(plain_step("relu"), 1),
    "dropout": dropped, "feature_dropout": drop_channels, "bernoulli": bernoulli, "alpha_dropout": drop_alpha,
    "feature_alpha_dropout": lambda call, x, rate, train=True: drop_alpha(call, x, rate, train, channels=True),
}  # fmt: skip
