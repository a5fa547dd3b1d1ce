"""Golden vectors: operands and results of a known arithmetic, for benches in C++ and RTL that cannot call Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lowprec.checks import expect_path, integer
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.identified import Identified
from lowprec.identification.probes import four_terms, long_sums, powers
from lowprec.processor import in_default_state
from lowprec.rounding import encode
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.formats import FormatLike, as_format
from lowprec.values.rounding import NEAREST_EVEN, Rounding

COLUMNS, LEAST_TERMS = 16, 4


@in_default_state
def golden_vectors(
    path: str | Path,
    arithmetic: Accumulation | Identified,
    *,
    rounding: Rounding = NEAREST_EVEN,
    operands: FormatLike = "float32",
    operand_rounding: Rounding = NEAREST_EVEN,
    terms: int = 64,
    rows: int = 256,
    key: int = 0,
) -> dict[str, Array]:
    """Writes products of matrices, and what an arithmetic makes of them, as an .npz file of codes.

    The file has, for the names "sizes" (one product of every size, with infinities and both zeros), "four" (sums of
    which four terms are not zero, some of which cancel) and "long" (sums of all terms): `NAME_a` (rows, terms) and
    `NAME_b` (terms, columns), float32, not yet cast; `NAME_a_codes` and `NAME_b_codes`, the same as codes of the
    operands' format; `NAME_result_codes` (rows, columns), codes of the result's format, in which NaN has one code:
    compare NaNs as such. Columns are 16, for "sizes" 32, whose rows are as many as it has sizes. `words` says the
    arithmetic in a line.

    Args:
        path: the file; ".npz" is added where it is missing.
        arithmetic: an Accumulation, with the next three arguments; or what `identify` found, without them.
        rounding, operands, operand_rounding: as of `lowprec.conformance`.
        terms: length of the sums, at least 4.
        rows: sums of each kind, by 16 columns.
        key: of the random numbers: the same one gives the same file.

    Returns:
        What was written, by name.

    Raises:
        TypeError: an arithmetic of another kind, or one that says its roundings beside others; operands that
            `lowprec.matmul` does not take.
        ValueError: numbers out of range; nothing was identified; a stochastic rounding.
        OSError: the file cannot be written.
    """
    made = _arithmetic(arithmetic, rounding, Operands(as_format(operands), operand_rounding))
    terms, rows = integer("terms", terms, LEAST_TERMS), integer("rows", rows, 1)
    expect_path("path", path)
    place = Path(path)
    generator = np.random.default_rng(integer("key", key, 0))
    fmt, order = made.operands.format, made.order(terms)
    high = max(1, min(10, fmt.emax - 1, (order.accumulate.emax - 2) // 2, (order.out.emax - 2) // 2))
    reach = (-high, high)
    probes = {
        "sizes": powers(generator, terms, False),
        "four": four_terms(generator, terms, rows, reach, False),
        "long": long_sums(generator, rows, terms, COLUMNS, reach, False),
    }
    found: dict[str, Array] = {"words": np.array(made.words())}
    for name, (a, b) in probes.items():
        how = made.operands.rounding
        for side, x in (("a", a), ("b", b)):
            found[f"{name}_{side}"] = x
            found[f"{name}_{side}_codes"] = encode(
                x, fmt, how.mode, overflow=how.overflow, infinite_input=how.infinite_input, flush=how.flush
            )
        found[f"{name}_result_codes"] = encode(made(a, b), order.out)
    place = place if place.suffix == ".npz" else place.with_name(place.name + ".npz")
    np.savez_compressed(place, **found)  # type: ignore[arg-type]  # its keywords are arrays
    return found


def _arithmetic(given: Any, rounding: Rounding, operands: Operands) -> Arithmetic:
    if isinstance(given, Identified):
        if rounding != NEAREST_EVEN or operands != Operands():
            raise TypeError("what identify found says its roundings and operands itself")
        if given.arithmetic is None:
            raise ValueError(f"no arithmetic was found: {given.reason}")
        return given.arithmetic
    if not isinstance(given, Accumulation):
        raise TypeError(f"arithmetic must be a lowprec.Accumulation, or what identify found, not {given!r}")
    if rounding.stochastic or operands.rounding.stochastic:
        raise ValueError("golden vectors are of roundings that draw no random bits")
    return Arithmetic(given, rounding, operands)
