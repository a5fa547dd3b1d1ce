"""Accumulators of tensor cores (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, 2024).

Sections 3.3.2 and 3.5.2: the FP8 products of an H800 add 32 terms at a time, aligned to the largest exponent, in
registers of 14 bits (13 and the leading one: "FP22", e8m13); the remedy is to add the partial sums of every 128
products in float32. Its figure, "a maximum relative error of nearly 2 %", is of "two random matrices with K = 4096" in
a "preliminary test": neither their distribution nor their other sizes are said, nor what an error is relative to. Here
they are normal numbers in E4M3, and errors are relative to the root mean square of the exact elements (relative to each
element itself the largest has no bound: exact elements come as near to 0 as one likes). The largest error of more
elements is larger, 0.8 % of 32 x 32 and 1.8 % of three times 128 x 128. Judged is the largest of K x K elements, as the
tail of fewer says it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.reproduce.finding import Finding, Progress, Reproduction
from lowprec import Accumulation, FloatFormat

OPERANDS, SIZE, TERMS, GROUP, PROMOTED, BITS, PLACES = "float8_e4m3fn", 128, 4096, 32, 128, 13, (12, 13, 14)


PUBLISHED, TAIL, FEWEST = 0.02, 20, 25
"""The published largest error; of how many elements one is in the tail that is fitted, and its fewest."""


class Error(NamedTuple):
    """Errors of a product's elements relative to the root mean square of the exact ones.

    Attributes:
        largest: of the elements that were looked at; it grows with how many those are.
        bias, deviation: the mean, and the root of the mean square.
        whole: what the largest of TERMS x TERMS elements is.
    """

    largest: float
    bias: float
    deviation: float
    whole: float


def largest_of(errors: npt.NDArray[np.float64], elements: int) -> float:
    """The median of the largest of so many errors, from the tail of fewer, taken for exponential.

    An error grows with the sum that it is cut from, and that is large where it is aligned to a large exponent, so that
    the tail is longer than a normal one's.
    """
    found = np.sort(np.abs(errors), axis=None)
    count = min(max(FEWEST, found.size // TAIL), found.size - 1)
    start, tail = found[-count - 1], found[-count:]
    # of n elements, each beyond x with a chance p, none is with one of exp(-n p): a half at p = log(2) / n
    return float(start + np.mean(tail - start) * math.log(elements * count / found.size / math.log(2)))


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
    off = np.array(offs)
    deviation = float(np.sqrt(np.mean(off**2)))
    return Error(float(np.max(np.abs(off))), float(np.mean(off)), deviation, largest_of(off, TERMS**2))


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
        progress(f"{places} places: {100 * plain[places].whole:.2f} %, promoted {100 * promoted[places].whole:.3f} %")
    # only positive products show the bias of cutting: with both signs errors cancel in the mean
    one, other = (error("positive", BITS, each, size, seeds) for each in (False, True))
    return ProductErrors(plain, promoted, (one, other))


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`. They take seconds, so there is no share of them."""
    del share
    return judged(measure(seeds, progress))


def judged(measured: ProductErrors) -> list[Finding]:
    """The findings in what was measured."""
    plain, promoted, positive = measured
    gains = {places: plain[places].deviation / promoted[places].deviation for places in plain}
    parts, off = TERMS // PROMOTED, math.sqrt(2)
    low, high = PUBLISHED / off, PUBLISHED * off
    return [
        Finding(
            f"K = {TERMS} with registers of 14 bits: a maximum relative error of nearly 2 % (of K x K elements "
            f"{100 * low:.1f} to {100 * high:.1f} %: a bit more or less halves or doubles it)",
            "; ".join(f"{places} places {100 * each.whole:.2g} %" for places, each in plain.items())
            + f" (of the elements looked at {100 * plain[BITS].largest:.2g} % with {BITS})",
            low <= plain[BITS].whole <= high,
        ),
        Finding(
            f"adding up every {PROMOTED} products in float32 cures it (errors less by the root of {parts} parts at "
            "least, as if these were independent)",
            "; ".join(f"{places} places {gain:.1f} times less" for places, gain in gains.items()),
            min(gains.values()) >= math.sqrt(parts),
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
