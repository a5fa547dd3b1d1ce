"""Accumulators of tensor cores (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, 2024).

Sections 3.3.2 and 3.5.2: the FP8 products of an H800 add 32 terms at a time, aligned to the largest exponent, in
registers of 14 bits (13 and the leading one: "FP22", e8m13); the remedy is to add the partial sums of every 128
products in float32. Its figure, "a maximum relative error of nearly 2 %", is of "two random matrices with K = 4096" in
a "preliminary test": neither their distribution nor their other sizes are said, nor what an error is relative to. Here
they are 128 rows and columns of normal numbers in E4M3, and errors are relative to the root mean square of the exact
elements (relative to each element itself the largest has no bound: exact elements come as near to 0 as one likes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.reproduce.finding import Finding, Progress, Reproduction
from lowprec import Accumulation, FloatFormat

OPERANDS, SIZE, TERMS, GROUP, PROMOTED, BITS, PLACES = "float8_e4m3fn", 128, 4096, 32, 128, 13, (12, 13, 14)


class Error(NamedTuple):
    """Errors of a product's elements relative to the root mean square of the exact ones: the largest and the mean."""

    largest: float
    bias: float


def order(places: int, promoted: bool) -> Accumulation:
    """The registers of a tensor core: so many places behind the leading one, added up in float32 or not."""
    # parts of 128 products are added in float32 after their registers: promotion
    register, splits = FloatFormat(f"e8m{places}", 8, places), TERMS // PROMOTED if promoted else 1
    return Accumulation(GROUP, splits, 1, register, "float32", "aligned", places)


def operands(kind: str, size: int, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Matrices (size, TERMS) and (TERMS, size) of normal numbers, or of positive ones below 1, in 8 bits."""
    generator = np.random.Generator(np.random.Philox(seed))
    draw = generator.standard_normal if kind == "normal" else generator.random
    a, b = (np.asarray(lowprec.astype(draw(shape), OPERANDS)) for shape in ((size, TERMS), (TERMS, size)))
    return a, b


def error(kind: str, places: int, promoted: bool, size: int, seeds: Sequence[int]) -> Error:
    """Of the products of all seeds."""
    offs = []
    for seed in seeds:
        a, b = operands(kind, size, seed)
        # products of E4M3 have 8 bits: 4,096 of them are exact in float64, in any order
        exact = a.astype(np.float64) @ b.astype(np.float64)
        # toward zero: the registers cut what is behind their last place
        ours = lowprec.matmul(a, b, accumulation=order(places, promoted), rounding="toward_zero")
        offs.append((ours - exact) / np.sqrt(np.mean(exact**2)))
    return Error(float(np.max(np.abs(offs))), float(np.mean(offs)))


class ProductErrors(NamedTuple):
    """What `measure` finds.

    Attributes:
        plain, promoted: errors of normal operands by places, without and with sums in float32.
        positive: the same two of positive operands, in FP22.
    """

    plain: dict[int, Error]
    promoted: dict[int, Error]
    positive: tuple[Error, Error]


def measure(seeds: Sequence[int], progress: Progress, size: int = SIZE) -> ProductErrors:
    """The errors of matrices of so many rows and columns."""
    plain, promoted = {}, {}
    for places in PLACES:
        plain[places], promoted[places] = (error("normal", places, each, size, seeds) for each in (False, True))
        progress(
            f"{places} places: {100 * plain[places].largest:.2f} %, promoted {100 * promoted[places].largest:.3f} %"
        )
    # only positive products show the bias of cutting: with both signs errors cancel in the mean
    one, other = (error("positive", BITS, each, size, seeds) for each in (False, True))
    return ProductErrors(plain, promoted, (one, other))


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`. The largest error of more numbers is larger, so there is no share of them."""
    del share
    return judged(measure(seeds, progress))


def judged(measured: ProductErrors) -> list[Finding]:
    """The findings in what was measured."""
    plain, promoted, positive = measured
    shown = {places: f"{places} places {100 * plain[places].largest:.2g} %" for places in plain}
    gains = {places: plain[places].largest / promoted[places].largest for places in plain}
    return [
        Finding(
            f"K = {TERMS} with registers of 14 bits: a maximum relative error of nearly 2 % (1 to 3 %)",
            "; ".join(shown.values()),
            0.01 <= plain[BITS].largest <= 0.03,
        ),
        Finding(
            f"adding up every {PROMOTED} products in float32 cures it (errors at least 10 times smaller)",
            "; ".join(f"{places} places {gain:.0f} times" for places, gain in gains.items()),
            min(gains.values()) >= 10,
        ),
        Finding(
            "registers that cut are biased: positive operands (no claim of the report's is tested)",
            f"{100 * positive[0].bias:+.1f} % in the mean, {100 * positive[1].bias:+.2f} % promoted",
            None,
        ),
    ]


TENSOR_CORES = Reproduction(
    "tensor-cores", "14-bit accumulators of 8-bit tensor cores", "DeepSeek-AI 2024, arXiv 2412.19437", run
)
