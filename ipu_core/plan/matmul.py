"""Plans of matrix products."""

from collections.abc import Iterable

from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Operand, Product, operand
from ipu_core.plan.sums import SumPlan, choose_splits, plan_product
from ipu_core.target import Target
from lowprec import Accumulation
from lowprec.spec.formats import FormatLike

__all__ = ["choose_accumulation", "plan_matmul"]


def plan_matmul(
    target: Target,
    m: int,
    k: int,
    n: int,
    *,
    batch: int = 1,
    operands: str = "float16",
    accumulation: Accumulation | None = None,
    types: tuple[FormatLike, FormatLike] | None = None,
    placement: Placement | None = None,
    memory: int | None = None,
    a: Operand | None = None,
    b: Operand | None = None,
    out: Operand | None = None,
) -> SumPlan:
    """Plans (batch, m, k) x (batch, k, n).

    Args:
        target: the chip.
        m, k, n, batch: sizes.
        operands: name of both operands' format.
        accumulation: the order of the sum; None chooses one for this target and these types.
        types: (accumulate, out) format names; default the accumulation's, or the operands' own.
        placement: where; None searches for the fewest cycles. A given one is checked and costed.
        memory: bytes per tile for gathered operands, partials and results; default what the operands leave.
        a, b, out: how operands and result lie; default stored as written, in the layout every array gets.

    Raises:
        ValueError: unknown format, negative size, or a placement that needs more tiles than there are.
        UnsupportedByTarget: the chip has no AMP mode for these formats.
    """
    wanted = types or ((accumulation.accumulate, accumulation.out) if accumulation else (operands, operands))
    product = _product(target, batch, m, k, n, operands, (a, b, out))
    return plan_product(target, product, accumulation, wanted, placement, memory)


def choose_accumulation(target: Target, m: int, k: int, n: int, *, batch: int = 1, group: int = 16) -> Accumulation:
    """A default order for a product on this target: the splits that make FP16.16 fastest, and the target's adder.

    A study uses one choice for all its precisions, so that only the arithmetic varies; set the types with
    `Accumulation.with_types`.
    """
    kinds = [(a, p) for a, p, _ in target.macs]
    operands, partials = ("float16", "float16") if ("float16", "float16") in kinds else kinds[0]
    product = _product(target, batch, m, k, n, operands, (None, None, None))
    return choose_splits(target, product, Accumulation(group=group, accumulate=partials, adder=target.adder))


def _product(
    target: Target, batch: int, m: int, k: int, n: int, operands: str, given: Iterable[Operand | None]
) -> Product:
    if min(m, k, n, batch) < 0:
        raise ValueError(f"sizes must not be negative: batch {batch}, m {m}, k {k}, n {n}")
    sizes = {"b": batch, "m": m, "k": k, "n": n}
    a, b, out = (one or operand(target, axes, sizes) for one, axes in zip(given, ("bmk", "bkn", "bmn"), strict=True))
    return Product(batch, m, k, n, operands, a, b, out)
