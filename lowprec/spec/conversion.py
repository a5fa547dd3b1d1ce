"""A prepared conversion: everything about a rounding call but the array, the key and the offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lowprec.spec.float_format import FloatFormat
from lowprec.spec.rounding import RoundingRule

Kind = Literal["value", "code"]


@dataclass(frozen=True, eq=False)  # compared by identity: made once per set of arguments, by a cache
class Conversion:
    """Rounds arrays of one dtype.

    Attributes:
        rule: how a value becomes a code.
        source: the format of the input's dtype; None for integers.
        in_dtype: the input's dtype.
        out_dtype: the result's dtype.
        kind: "value": the result holds values (its dtype is the input's); "code": it holds codes.
    """

    rule: RoundingRule
    source: FloatFormat | None
    in_dtype: np.dtype[Any]
    out_dtype: np.dtype[Any]
    kind: Kind
