"""Every door has both backends behind it: keys, packing, blocks and tensor scales give the reference's bits too."""

from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import backends
from lowprec.backends import cpu, reference
from lowprec.values.block_format import BlockFormat, block_formats
from lowprec.values.rounding import MODES
from tests.lowprec.sums_cases import assert_backends_agree

BLOCK_FORMATS = [
    *block_formats.values(),
    BlockFormat("codes of six bits", lp.p3109(6, 3), lp.float8_e8m0fnu, 5),
    BlockFormat("float32 scales", lp.float4_e2m1fn, lp.float32, 4),
    BlockFormat("bfloat16", lp.bfloat16, lp.float8_e8m0fnu, 7),
    BlockFormat("few scales", lp.float8_e4m3fn, lp.FloatFormat("e3m0", 3, 0, infinities=False, nan="top"), 16),
]


def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers of many sizes with zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape))
    x *= np.exp2(rng.integers(-120, 110)) if seed % 3 == 0 else 1
    x[rng.random(shape) < 0.1] = 0
    if seed % 2:
        x.flat[rng.integers(x.size, size=2)] = rng.choice([np.nan, np.inf, -np.inf], 2)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


# Calls of the compiled loops in one step, and what those ask first.
SHORT_CUTS = {
    "exact_call", "has_pipelines", "new_pipeline", "plain_dtypes", "ready_output", "whole_conversion", "whole_decoding",
}  # fmt: skip


def test_the_backends_have_the_same_doors() -> None:
    assert set(reference.__all__) - {"fill"} == set(cpu.__all__) - SHORT_CUTS
    for name in ("pack", "unpack", "fold_in", "split", "quantize", "dequantize", "scale_and_round", "spread_power"):
        assert name in cpu.__all__


@pytest.mark.parametrize(
    "door, call",
    [
        ("fold_in", lambda: lp.Key(1).fold_in(2)),
        ("split", lambda: lp.Key(1).split(2)),
        ("pack", lambda: lp.pack(np.ones(3, np.uint8), "float4_e2m1fn")),
        ("unpack", lambda: lp.unpack(np.ones(2, np.uint8), "float4_e2m1fn", 3)),
        ("quantize", lambda: lp.to_blocks(np.ones(4, np.float32), "nvfp4")),
        ("dequantize", lambda: lp.to_blocks(np.ones(4, np.float32), "nvfp4").dequantize()),
        ("scale_and_round", lambda: lp.to_scaled(np.ones(4, np.float32), "float8_e5m2")),
        ("spread_power", lambda: lp.to_scaled(np.ones(4, np.float32), "float8_e5m2").dequantize()),
    ],
)
def test_the_reference_is_reached(door: str, call: Any) -> None:
    with backends.backend("reference"), mock.patch.object(reference, door, wraps=getattr(reference, door)) as reached:
        call()
    assert reached.called


@pytest.mark.parametrize("n", [0, 1, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1])
def test_keys_derive_alike(n: int) -> None:
    def derived(n: int) -> Any:
        key = lp.Key(0x0123456789ABCDEF).fold_in(n)
        return np.array([key.value, *(k.value for k in key.split(3))], np.uint64)

    assert_backends_agree(derived, n)


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float6_e2m3fn", "float8_e5m2", lp.p3109(5, 2), lp.p3109(3, 1)])
@pytest.mark.parametrize("shape", [(1,), (3, 8), (2, 3, 5), (4, 0), (0, 3)])
def test_packed_codes_agree(fmt: Any, shape: tuple[int, ...]) -> None:
    bits = lp.as_format(fmt).bits
    codes = np.random.default_rng(0).integers(0, 1 << bits, shape).astype(np.uint8)
    assert_backends_agree(lp.pack, codes, fmt)
    assert_backends_agree(lp.pack, codes[..., ::-1], fmt)
    assert_backends_agree(lambda: lp.unpack(lp.pack(codes, fmt), fmt, shape[-1]))
    if bits < 8 and codes.size:
        assert_backends_agree(lp.pack, codes + (1 << bits), fmt)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_blocks_agree(fmt: BlockFormat, dtype: Any) -> None:
    for seed, shape in enumerate([(37,), (3, 20), (5, 9), (2, 7, 3)]):
        x = numbers(seed, shape, dtype)
        for rule in fmt.scale_rules:
            scales = [None] if fmt.power_of_two else [None, "auto", float(np.float32(0.1))]
            mode = MODES[(seed + len(rule)) % len(MODES)]
            options: dict[str, Any] = dict(axis=seed % len(shape), scale_rule=rule, rounding=mode, key=seed)
            options["tensor_scale"] = scales[seed % len(scales)]

            def made(x: Any = x, options: Any = options) -> Any:
                blocks = lp.to_blocks(x, fmt, **options)
                return np.concatenate([np.float64(blocks.elements.view(fmt.element.code_dtype).ravel()),
                                       np.float64(blocks.scales.view(fmt.scale.code_dtype).ravel())])  # fmt: skip

            assert_backends_agree(made)
            blocks = lp.to_blocks(x, fmt, **options)
            assert_backends_agree(blocks.dequantize)
            assert_backends_agree(blocks.dequantize, np.float64)


@pytest.mark.parametrize(
    "fmt", ["float8_e4m3fnuz", "float8_e5m2", "float16", "float4_e2m1fn", "float64", lp.p3109(6, 3)]
)
@pytest.mark.parametrize("mode", [*MODES, "stochastic_half", "stochastic_even"])
def test_scaled_arrays_agree(fmt: Any, mode: Any) -> None:
    for seed, exponent in enumerate([-140, -32, -3, 0, 5, 31, 130, "auto"]):
        x = numbers(seed, (3, 9), [np.float32, np.float64, np.float16][seed % 3])
        bits = 8 if mode in ("stochastic_half", "stochastic_even") else 16
        options: dict[str, Any] = {"limits": (-200, 200), "rounding": mode, "key": 3, "random_bits": bits}
        assert_backends_agree(lambda x=x, e=exponent, o=options: lp.to_scaled(x, fmt, e, **o).elements)
        scaled = lp.to_scaled(
            np.nan_to_num(x), "float8_e5m2", 0 if exponent == "auto" else exponent, limits=(-200, 200)
        )
        assert_backends_agree(scaled.dequantize)
        assert_backends_agree(scaled.dequantize, np.float64)
