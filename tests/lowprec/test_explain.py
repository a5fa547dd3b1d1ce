"""explain and the command line."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import lowprec as lp
from lowprec.__main__ import main


def test_explain_between_two_values() -> None:
    found = lp.explain(0.1, "float8_e4m3fn")
    assert found.below is not None
    assert found.above is not None
    assert (found.below.value, found.above.value) == (0.09375, 0.1015625)
    assert (found.below.code, found.above.layout) == (0x1C, "0 0011 101")
    assert found.results["nearest_even"] == 0.1015625
    assert found.results["toward_zero"] == 0.09375
    assert found.probability_up == (Fraction(0.1) - Fraction(3, 32)) / Fraction(1, 128)
    assert "P = " in str(found)
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize("x", [0.1, -3.7, 465.0, 1e-9, 0.0, -0.0, 2.0, 1e9, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("fmt", [f.name for f in lp.formats.values() if f.bits <= 16])
def test_its_results_are_those_of_round(x: float, fmt: str) -> None:
    if np.isnan(x) and lp.as_format(fmt).nan_code is None:
        with pytest.raises(ValueError, match="has no NaN"):
            lp.explain(x, fmt)
        return
    found = lp.explain(x, fmt)
    for mode, result in found.results.items():
        np.testing.assert_equal(result, lp.round(x, fmt, mode))
    if found.below is not None:
        assert found.below.value == lp.round(x, fmt, "toward_zero")


def test_exact_values_and_values_beyond_the_largest() -> None:
    exact = lp.explain(2.0, "float16")
    assert exact.below == exact.above
    assert exact.probability_up == 0
    assert "exact" in str(exact)
    beyond = lp.explain(465.0, "float8_e4m3fn")
    assert beyond.above is None
    assert beyond.probability_up == Fraction(17, 32)
    assert lp.explain(1e9, "float8_e4m3fn").below is None
    assert lp.explain(1.5 * 2.0**127, "float8_e8m0fnu").probability_up == Fraction(1, 2)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.1", "float8_e4m3fn"]) == 0
    assert "0.1015625" in capsys.readouterr().out
    assert main(["-0x1.8p-3", "bfloat16"]) == 0
    assert "exact" in capsys.readouterr().out
    assert main(["-inf", "float16"]) == 0
    capsys.readouterr()
    assert main(["formats"]) == 0
    assert "float4_e2m1fn" in capsys.readouterr().out
    assert main(["float16"]) == 0
    assert "65504.0 (0x7bff)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["0.1", "float9"], "lowprec: unknown format 'float9': did you mean float64 or "),
        (["a", "float16"], "lowprec: 'a' is no number"),
        (["0x1p9999", "float16"], "lowprec: '0x1p9999' is beyond float64"),
        (["nan", "float4_e2m1fn"], "lowprec: NaN cannot be represented in float4_e2m1fn"),
        (["float9"], "lowprec: unknown format 'float9'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "lowprec", "0.1", "halves"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert found.stderr.startswith("lowprec: unknown format 'halves'")
