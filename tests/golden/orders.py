"""Golden orders: the parts that rules give 300 products, sums and convolutions on the chips of both families."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from ipu_core.chip.target import Target
from ipu_core.placement.convolution.sizes import Convolution
from ipu_core.placement.orders import RULES, OrderRule, convolution_order, product_order, reduction_order

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


LONG = [
    ("sum", size)
    for size in (
        (1, 250880, 64),
        (1, 15680, 512),
        (1, 3920, 1024),
        (1, 1 << 22, 1),
        (1, 8192, 2),
        (1, 8191, 2),
        (7, 9000, 3),
    )
]
"""Sums over first axes that tiles add up where they lie, and some that they do not, from the second rule on."""


def parts(what: str, size: tuple[int, ...], target: Target, version: str = "1") -> int:
    """The parts that a rule gives."""
    rule = replace(OrderRule.of(target), version=version)
    if what == "product":
        batch, m, k, n = size
        return product_order(rule, m, k, n, batch=batch).splits
    if what == "sum":
        return reduction_order(rule, *size).splits
    n, high, groups, inputs, outputs, kernel = size
    result = (n, high, high, groups, outputs) if what == "image" else (kernel, kernel, inputs, groups, outputs)
    inner = (kernel, kernel, inputs) if what == "image" else (n, high, high)
    kind: Any = what
    return convolution_order(rule, Convolution(kind, result, inner, (1, 1), (1, 1), "float16")).splits


def build() -> dict[str, Any]:
    """The golden file of the rules of orders: what the first gives, then what later ones give otherwise."""
    found: dict[str, Any] = {"rule": "1"}
    for version in RULES:
        for what, size in shapes() + LONG:
            name = f"{what} {'x'.join(map(str, size))}"
            given = {family: parts(what, size, Target(chip), version) for family, chip in CHIPS.items()}
            if version == "1" and (what, size) not in LONG:
                found[name] = given
            elif found.get(name) != given:
                found[f"rule {version}: {name}"] = given
    return {"orders.json": found}
