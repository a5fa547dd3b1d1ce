"""Matrix products on tiles, in the order of an Accumulation and at the place of a Placement."""

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array
from ipu_core.library.matmul.build import Chains, contract
from ipu_core.library.matmul.chains import MatmulChains
from ipu_core.placement.matmul import SumPlan


def matmul(
    graph: Graph,
    a: Tensor,
    b: Tensor,
    plan: SumPlan,
    *,
    out: Tensor | None = None,
    scale: Tensor | None = None,
    stochastic: bool = False,
    operation: int | None = None,
    name: str = "matmul",
) -> tuple[Tensor, list[Copy | Execute]]:
    """Adds the product of (.., m, k) and (.., k, n).

    Args:
        graph: where.
        a, b: operands, any affine views of different variables; leading axes (at most one after joining) are a batch.
        plan: from `plan_sum`, for these sizes. Its cycles hold if the operands lie as it states.
        out: a mapped (.., m, n) tensor of the plan's result format; default a new variable in its shape's layout.
        scale: one number that products are multiplied by before they are added, a power of two; None: 1.
        stochastic: round stochastically after every group, stage and at the end.
        operation: number folded into the key of the random bits.
        name: for profiles.

    Returns:
        The result and the programs that compute it, in order.

    Raises:
        ValueError: shapes that are not the plan's, or leading axes that do not join.
    """
    shape = (*a.shape[:-1], b.shape[-1])
    p = plan.product
    views = [_batched(tensor) for tensor in (a, b)]
    if [view.shape for view in views] != [(p.batch, p.m, p.k), (p.batch, p.k, p.n)]:
        raise ValueError(f"{a.shape} @ {b.shape} is not the plan's product:\n{plan.words()}")
    result = add_array(graph, plan.accumulation.out, shape, name) if out is None else out
    fields = {"a": (views[0], "bmk", "mk"), "b": (views[1], "bkn", "kn")}
    if scale is not None:
        # no axes: every vertex reads the same element
        fields["scale"] = (scale, "", "")
    chains = Chains(MatmulChains, fields, {"operand_name": p.operands, "stochastic": stochastic})
    programs = contract(graph, chains, _batched(result), plan, stochastic=stochastic, operation=operation, name=name)
    return result, programs


def _batched(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1 if tensor.size else 0, *tensor.shape[-2:]) if tensor.ndim != 3 else tensor
