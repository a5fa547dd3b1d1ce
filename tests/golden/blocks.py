"""Golden bits of block formats, of arrays with one scale, and of packed codes."""

from __future__ import annotations

from typing import Any

import numpy as np

import lowprec as lp
from lowprec.scaling.blocks import BlockArray
from lowprec.values.block_format import block_formats
from tests.golden import hexadecimal
from tests.golden.sums import numbers

MODES = ("nearest_even", "up", "odd", "stochastic")


def codes_of(blocks: BlockArray) -> dict[str, str]:
    """Elements and scales."""
    return {
        "elements": hexadecimal(np.ascontiguousarray(blocks.elements).view(blocks.format.element.code_dtype)),
        "scales": hexadecimal(np.ascontiguousarray(blocks.scales).view(blocks.format.scale.code_dtype)),
    }


def quantised() -> dict[str, Any]:
    """Every format, scale rule and a few modes, with special values, along both axes."""
    results: dict[str, Any] = {}
    x = numbers((5, 70), 1, "float32")
    x[1, 3], x[2, 40], x[3, :32], x[4, 5] = np.nan, np.inf, 0, -0.0
    for name, fmt in block_formats.items():
        options: dict[str, Any] = {"key": 11, "offset": 1000}
        for mode in MODES:
            results[f"{name} {mode}"] = codes_of(lp.to_blocks(x, name, rounding=mode, **options))
        results[f"{name} axis 0"] = codes_of(lp.to_blocks(x, name, 0, rounding="stochastic", **options))
        for rule in fmt.scale_rules[1:]:
            results[f"{name} {rule}"] = codes_of(lp.to_blocks(x, name, scale_rule=rule))
    finite = numbers((3, 50), 2, "float16")
    for tensor in ("auto", 0.25):
        results[f"nvfp4 tensor scale {tensor}"] = codes_of(lp.to_blocks(finite, "nvfp4", tensor_scale=tensor))
    for exponent in ("auto", -3):
        for mode in MODES:
            made = lp.to_scaled(finite, "float8_e4m3fnuz", exponent, rounding=mode, key=11, overflow="ipu")
            elements = made.elements.view(np.uint8)
            results[f"scaled {exponent} {mode}"] = {"elements": hexadecimal(elements), "exponent": made.exponent}
    return results


def packed() -> dict[str, Any]:
    """Codes of four and six bits."""
    codes = np.arange(300) * 40503 % 65536 >> 7
    return {
        name: hexadecimal(lp.pack((codes % (1 << lp.as_format(name).bits)).reshape(3, 100)[:, :n], name))
        for name in ("float4_e2m1fn", "float6_e3m2fn")
        for n in (99,)
    }


def build() -> dict[str, Any]:
    """Every file of this module."""
    return {"blocks.json": {"quantised": quantised(), "packed": packed()}}
