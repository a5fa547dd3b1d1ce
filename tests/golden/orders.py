"""Golden orders: the parts that the rule gives 300 products, sums and convolutions on the chips of both families."""

from __future__ import annotations

import random
from typing import Any

from ipu_core.chip.target import Target
from ipu_core.placement.convolution.sizes import Convolution
from ipu_core.placement.orders import RULE, OrderRule, convolution_order, product_order, reduction_order

CHIPS = {"mk1": "gc2", "mk2": "gc200"}
SIZES = (0, 1, 3, 10, 16, 31, 64, 100, 128, 256, 384, 512, 768, 1000, 1024, 2304, 3072, 4096, 8192, 50257)


def shapes() -> list[tuple[str, tuple[int, ...]]]:
    """(what it is, sizes): (batch, m, k, n), (outer, terms, inner), or (n, h, w, groups, inputs, outputs, kernel)."""
    chosen = random.Random(1)
    products = [(chosen.choice((1, 1, 4, 12, 96)), *(chosen.choice(SIZES) for _ in range(3))) for _ in range(160)]
    sums = [(chosen.choice((1, 1, 64, 4096)), chosen.choice(SIZES), chosen.choice(SIZES)) for _ in range(50)]
    sizes = (1, 4, 8, 64), (4, 7, 14, 28, 56), (1, 1, 1, 16), (1, 3, 16, 64, 256), (1, 16, 64, 256), (1, 3, 5, 7)
    images = [tuple(chosen.choice(some) for some in sizes) for _ in range(50)]
    return [
        *(("product", size) for size in products),
        *(("sum", size) for size in sums),
        *((kind, size) for size in images for kind in ("image", "weight")),
    ]


def parts(what: str, size: tuple[int, ...], target: Target) -> int:
    """The parts that the rule gives."""
    if what == "product":
        batch, m, k, n = size
        return product_order(OrderRule.of(target), m, k, n, batch=batch).splits
    if what == "sum":
        return reduction_order(OrderRule.of(target), *size).splits
    n, high, groups, inputs, outputs, kernel = size
    result = (n, high, high, groups, outputs) if what == "image" else (kernel, kernel, inputs, groups, outputs)
    inner = (kernel, kernel, inputs) if what == "image" else (n, high, high)
    kind: Any = what
    return convolution_order(OrderRule.of(target), Convolution(kind, result, inner, (1, 1), (1, 1), "float16")).splits


def build() -> dict[str, Any]:
    """The golden file of the rule of orders."""
    found: dict[str, Any] = {"rule": RULE}
    for what, size in shapes():
        name = f"{what} {'x'.join(map(str, size))}"
        found[name] = {family: parts(what, size, Target(chip)) for family, chip in CHIPS.items()}
    return {"orders.json": found}
