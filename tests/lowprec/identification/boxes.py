"""Random arithmetics as black boxes: what `identify` is given, knowing nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec import Accumulation, Rounding, as_format
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.black_box import differing
from lowprec.identification.identified import Identified
from lowprec.identification.probes import long_sums, sums

OPERANDS = ("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
ACCUMULATORS = ("float32", "float32", "float16", "bfloat16", "tfloat32", "e8m13", "e8m18")
RESULTS = ("float32", "float32", "float16", "bfloat16")


def draw(number: int) -> Arithmetic:
    """Groups of 1 to 256, all adders, 8 to 30 aligned bits, splits, promotions, four roundings, flush, saturation."""
    rng = np.random.default_rng((77, number))

    def one(names: tuple[str, ...]) -> Any:
        return str(rng.choice(names))

    while True:
        operands, accumulate = as_format(one(OPERANDS)), as_format(one(ACCUMULATORS))
        out = as_format(one(RESULTS)) if rng.random() < 0.5 else accumulate
        mode, adder = (
            one(("nearest_even", "toward_zero", "nearest_away", "up")),
            one(("sequential", "dot4", "pairwise", "aligned", "aligned")),
        )
        bits = int(rng.integers(8, 31)) if adder == "aligned" else None
        group, kind, splits, promote = int(2 ** rng.uniform(0, 8.001)), rng.integers(4), 1, None
        if kind == 1:
            splits = int(rng.integers(2, 20))
        if kind == 2:
            promote = group * int(rng.integers(1, max(2, 512 // group)))
        flush, overflow = bool(rng.random() < 0.3), "saturate" if rng.random() < 0.5 else None
        cast = Rounding(one(("nearest_even", "toward_zero")), flush=bool(rng.random() < 0.2))
        try:
            made = Arithmetic(
                Accumulation(group, splits, None, accumulate, out, adder, bits),
                Rounding(mode, flush=flush, overflow=overflow),  # type: ignore[arg-type]  # both are such names
                Operands(operands, cast if operands.name != "float32" else Rounding()),
                promote,
            )
            made(np.ones((16, 64), np.float32), np.ones((64, 16), np.float32))
        except (TypeError, ValueError):
            continue  # a rounding that the formats do not have, an adder that does not take the operands
        return made


def same(box: Arithmetic, found: Identified) -> bool:
    """Whether both give the same bits, on random numbers and lengths that `identify` did not see."""
    for seed in range(2):
        for terms in (found.terms, 512, 1540) if found.any_length else (found.terms,):
            for probe in (
                long_sums(np.random.default_rng((5, seed)), 128, terms, 64, (-5, 6), False),
                sums(np.random.default_rng((6, seed)), 128, terms, 64, False),
            ):
                if differing(box(*probe), found(*probe)).any():
                    return False
    return True
