"""The precision of what `lowprec.identify` found: every product of a training step in that arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipu_core.ir.precision.operand_scaling import OperandScaling
from ipu_core.ir.precision.said_rounding import written
from lowprec import Identified
from lowprec import float32 as FLOAT32
from lowprec.values.rounding import NEAREST_EVEN


def fields_of(found: Identified) -> dict[str, Any]:
    """What a float32 precision is changed by, so that its products are those of a black box.

    Operands are cast just before a product, forward and backward; everything else stays float32.

    Raises:
        ValueError: nothing was found, or what a precision cannot say: a sum of a vector, stages that are not those by
            the number of parts, sums of one length alone, float32 that is flushed or overflows otherwise.
    """
    if found.arithmetic is None:
        raise ValueError(f"nothing was identified that could train: {found.reason}")
    if found.kind != "product":
        raise ValueError("a precision has the arithmetic of products; this is that of a sum")
    if not found.any_length:
        raise ValueError(f"it is known for sums of {found.terms} terms alone, and a model has others")
    arithmetic = found.arithmetic
    order, operands = arithmetic.accumulation, arithmetic.operands
    if order.stages is not None:
        raise ValueError(f"sums in {order.stages} stages, whatever their number of parts, are nothing a precision says")
    if order.group is None:
        raise ValueError("groups of all of a part are nothing a precision says")
    how = arithmetic.rounding
    if order.out == FLOAT32 and (how.flush or how.overflow or how.infinite_input):
        raise ValueError(f"float32 results that are {how.words()} are nothing a precision says")
    if operands.format == FLOAT32 and operands.rounding != NEAREST_EVEN:
        raise ValueError(f"float32 operands that are {operands.rounding.words()} are nothing a precision says")
    changes: dict[str, Any] = {"group": order.group, "partials": order.accumulate, "output": order.out}
    changes["adder"] = f"aligned{order.aligned_bits}" if order.adder == "aligned" else order.adder
    changes["promote"] = arithmetic.promote
    if order.splits > 1:
        changes["splits"] = order.splits
    own = {"partials": replace(how, flush=False), "output": how}
    changes["roundings"] = {
        field: said for field, said in own.items() if changes[field] != FLOAT32 and said != NEAREST_EVEN
    }
    if operands.format != FLOAT32:
        cast = None if operands.rounding == NEAREST_EVEN else written(operands.rounding)
        changes["scaling"] = OperandScaling(
            operands.format, operands.format, "unscaled", forward_rounding=cast, backward_rounding=cast, cast_once=True
        )
    return changes
