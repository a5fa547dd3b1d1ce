"""`identify`: the arithmetic of a product or sum that is only called, as an Accumulation, a Rounding and operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowprec.checks import integer
from lowprec.identification.arithmetic import Arithmetic
from lowprec.identification.black_box import BlackBox
from lowprec.identification.comparison import first_difference
from lowprec.identification.identified import Counterexample, Identified, Kind
from lowprec.identification.search import NothingFits, Search
from lowprec.processor import in_default_state

SHORTEST, LONGEST = 64, 8192


@in_default_state
def identify(
    f: Callable[..., Any], *, kind: Kind = "product", trials: int = 10**6, terms: int = 1024, key: int = 0
) -> Identified:
    """The arithmetic of a black box: what reproduces its results bit for bit, or where that fails.

    Chosen inputs narrow down, in this order, what operands are cast to and how (from products of two numbers), the
    range of operands and results with their rules for overflow, infinities and subnormal results, the adder with the
    bits that it keeps, the accumulator and its rounding (from four terms whose larger ones cancel), the products of a
    group, parts and stages (from the longest sums that one group, then one part reproduces), and whether at other
    lengths parts keep their number or their length (a promotion to float32 at a fixed interval). Every step computes
    the candidates and keeps those whose bits agree; `trials` random elements decide. Of candidates that no bit tells
    apart the simplest is named: float32 sums in order have no groups, so that group=16 stands for any.

    Known are operands in any format of at most float32's exponents, one for both factors; every Accumulation of
    `lowprec.matmul` whose accumulator has float32's exponents or those of the results; the deterministic roundings.
    Anything else (several running sums, a scale, unfused products, order by blocks of several lengths) is refused with
    the step at which candidates ran out.

    Args:
        f: f(a, b) takes float32 matrices (m, k) and (k, n) and casts as it likes; of kind "sum" f(x) takes a vector.
            Matrices have multiples of 16 rows, columns and terms where `terms` is one.
        trials: random elements to compare at last.
        terms: length of the sums; groups and parts up to it are found. Twice as many are asked too.
        key: of the random numbers, at least 0.

    Raises:
        TypeError: results that are no array of float32 or narrower.
        ValueError: f is not deterministic or gives another shape; numbers out of range.

    References:
        Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330
        (2021); Xie et al., "FPRev" (arXiv 2411.00442) and "MMA-Sim" (arXiv 2511.10909), for what there is to find.
    """
    terms, trials = integer("terms", terms, SHORTEST, LONGEST), integer("trials", trials, 1)
    box = BlackBox(f, kind)
    search = Search(box, terms, np.random.default_rng(integer("key", key, 0)))

    first: tuple[Arithmetic, Counterexample] | None = None
    try:
        for candidate in search.run():
            # The same random elements for each.
            wrong = first_difference(box, candidate, np.random.default_rng((key, 1)), terms, trials)
            if wrong is None:
                return Identified(candidate, None, candidate, terms, trials, search.any_length, kind)
            first = first or (candidate, wrong)
    except NothingFits as nothing:
        return Identified(None, None, None, terms, trials, False, kind, str(nothing))
    assert first is not None
    nearest, wrong = first
    why = f"{nearest.words()} reproduces the chosen inputs, but {wrong}"
    return Identified(None, wrong, nearest, terms, trials, False, kind, why)
