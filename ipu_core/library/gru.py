"""A step of a gated recurrent unit on tiles, without a training layer."""

from collections.abc import Mapping
from typing import Any

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.steps import Steps


def gru_cell(
    graph: Graph,
    weights: Mapping[str, Tensor],
    x: Tensor,
    hidden: Tensor,
    programs: list[Program],
    *,
    accumulate: Any = "float32",
    stochastic: bool = False,
    operation: int = 0,
    name: str = "gru",
) -> Tensor:
    """Adds the new hidden state, in the format of x.

    r, z = sigmoid of x @ input + bias + hidden @ hidden's weight + hidden's bias; the candidate is
    n = tanh(x @ input + bias + r * (hidden @ hidden's weight + hidden's bias)); hidden = n + z * (hidden - n).

    Args:
        graph: where.
        weights: {"input": (inputs, 3 n), "hidden": (n, 3 n), "bias": (3 n,), "hidden_bias": (3 n,)}, each r, z, n;
            mapped, in the format of x.
        x: mapped (rows, inputs).
        hidden: mapped (rows, n), in the format of x.
        programs: what is to be run is appended to it; for a run over places call it for each, or run it in a `Repeat`
            with copies of the state.
        accumulate: format of the partial sums of products.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the first of them; the other three take the next.
        name: for profiles.

    Raises:
        ValueError: weights whose sizes do not fit.
    """
    fmt, n = x.format, hidden.shape[-1]
    wanted = {"input": (x.shape[-1], 3 * n), "hidden": (n, 3 * n), "bias": (3 * n,), "hidden_bias": (3 * n,)}
    if (given := {key: weights[key].shape for key in wanted}) != wanted:
        raise ValueError(f"weights must have the shapes {wanted}, not {given}")
    steps = Steps(graph, programs, name, stochastic, operation)

    def made(op: str, *operands: Tensor) -> Tensor:
        return steps.elementwise(op, *operands, fmt=fmt)

    ours = made("add", steps.matmul(x, weights["input"], fmt=fmt, accumulate=accumulate), weights["bias"])
    product = steps.matmul(hidden, weights["hidden"], fmt=fmt, accumulate=accumulate)
    theirs = made("add", product, weights["hidden_bias"])
    gates = made("sigmoid", made("add", ours[:, : 2 * n], theirs[:, : 2 * n]))  # both at once
    candidate = made("tanh", made("add", ours[:, 2 * n :], made("multiply", gates[:, :n], theirs[:, 2 * n :])))
    return made("add", candidate, made("multiply", gates[:, n:], made("subtract", hidden, candidate)))
