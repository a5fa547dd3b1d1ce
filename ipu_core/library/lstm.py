"""A step of long short-term memory on tiles, without a training layer."""

from collections.abc import Mapping
from typing import Any

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.steps import Steps


def lstm_cell(
    graph: Graph,
    weights: Mapping[str, Tensor],
    x: Tensor,
    state: tuple[Tensor, Tensor],
    programs: list[Program],
    *,
    accumulate: Any = "float32",
    stochastic: bool = False,
    operation: int = 0,
    name: str = "lstm",
) -> tuple[Tensor, Tensor]:
    """Adds the new (hidden, cell), in the format of x.

    i, f, o = sigmoid and g = tanh of x @ input + hidden @ hidden's weight + bias, in the order i, f, g, o;
    cell = f * cell + i * g and hidden = o * tanh(cell).

    Args:
        graph: where.
        weights: {"input": (inputs, 4 n), "hidden": (n, 4 n), "bias": (4 n,)}, mapped, in the format of x.
        x: mapped (rows, inputs).
        state: (hidden, cell), each mapped (rows, n).
        programs: what is to be run is appended to it; for a run over places call it for each, or run it in a `Repeat`
            with copies of the state.
        accumulate: format of the partial sums of products.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the first of them; the others take the next, at most 16.
        name: for profiles.

    Raises:
        ValueError: weights whose sizes do not fit.
    """
    (hidden, cell), fmt = state, x.format
    n = hidden.shape[-1]
    wanted = {"input": (x.shape[-1], 4 * n), "hidden": (n, 4 * n), "bias": (4 * n,)}
    if (given := {key: weights[key].shape for key in wanted}) != wanted:
        raise ValueError(f"weights must have the shapes {wanted}, not {given}")
    steps = Steps(graph, programs, name, stochastic, operation)
    ours = steps.matmul(x, weights["input"], fmt=fmt, accumulate=accumulate)
    theirs = steps.matmul(hidden, weights["hidden"], fmt=fmt, accumulate=accumulate)
    sums = steps.elementwise("add", steps.elementwise("add", ours, theirs, fmt=fmt), weights["bias"], fmt=fmt)
    i, f, g, o = (sums[:, k * n : (k + 1) * n] for k in range(4))
    kept = steps.elementwise("multiply", steps.elementwise("sigmoid", f, fmt=fmt), cell, fmt=fmt)
    fresh = steps.elementwise(
        "multiply", steps.elementwise("sigmoid", i, fmt=fmt), steps.elementwise("tanh", g, fmt=fmt), fmt=fmt
    )
    cell = steps.elementwise("add", kept, fresh, fmt=fmt)
    return steps.elementwise(
        "multiply", steps.elementwise("sigmoid", o, fmt=fmt), steps.elementwise("tanh", cell, fmt=fmt), fmt=fmt
    ), cell
