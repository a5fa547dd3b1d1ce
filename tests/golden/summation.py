"""Golden bits of exact arithmetic and of sums in every stated order."""

from __future__ import annotations

from typing import Any

import lowprec as lp
from lowprec.sums.ordered import ORDERS
from lowprec.values.collective import ALGORITHMS
from tests.golden.sums import codes, numbers

ROUNDINGS: dict[str, dict[str, Any]] = {
    "nearest_even": {"rounding": "nearest_even"},
    "odd": {"rounding": "odd"},
    "down": {"rounding": "down"},
    "stochastic": {"rounding": "stochastic", "key": 0x0123456789ABCDEF},
    "stochastic 5 bits": {"rounding": "stochastic", "key": 3, "random_bits": 5},
    "stochastic 20 bits": {"rounding": "stochastic", "key": 3, "random_bits": 20},
}
FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz")


def arithmetic() -> dict[str, Any]:
    """Every operation, rounded once to short and long formats."""
    a, b, c = (numbers((9, 5), seed, dtype) for seed, dtype in ((11, "float32"), (12, "float16"), (13, "bfloat16")))
    return {
        f"{name} {fmt} {words}": codes(getattr(lp, name)(*operands, fmt, **options))
        for name, operands in {
            "add": (a, b),
            "subtract": (a, c),
            "multiply": (a, b),
            "divide": (b, c),
            "sqrt": (abs(a),),
            "fma": (a, b, c),
            "scaled_add": (c, a, b[0]),
        }.items()
        for fmt in FORMATS
        for words, options in ROUNDINGS.items()
    }


def sums() -> dict[str, Any]:
    """Sums, means, dots, norms and running sums over an axis of 37 terms, in every order."""
    x, y = numbers((3, 37, 2), 14, "float16"), numbers((3, 37, 2), 15, "float16")
    results: dict[str, Any] = {}
    for fmt in FORMATS:
        for words, options in ROUNDINGS.items():
            given: dict[str, Any] = {"axis": 1, **options}
            for order in ORDERS:
                results[f"sum {order} {fmt} {words}"] = codes(lp.sum(x, fmt, order=order, block=8, **given))
                if order != "kahan":
                    results[f"dot {order} {fmt} {words}"] = codes(lp.dot(x, y, fmt, order=order, block=8, **given))
            results[f"cumulative_sum {fmt} {words}"] = codes(lp.cumulative_sum(x, fmt, **given))
            results[f"mean {fmt} {words}"] = codes(lp.mean(x, fmt, **given))
            results[f"norm {fmt} {words}"] = codes(lp.norm(x, fmt, **given))
    results["sum sequential float64"] = codes(lp.sum(x, "float64", axis=1))
    return results


def collectives() -> dict[str, Any]:
    """All-reduces of six chips, of 37 numbers each, by every algorithm, from the first chip and the fourth."""
    x, results = numbers((6, 37), 16, "float16"), dict[str, Any]()
    for algorithm in ALGORITHMS:
        for wire, partial in (("float32", None), ("float16", None), ("bfloat16", "float32"), ("float8_e5m2", None)):
            for words, options in ROUNDINGS.items():
                how = {name: value for name, value in options.items() if name != "key"}
                rounding = lp.Rounding(how.pop("rounding"), **how)
                for first in (0, 3):
                    group = 2 if algorithm == "two_level" else None
                    order = lp.Collective(algorithm, first, group, wire, partial, rounding)
                    found = codes(lp.all_reduce(x, order, key=options.get("key")))
                    results[f"{algorithm} from {first}, {wire} {partial} {words}"] = found
    return results


def build() -> dict[str, Any]:
    """Every file of this module."""
    return {"arithmetic.json": arithmetic(), "summation.json": sums(), "collectives.json": collectives()}
