"""`lowprec.testing.assert_rounds`: right quantisers pass, and each fault that quantisers have is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import Rounding
from lowprec.testing import assert_rounds

RIGHT = [
    ("float16", Rounding()),
    ("bfloat16", Rounding("toward_zero")),
    ("float8_e4m3fn", Rounding(overflow="satfinite")),
    ("float4_e2m1fn", Rounding("nearest_away")),
    ("e5m9", Rounding("odd", flush=True)),
]


def quantiser(fmt: str, how: Rounding) -> Any:
    return lambda x: lp.round(
        x, fmt, how.mode, overflow=how.overflow, infinite_input=how.infinite_input, flush=how.flush
    )


@pytest.mark.parametrize(("fmt", "how"), RIGHT)
def test_right_quantisers_pass_and_no_other_does(fmt: str, how: Rounding) -> None:
    assert_rounds(quantiser(fmt, how), fmt, how, trials=1000)
    for other, rounding in RIGHT:
        if (other, rounding) != (fmt, how):
            has_nan = lp.as_format(fmt).nan != "none"
            with pytest.raises(AssertionError, match="numbers are not rounded to"):
                assert_rounds(quantiser(fmt, how), other, rounding, trials=0, nan=has_nan)


def _carry(x: Any) -> Any:
    """Rounds to nearest by adding half a unit: ties go away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def test_the_message_has_numbers_and_bits() -> None:
    with pytest.raises(AssertionError, match=r"first is .* \(0x[0-9a-f]{8}\): given .*, right is"):
        assert_rounds(_carry, "bfloat16", trials=0, nan=False)
    assert_rounds(lambda x: np.where(np.isfinite(x), _carry(x), x), "bfloat16", Rounding("nearest_away"))


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="assert_unbiased"):
        assert_rounds(lambda x: x, "float16", Rounding("stochastic"))
    assert_rounds(quantiser("float16", Rounding("toward_zero")), "float16", "toward_zero", trials=100)
    with pytest.raises(TypeError, match="quantise must be a function"):
        assert_rounds(None, "float16")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="shape"):
        assert_rounds(lambda x: x[:2], "float16")
