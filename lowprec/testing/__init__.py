"""Tools for the tests of low-precision code: backends and instruction sets as contexts, assertions, strategies.

The assertions need numpy (those about chance also scipy); the hypothesis strategies are loaded when first asked for and
need hypothesis: `pip install -e '.[test]'` in a clone brings both. A suite of one's own may read

    from hypothesis import given
    import lowprec.testing as lpt

    @given(lpt.arrays("float16", finite=True), lpt.keys())
    def test_my_cast(x, key):
        lpt.assert_on_grid(my_cast(x, key), "float8_e4m3fn")

    def test_my_cast_is_unbiased():
        lpt.assert_unbiased(my_cast, [0.3, 1.01, 2.0**-11], "float8_e4m3fn")
"""

from typing import Any

from lowprec.backends import backend
from lowprec.extras import optional
from lowprec.testing.assertions import (
    assert_binomial,
    assert_on_grid,
    assert_same_bits,
    assert_ulp,
    assert_unbiased,
)
from lowprec.testing.isa import isa, isa_names, path_names, without
from lowprec.testing.quantiser import assert_rounds

STRATEGIES = ("arrays", "codes", "custom_formats", "formats", "keys", "near_values", "rounding_modes", "values")

__all__ = [
    "assert_binomial",
    "assert_on_grid",
    "assert_rounds",
    "assert_same_bits",
    "assert_ulp",
    "assert_unbiased",
    "backend",
    "isa",
    "isa_names",
    "path_names",
    "without",
    *STRATEGIES,
]


def __getattr__(name: str) -> Any:
    # Only these need hypothesis, which a user of the assertions may not have.
    if name in STRATEGIES:
        return getattr(optional("lowprec.testing.strategies", extra="test", package="hypothesis"), name)
    raise AttributeError(f"module 'lowprec.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
