"""All 2^32 float32 inputs, rounded to every short format that NumPy or ml_dtypes has, against NumPy and ml_dtypes.

Slow (a quarter of an hour in all on one core, most of it NumPy's and ml_dtypes'), in parts of a few seconds each. Left
out is float8_e8m0fnu, where ml_dtypes sends ties away from zero and knows other values below 2^-127.
"""

from __future__ import annotations

import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.every_float32 import PARTS, numbers

SHORT = [fmt for fmt in lp.formats.values() if fmt.bits <= 16 and fmt is not lp.float8_e8m0fnu]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fmt", SHORT, ids=lambda fmt: fmt.name)
def test_all_float32_inputs_against_numpy_and_ml_dtypes(fmt: lp.FloatFormat, part: int) -> None:
    # ml_dtypes keeps the sign of NaN, and gives -NaN where a negative number overflows to it; here NaN has one code.
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    canonical = np.where(np.isnan(lp.decode(codes, fmt)), fmt.code_dtype.type(fmt.nan_code or 0), codes)
    for x in numbers(part):
        if fmt.nan_code is None:
            x = x[~np.isnan(x)]
        with np.errstate(all="ignore"):
            want = canonical[x.astype(fmt.dtype).view(fmt.code_dtype)]
        wrong = np.flatnonzero(lp.encode(x, fmt) != want)
        assert wrong.size == 0, (x[wrong[0]], lp.encode(x[wrong[0]], fmt), want[wrong[0]])
