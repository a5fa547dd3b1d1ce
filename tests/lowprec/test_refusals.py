"""What a wrong argument is told, in one line: what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec as lp

X: Any = np.ones((4, 6), np.float32)
INDICES = np.array([0, 1, 2, 1])
BYTES = np.zeros(4, np.uint8)
SOME: dict[str, Any] = {"accumulate": "float16", "rounding": "stochastic"}

CASES: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    ("reduce_sum", TypeError, "out must be an array.*, not list", lambda: lp.reduce_sum(X, out=[0])),  # type: ignore[arg-type]
    ("reduce_max", TypeError, "out must be .* float32, not str", lambda: lp.reduce_max(X, out="a")),  # type: ignore[arg-type]
    ("sum", TypeError, "out must be an array.*, not list", lambda: lp.sum(X, axis=1, out=[0])),  # type: ignore[arg-type]
    ("scatter_add", TypeError, "out must be .* not list", lambda: lp.scatter_add(INDICES, X, 4, out=[0])),  # type: ignore[arg-type]
    (
        "rows 3.0",
        TypeError,
        r"rows must be an integer in \[0, 2\^48\), not 3.0",
        lambda: lp.scatter_add(INDICES, X, 3.0),
    ),  # type: ignore[arg-type]
    ("rows None", TypeError, "rows must be an integer .* not None", lambda: lp.scatter_add(INDICES, X, None)),  # type: ignore[arg-type]
    ("rows 2**70", ValueError, "rows must be an integer .* not 1180591", lambda: lp.scatter_add(INDICES, X, 2**70)),
    ("rows -1", ValueError, "rows must be an integer .* not -1", lambda: lp.scatter_add(INDICES, X, -1)),
    ("size None", TypeError, "size must be an integer, .* not None", lambda: lp.unpack(BYTES, "float4_e2m1fn", None)),  # type: ignore[arg-type]
    ("size 8.0", TypeError, "size must be an integer, .* not 8.0", lambda: lp.unpack(BYTES, "float4_e2m1fn", 8.0)),  # type: ignore[arg-type]
    ("to_blocks", TypeError, "out must be a BlockArray, .* not ndarray", lambda: lp.to_blocks(X, "nvfp4", out=X)),
    (
        "tensor str",
        TypeError,
        "tensor_scale must be 'auto' or .*, not 'x'",
        lambda: lp.to_blocks(X, "nvfp4", tensor_scale="x"),
    ),  # type: ignore[arg-type]
    ("tensor array", TypeError, "tensor_scale must be", lambda: lp.to_blocks(X, "nvfp4", tensor_scale=X)),
    ("exponent", TypeError, "exponent must be 'auto' or an integer, not 1.5", lambda: lp.to_scaled(X, "f143", 1.5)),  # type: ignore[arg-type]
    ("dequantize", TypeError, "out must be .* not list", lambda: lp.to_blocks(X, "nvfp4").dequantize(out=[0])),  # type: ignore[arg-type]
    (
        "exact",
        ValueError,
        r"random_bits .* 1 to 32.*, not 'exact'",
        lambda: lp.matmul(X, X.T, key=1, random_bits="exact", **SOME),
    ),  # type: ignore[arg-type]
    ("block", ValueError, "block must be an integer of at least 1, not True", lambda: lp.sum(X, block=True)),
    (
        "key",
        TypeError,
        "a key must be a lowprec.Key or an integer .* not str",
        lambda: lp.reduce_sum(X, key="a", **SOME),
    ),  # type: ignore[arg-type]
    ("key 2**64", ValueError, "a key must be .* not 18446744073709551616", lambda: lp.reduce_sum(X, key=2**64, **SOME)),
    ("fmt list", TypeError, r"fmt must be a name, .* not \['float16'\]", lambda: lp.sum(X, ["float16"])),  # type: ignore[arg-type]
    ("float32_op", TypeError, "out must be an array.*, not list", lambda: lp.float32_op("add", X, X, out=[1])),  # type: ignore[arg-type]
    (
        "initial",
        TypeError,
        r"initial must be .* float16 \(or of float32\), not float64",
        lambda: lp.matmul_part(X, X.T, accumulate="float16", initial=np.zeros((4, 4))),
    ),
    (
        "initial list",
        TypeError,
        r"initial must be .* float32, not list",
        lambda: lp.matmul_part(X, X.T, initial=[0]),  # type: ignore[arg-type]
    ),
    ("row", TypeError, "row must be an int or an int64 array, not 1.5", lambda: lp.matmul_part(X, X.T, row=1.5)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("error", "words", "call"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_wrong_arguments_are_named(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_integers() -> None:
    assert lp.sum(X, order="blocked", block=np.int64(4)) == 24
    lp.testing.assert_same_bits(
        lp.reduce_sum(X, key=np.int64(3), **SOME),  # type: ignore[arg-type]
        lp.reduce_sum(X, key=3, **SOME),
    )
    lp.testing.assert_same_bits(lp.matmul_part(X, X.T, row=np.int64(3)), lp.matmul_part(X, X.T, row=3))


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert lp.__version__ == version("lowprec")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": "a"}, "a key must be an integer"),
        ({"key": -1}, "a key must be"),
        ({"out": [1]}, "out must be an array.*, not list"),
        ({"accumulate": [1]}, r"accumulate must be a name, a number, a bool or None, not \[1\]"),
    ],
)
def test_products_name_arguments_of_another_kind(given: dict[str, Any], words: str) -> None:
    x = np.ones((3, 3), np.float16)
    for call in (lp.matmul, lp.matmul_part):
        with pytest.raises((TypeError, ValueError), match=words):
            call(x, x, **{"rounding": "stochastic", "key": 1, **given})
