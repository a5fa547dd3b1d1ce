"""Plans of matrix products and of sums: the order of their additions, and the cheapest cut over tiles and in time."""

from ipu_core.placement.matmul.placement import Placement
from ipu_core.placement.matmul.product import Product, product_of, sum_of
from ipu_core.placement.matmul.sum_plan import RESERVED, SumPlan, plan_sum

__all__ = [
    "RESERVED", "Placement", "Product", "SumPlan", "plan_sum",
    "product_of", "sum_of",
]  # fmt: skip
