"""Sums and maxima over axes of an array, on tiles."""

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.matmul.build import Chains, contract
from ipu_core.library.matmul.chains import MaxChains, MaxParts, ReduceChains, SumParts
from ipu_core.placement.matmul import SumPlan


def reduce(
    graph: Graph,
    x: Tensor,
    out: Tensor,
    plan: SumPlan,
    *,
    maximum: bool = False,
    magnitudes: bool = False,
    stochastic: bool = False,
    operation: int | None = None,
    name: str = "",
) -> list[Copy | Execute]:
    """Adds the sum (or the maximum, NaN if there is one) of (outer, terms, inner) over the terms.

    Args:
        graph: where.
        x: three axes.
        out: mapped, outer * inner elements in C order.
        plan: from `plan_sum`, for these sizes.
        maximum: the largest instead of the sum, exact in any order.
        magnitudes: of a maximum, that of the terms' magnitudes.
        stochastic: round stochastically after every group, stage and at the end.
        operation: number folded into the key of the random bits.
        name: for profiles.

    Returns:
        The programs to run, in order.

    Raises:
        ValueError: sizes that are not the plan's.
    """
    p = plan.product
    if x.shape != (p.m, p.k, p.n):
        raise ValueError(f"{x.shape} is not the plan's sum:\n{plan.words()}")
    # a maximum never rounds: as a stochastic vertex it would ask for a key
    codelet, params = (MaxChains, {"magnitudes": magnitudes}) if maximum else (ReduceChains, {"stochastic": stochastic})
    stages = MaxParts if maximum else SumParts
    chains = Chains(codelet, {"x": (x, "mkn", "mkn")}, params, stages)
    result = out.reshape(1, p.m, p.n)
    name = name or ("maximum" if maximum else "sum")
    rounds = stochastic and not maximum
    return contract(graph, chains, result, plan, stochastic=rounds, operation=operation, name=name)
