"""The weight gradient is one product per kernel position, in whatever blocks of output positions it is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.backends.cpu import weight_gradient
from lowprec.convolution.parts import prepare_weight_sums
from lowprec.values.windows import BlockPlace, window_view
from tests.lowprec.sums_cases import Array, values

ROUNDINGS = [
    dict(),
    dict(group=None),
    dict(accumulate="float16"),
    dict(accumulate="bfloat16", group=7, out_format="float32"),
    dict(accumulate="float16", group=5, rounding="stochastic"),
    dict(accumulate="float16", group=1, rounding="stochastic", random_bits=24, out_format="bfloat16"),
    dict(accumulate="float32", rounding="stochastic", out_format="float8_e5m2"),
    dict(accumulate="float16", group=12, adder="dot4"),
    dict(accumulate="float32", group=9, adder="pairwise"),
    dict(accumulate="float16", group=None, rounding="stochastic"),
    dict(accumulate="float16", group=10_000),
    dict(accumulate="float16", group=4, splits=3),
    dict(accumulate="float16", group=4, stages=2, rounding="stochastic"),
]


def product_of_windows(x: Array, g: Array, kernel: tuple[int, int], groups: int, **how: Any) -> Array:
    """The gradient for stride 1 and no padding, by `lowprec.matmul` on windows copied out by NumPy, group by group."""
    high, wide = kernel
    seen = np.stack(
        [x[:, i : i + g.shape[1], j : j + g.shape[2]] for i in range(high) for j in range(wide)],
        axis=3,
    )
    positions, each, columns = g[..., 0].size, x.shape[3] // groups, g.shape[3] // groups
    seen = seen.reshape(positions, high * wide, groups, each).transpose(2, 1, 3, 0).reshape(groups, -1, positions)
    right = g.reshape(positions, groups, columns).transpose(1, 0, 2)
    result = lp.matmul(seen, right, **how)
    return result.reshape(groups, high, wide, each, columns).transpose(1, 2, 3, 0, 4).reshape(high, wide, each, -1)


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("each", [2, 17])
def test_blocks_of_positions_do_not_matter(how: dict[str, Any], each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8, 7, 2 * each)).astype(np.float16)
    g = rng.normal(size=(3, 6, 6, 2 * 5)).astype(np.float16)
    x[0, 0, 0, 0], x[2, 7, 6, 1], g[1, 2, 3, 4] = np.inf, -np.inf, np.nan
    x[:, :, :, -1], g[..., -1] = -0.0, 1e-7
    want = product_of_windows(x, g, (3, 2), 2, key=5, **how)
    for size, least in ((1 << 20, 256), (1, 1), (1, 7), (1, 30), (3000, 1)):
        monkeypatch.setattr(weight_gradient, "BLOCK_BYTES", size)
        monkeypatch.setattr(weight_gradient, "LEAST_POSITIONS", least)
        with lp.num_threads(2):
            got = lp.conv2d_weight_gradient(x, g, (3, 2), groups=2, key=5, **how)
        lp.testing.assert_same_bits(got, want)
        laid_out = x.transpose(0, 3, 1, 2).copy(), g.transpose(0, 3, 1, 2).copy()
        got = lp.conv2d_weight_gradient(*laid_out, (3, 2), groups=2, layout="NCHW", key=5, **how)
        lp.testing.assert_same_bits(got.transpose(2, 3, 1, 0), want)


@pytest.mark.parametrize("how", [dict(), dict(accumulate="float16"), dict(accumulate="float16", rounding="stochastic")])
@pytest.mark.parametrize("span", [(0, 0), (0, 84), (16, 84), (3, 50), (41, 42), (80, 84)])
def test_spans_begin_and_end_anywhere(
    how: dict[str, Any], span: tuple[int, int], host_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 7, 8, 1, 3)).astype(np.float16)
    g = rng.normal(size=(2, 6, 7, 1, 4)).astype(np.float16)
    seen = window_view(x, (2, 2), (1, 1), (1, 1), (6, 7))
    left = seen.reshape(84, 12).T[:, slice(*span)]
    key = 3 if how.get("rounding") else None
    row = lp.matmul(left, g.reshape(84, 4)[slice(*span)], key=key, **how, offset=(100, 1))
    monkeypatch.setattr(weight_gradient, "BLOCK_BYTES", 1)
    monkeypatch.setattr(weight_gradient, "LEAST_POSITIONS", 20)
    out = np.empty((2, 2, 1, 3, 4), row.dtype)
    call = prepare_weight_sums(x.dtype, g.dtype, *values(**how))
    call(seen, g, out, BlockPlace(100, 1, 0, 6, 3), key, span)
    lp.testing.assert_same_bits(out.reshape(12, 4), row)


def test_rows_with_gaps_keep_their_random_bits(backend: str) -> None:
    """A block of kernel positions and channels whose rows in the whole gradient do not follow each other."""
    rng = np.random.default_rng(2)
    x, g = rng.normal(size=(1, 6, 6, 1, 5)).astype(np.float16), rng.normal(size=(1, 4, 4, 1, 3)).astype(np.float16)
    how: dict[str, Any] = dict(accumulate="float16", rounding="stochastic")
    whole = lp.conv2d_weight_gradient(x[:, :, :, 0], g[:, :, :, 0], (3, 3), key=1, **how)
    seen = window_view(x, (3, 3), (1, 1), (1, 1), (4, 4))
    out = np.empty((2, 2, 1, 2, 3), np.float16)
    place = BlockPlace(1 * 15 + 1 * 5 + 3, 0, 0, 15, 5)
    prepare_weight_sums(x.dtype, g.dtype, *values(**how))(seen[..., 1:, 1:, :, 3:], g, out, place, 1)
    lp.testing.assert_same_bits(out[:, :, 0], whole[1:, 1:, 3:])
