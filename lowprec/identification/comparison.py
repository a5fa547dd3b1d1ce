"""`conformance`: does a black box compute as an Accumulation says, bit for bit?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lowprec.checks import expect, integer
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.black_box import BlackBox, differing
from lowprec.identification.identified import Counterexample, Kind
from lowprec.identification.probes import Probe, edges, sums
from lowprec.processor import in_default_state
from lowprec.values.accumulation import Accumulation
from lowprec.values.formats import FormatLike, as_format
from lowprec.values.rounding import NEAREST_EVEN, Rounding

BLOCK = 1024
"""Rows of one call."""


@in_default_state
def conformance(
    f: Callable[..., Any],
    accumulation: Accumulation,
    *,
    rounding: Rounding = NEAREST_EVEN,
    operands: FormatLike = "float32",
    operand_rounding: Rounding = NEAREST_EVEN,
    kind: Kind = "product",
    terms: int = 512,
    trials: int = 10**5,
    key: int = 0,
) -> Counterexample | None:
    """The first of many chosen and random elements where f differs from an Accumulation; None: there is none.

    Compared are values, as float32, bit for bit: +0 is not -0, any two NaNs are the same.

    Args:
        f: f(a, b) takes float32 matrices (m, k) and (k, n) and casts as it likes; of kind "sum" f(x) takes a vector.
        accumulation: what it should compute.
        rounding: of partial sums and results; with flush=True subnormal results, once, at the end.
        operands: the format that both operands are cast to before.
        operand_rounding: of that cast, with its policies and flush.
        terms: length k of the sums.
        trials: random elements at least, besides products at the ends of the formats.
        key: of the random numbers, at least 0.

    Raises:
        TypeError: results that are no array of float32 or narrower; operands that matmul does not take.
        ValueError: f is not deterministic or gives another shape; numbers out of range; a stochastic rounding.
    """
    expect(Accumulation, accumulation=accumulation)
    expect(Rounding, rounding=rounding, operand_rounding=operand_rounding)
    if rounding.stochastic or operand_rounding.stochastic:
        raise ValueError("stochastic roundings cannot be compared bit for bit: the black box has its own random bits")
    terms, trials = integer("terms", terms, 1), integer("trials", trials, 1)
    box = BlackBox(f, kind)
    generator = np.random.default_rng(integer("key", key, 0))
    wanted = Arithmetic(accumulation, rounding, Operands(as_format(operands), operand_rounding))
    return first_difference(box, wanted, generator, terms, trials)


def first_difference(
    box: BlackBox, wanted: Arithmetic, generator: np.random.Generator, terms: int, trials: int
) -> Counterexample | None:
    """The first element where a black box differs from an arithmetic; None: none of so many does."""
    for probe in _probes(generator, terms, trials, box.kind == "sum", wanted.takes_nan):
        given, expected = box.twice(probe), wanted(probe.a, probe.b)
        if (wrong := differing(given, expected)).any():
            i, j = (int(index) for index in np.argwhere(wrong)[0])
            return Counterexample(probe.a[i], probe.b[:, j], float(given[i, j]), float(expected[i, j]))
    return None


def _probes(generator: np.random.Generator, terms: int, trials: int, ones: bool, nan: bool) -> Iterator[Probe]:
    yield edges(generator, terms, ones, nan)
    columns, made = 1 if ones else 64, 0
    while made < trials:
        rows = min(BLOCK, -(-(trials - made) // columns))
        yield sums(generator, rows, terms, columns, ones)
        made += rows * columns
