"""Plans of reductions: sums (and maxima) over one axis of an array seen as outer x terms x inner."""

from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Operand, Product, operand
from ipu_core.plan.sums import SumPlan, choose_splits, plan_product
from ipu_core.target import Target
from lowprec import Accumulation
from lowprec.spec.formats import FormatLike

__all__ = ["choose_reduction_accumulation", "plan_reduction"]


def plan_reduction(
    target: Target,
    outer: int,
    terms: int,
    inner: int,
    *,
    operands: str = "float16",
    accumulation: Accumulation | None = None,
    types: tuple[FormatLike, FormatLike] | None = None,
    placement: Placement | None = None,
    memory: int | None = None,
    x: Operand | None = None,
    out: Operand | None = None,
) -> SumPlan:
    """Plans the reduction of (outer, terms, inner) over the terms.

    Args:
        target: the chip.
        outer, terms, inner: sizes.
        operands: name of the terms' format.
        accumulation: the order of the sum; None chooses one for this target and these types.
        types: (accumulate, out) format names; default the accumulation's, or the terms' own.
        placement: where; None searches for the fewest cycles. Its rows cut the outer, its columns the inner axis.
        memory: bytes per tile for gathered terms, partials and results; default what the operand leaves.
        x, out: how terms and result lie; default stored as written, in the layout every array gets.

    Raises:
        ValueError: unknown format, negative size, or a placement that needs more tiles than there are.
    """
    wanted = types or ((accumulation.accumulate, accumulation.out) if accumulation else (operands, operands))
    product = _product(target, outer, terms, inner, operands, x, out)
    return plan_product(target, product, accumulation, wanted, placement, memory)


def choose_reduction_accumulation(
    target: Target, outer: int, terms: int, inner: int, *, group: int = 16
) -> Accumulation:
    """A default order for a sum on this target: the splits that make a sum of halves fastest."""
    product = _product(target, outer, terms, inner, "float16", None, None)
    return choose_splits(target, product, Accumulation(group=group, accumulate="float16"))


def _product(
    target: Target, outer: int, terms: int, inner: int, operands: str, x: Operand | None, out: Operand | None
) -> Product:
    if min(outer, terms, inner) < 0:
        raise ValueError(f"sizes must not be negative: outer {outer}, terms {terms}, inner {inner}")
    sizes = {"b": 1, "m": outer, "k": terms, "n": inner}
    x, out = x or operand(target, "mkn", sizes), out or operand(target, "bmn", sizes)
    return Product(1, outer, terms, inner, operands, x, None, out)
