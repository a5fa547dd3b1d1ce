"""The rules that choose a block's power-of-two scale, against their words in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowprec as lp
from lowprec.scaling.blocks import to_blocks
from lowprec.values.block_format import BlockFormat, block_formats
from tests.lowprec.scaling.test_blocks import MX, PUBLISHED, TABLES, floor_log2, magnitudes


def exact_rule(rule: str, amax: Fraction, name: str) -> int:
    """The shared exponent a rule wants, from its words."""
    largest, emax = Fraction(PUBLISHED[name][0]), PUBLISHED[name][1]
    table = magnitudes(TABLES[name])
    if rule == "floor":
        return floor_log2(amax) - emax
    if rule == "ceil":
        return -floor_log2(1 / amax) - emax
    if rule == "even":
        step = Fraction(2) ** (floor_log2(amax) - block_formats[name].element.mantissa_bits)
        below = amax // step
        up = amax - below * step > step / 2 or (amax - below * step == step / 2 and below % 2 == 1)
        return floor_log2((below + up) * step) - emax
    assert table[-1] == largest
    return next(e for e in range(-400, 400) if amax <= largest * Fraction(2) ** e)


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
def test_scale_rules_against_their_words(name: str, rule: str) -> None:
    mantissa = block_formats[name].element.mantissa_bits
    edges = np.array([1.0, 2 - 2.0**-mantissa, 2 - 2.0 ** -(mantissa + 1), 2 - 2.0 ** -(mantissa + 2), 1.5], np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(9))])
    edges = np.concatenate([edges, edges * 2.0**-40, edges * 2.0**30]).astype(np.float32)
    x = np.stack([edges, -edges / 3], axis=1)
    scales = to_blocks(
        x, BlockFormat("pairs", block_formats[name].element, lp.float8_e8m0fnu, 2), scale_rule=rule
    ).scales
    wanted = [2.0 ** exact_rule(rule, Fraction(float(v)), name) for v in edges]
    np.testing.assert_array_equal(scales[:, 0].astype(np.float64), wanted)


@pytest.mark.parametrize("name", MX)
@given(x=hnp.arrays(np.float32, (3, 40), elements=st.floats(-(2.0**80), 2.0**80, width=32)))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_rceil_never_saturates(name: str, x: np.ndarray) -> None:
    blocks = to_blocks(x, name, scale_rule="rceil")
    scales = np.repeat(blocks.scales.astype(np.float64), 32, axis=1)[:, :40]
    assert (np.abs(x) <= scales * block_formats[name].element.max).all()
    worst = scales * 2.0 ** (block_formats[name].element.emax - block_formats[name].element.mantissa_bits)
    assert (np.abs(blocks.dequantize(np.float64) - x) <= worst / 2).all()
