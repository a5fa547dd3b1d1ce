"""`conformance`: a black box agrees with its own Accumulation and with no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import Accumulation, Rounding

BOXES = [
    (Accumulation(16, accumulate="float16"), Rounding("toward_zero"), "float16"),
    (Accumulation(32, 4, 1, "float32", "float32", "aligned", 13), Rounding(), "float8_e4m3fn"),
    (Accumulation(6, adder="pairwise"), Rounding(), "bfloat16"),
    (Accumulation(1, 4, 1, "float16"), Rounding(flush=True), "float16"),
]
OTHERS = [Accumulation(8, accumulate="float16"), Accumulation(32, 4, 1, "float32", "float32", "aligned", 14)]


def box(how: Accumulation, rounding: Rounding, operands: str) -> Any:
    def f(a: Any, b: Any) -> Any:
        plain = Rounding(rounding.mode)
        result = lp.matmul(lp.astype(a, operands), lp.astype(b, operands), accumulation=how, rounding=plain)
        return lp.round(result, how.out, flush=rounding.flush)

    return f


@pytest.mark.parametrize("given", BOXES, ids=lambda given: given[0].words())
def test_own_accumulation_conforms_and_others_do_not(given: tuple[Accumulation, Rounding, str]) -> None:
    how, rounding, operands = given
    f = box(*given)
    options: dict[str, Any] = {"operands": operands, "terms": 64, "trials": 1000}
    assert lp.conformance(f, how, rounding=rounding, **options) is None
    for other in OTHERS:
        found = lp.conformance(f, other, rounding=rounding, **options)
        assert found is not None
        assert f(found.a[None], found.b[:, None])[0, 0] == pytest.approx(found.given, nan_ok=True)
        assert found.given != found.wanted


def test_flush_is_seen() -> None:
    how, rounding, operands = BOXES[3]
    f = box(how, rounding, operands)
    assert lp.conformance(f, how, operands=operands, terms=8, trials=10) is not None


def test_policies_of_the_operands_are_seen() -> None:
    how, operands = Accumulation(16), "float8_e5m2"

    def f(a: Any, b: Any) -> Any:
        left, right = (lp.astype(x, operands, overflow="satfinite") for x in (a, b))
        return lp.matmul(left, right, accumulation=how)

    options: dict[str, Any] = {"operands": operands, "terms": 8, "trials": 10}
    assert lp.conformance(f, how, operand_rounding=Rounding(overflow="satfinite"), **options) is None
    for other in (Rounding(overflow="saturate"), Rounding(infinite_input="max"), Rounding()):
        assert lp.conformance(f, how, operand_rounding=other, **options) is not None


def test_a_sum_in_order() -> None:
    def f(x: Any) -> Any:
        return np.cumsum(x, dtype=np.float32)[-1]

    assert lp.conformance(f, Accumulation(1), kind="sum", terms=50, trials=500) is None
    found = lp.conformance(f, Accumulation(25, 2, 1), kind="sum", terms=50, trials=500)
    assert found is not None
    assert "of 50 terms" in str(found)


def test_refusals() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(ValueError, match="not deterministic"):
        lp.conformance(lambda a, b: generator.random((len(a), b.shape[1])).astype("f4"), Accumulation(), trials=9)
    with pytest.raises(ValueError, match="gave shape"):
        lp.conformance(lambda a, b: a, Accumulation(), trials=9)
    with pytest.raises(TypeError, match="not float64"):
        lp.conformance(lambda a, b: a.astype(float) @ b, Accumulation(), trials=9)
    with pytest.raises(ValueError, match="stochastic"):
        lp.conformance(np.matmul, Accumulation(), rounding=Rounding("stochastic"))
    with pytest.raises(ValueError, match="unknown kind"):
        lp.conformance(np.matmul, Accumulation(), kind="dot")  # type: ignore[arg-type]
