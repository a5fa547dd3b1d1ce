"""Equations to tiles: one function per family of operations."""

from collections.abc import Callable

from ipu_core.compile.lowering.context import Lowering
from ipu_core.compile.lowering.convolution import lower_convolution
from ipu_core.compile.operands import seen
from ipu_core.graph.program import Copy, CrossReplica
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Equation
from ipu_core.ir.ops import (
    COLLECTIVES,
    COMPUTED_AS,
    CONVOLUTIONS,
    DOTS,
    EACH_REPLICA,
    ELEMENTWISE,
    GROUP_SUM,
    SET_ROW,
    VIEWS,
)
from ipu_core.ir.run.collectives import collective_of
from ipu_core.library.elementwise import elementwise
from ipu_core.library.labelled import add_at_labels, pick_at_labels
from ipu_core.library.matmul import matmul, reduce
from ipu_core.library.moves import concatenate, one_hot, pad
from ipu_core.library.places import set_row
from ipu_core.library.random import dropout_mask
from ipu_core.library.rows import put_along, take_along, top_indices
from ipu_core.library.sides import arranged
from ipu_core.library.tables import gather, scatter_add


def lower_equation(lowering: Lowering, equation: Equation) -> None:
    """Adds what an equation needs to the graph, and its programs to the list.

    Raises:
        NotImplementedError: there is no rule for the operation.
    """
    rule = LOWERINGS.get(equation.op)
    if rule is None:
        raise NotImplementedError(f"no lowering for {equation.op!r}; there are {', '.join(sorted(LOWERINGS))}")
    rule(lowering, equation)


def _elementwise(lowering: Lowering, equation: Equation) -> None:
    if equation.output in lowering.magnitudes:
        lowering.tensors[equation.output] = lowering.tensors[equation.operands[0]]
        return
    if any(var in lowering.labelled.rows for var in equation.operands):
        if equation.output not in lowering.labelled.rows:
            _add_at_labels(lowering, equation)
        return
    operands = [lowering.operand(atom) for atom in equation.inputs]
    op = COMPUTED_AS[equation.op]
    lowering.programs += elementwise(
        lowering.graph, op, operands, lowering.result(equation),
        stochastic=equation.arithmetic.stochastic, operation=equation.keyed, name=equation.name,
    )  # fmt: skip


def _add_at_labels(lowering: Lowering, equation: Equation) -> None:
    """A sum of an array and of what one-hot rows choose."""
    (chosen,) = (var for var in equation.operands if var in lowering.labelled.rows)
    (x,) = (var for var in equation.operands if var is not chosen)
    there, elsewhere = (lowering.operand(atom) for atom in lowering.labelled.rows[chosen].inputs[1:])
    labels, given = lowering.tensors[lowering.labelled.labels(chosen)], lowering.tensors[x]
    lowering.programs += add_at_labels(
        lowering.graph, given, labels, there, elsewhere, lowering.result(equation), name=equation.name
    )


def _sides(lowering: Lowering, equation: Equation) -> list[Tensor]:
    """The operands of a product or sum as its plan states them, copied where they do not lie so."""
    lie = lowering.plan.sides[equation.number]
    tensors = [lowering.tensors[var] for var in equation.operands[: len(lie)]]
    return arranged(lowering.graph, lowering.programs, tensors, lie, equation.name)


def _dot(lowering: Lowering, equation: Equation) -> None:
    a, b = _sides(lowering, equation)
    plan = lowering.sum_plan(equation)
    out = lowering.result(equation).reshape(plan.product.batch, plan.product.m, plan.product.n)
    scale = lowering.tensors[equation.operands[2]] if equation.op == "scaled_dot" else None
    _, programs = matmul(
        lowering.graph, a, b, plan, out=out, scale=scale,
        stochastic=equation.arithmetic.stochastic, operation=equation.keyed, name=equation.name,
    )  # fmt: skip
    lowering.programs += programs


def _reduce(lowering: Lowering, equation: Equation) -> None:
    if (chosen := equation.operands[0]) in lowering.labelled.rows:
        given = lowering.labelled.rows[chosen].operands[1], lowering.labelled.labels(chosen)
        terms, labels = (lowering.tensors[var] for var in given)
        lowering.programs += pick_at_labels(
            lowering.graph, terms, labels, lowering.result(equation), name=equation.name
        )
        return
    (x,), read = _sides(lowering, equation), lowering.views[equation.operands[0]].root
    lowering.programs += reduce(
        lowering.graph, x, lowering.result(equation), lowering.sum_plan(equation),
        maximum=equation.op == "reduce_max", magnitudes=read in lowering.magnitudes,
        stochastic=equation.arithmetic.stochastic, operation=equation.keyed, name=equation.name,
    )  # fmt: skip


def _collective(lowering: Lowering, equation: Equation) -> None:
    kind = {"first_replica": "broadcast", GROUP_SUM: "all_reduce"}.get(equation.op, equation.op)
    how = collective_of(equation) if "collective" in equation.params else None
    lowering.programs.append(
        CrossReplica(
            lowering.tensors[equation.operands[0]], lowering.result(equation), int(equation.params["replicas"]), kind,
            how, lowering.system, equation.keyed, equation.name, equation.family == "loss",
        )
    )  # fmt: skip


def _each_replica(lowering: Lowering, equation: Equation) -> None:
    # every chip keeps its own for the host: nothing goes over links
    own, out = lowering.tensors[equation.operands[0]], lowering.result(equation)
    lowering.programs += [Copy(own, out, equation.name)] if own is not out else []


def _view(lowering: Lowering, equation: Equation) -> None:
    var, source = equation.output, lowering.tensors[equation.operands[0]]
    # The views of the Block decide, so that tiles and direct engine agree on what shares memory.
    view = lowering.views[var]
    if view.root is not var:
        lowering.tensors[var] = seen(var, view, lowering.tensors[view.root].variable)
    else:  # a reshape that strides cannot express: a contiguous array can be viewed in any shape
        lowering.tensors[var] = lowering.copy(source, f"{equation.name}: operand").reshape(var.type.shape)


def _concatenate(lowering: Lowering, equation: Equation) -> None:
    parts = [lowering.tensors[var] for var in equation.operands]
    lowering.programs += concatenate(parts, lowering.result(equation), equation.params["axis"], name=equation.name)


def _pad(lowering: Lowering, equation: Equation) -> None:
    out, source, params = lowering.result(equation), lowering.tensors[equation.operands[0]], equation.params
    lowering.programs += pad(
        lowering.graph, source, out, low=params["low"], interior=params["interior"], name=equation.name
    )


def _gather(lowering: Lowering, equation: Equation) -> None:
    var, place = equation.operands
    if place in lowering.counters and var in lowering.tables:
        out = lowering.result(equation)
        lowering.programs += lowering.tables[var].row_at(lowering.tensors[place], out, equation.name)
        return
    table, indices = lowering.tensors[var], lowering.tensors[place]
    lowering.programs += gather(
        lowering.graph, _rows(lowering, table, 1, equation), _rows(lowering, indices, indices.ndim, equation),
        lowering.result(equation), name=equation.name,
    )  # fmt: skip


def _set_row(lowering: Lowering, equation: Equation) -> None:
    row, place, before = equation.operands
    if before in lowering.tables:
        table = lowering.tables[equation.output] = lowering.tables[before]
        lowering.programs += table.set_row(lowering.tensors[row], lowering.tensors[place], equation.name)
        return
    old, out = lowering.tensors[before], lowering.result(equation)
    lowering.programs += [Copy(old, out, equation.name)] if old is not out else []
    lowering.programs += set_row(lowering.graph, lowering.tensors[row], lowering.tensors[place], out, equation.name)


def _scatter(lowering: Lowering, equation: Equation) -> None:
    indices, updates = (lowering.tensors[var] for var in equation.operands)
    axes = indices.ndim
    lowering.programs += scatter_add(
        lowering.graph, _rows(lowering, indices, axes, equation), _rows(lowering, updates, axes, equation),
        lowering.result(equation), stochastic=equation.arithmetic.stochastic,
        operation=equation.keyed, accumulation=equation.params.get("accumulation"),
        maximum=equation.op == "scatter_max", name=equation.name,
    )  # fmt: skip


def _joined(lowering: Lowering, equation: Equation) -> list[Tensor]:
    """The operands, or copies, whose axes but the last can be viewed as one."""
    tensors = (lowering.tensors[var] for var in equation.operands)
    return [_rows(lowering, tensor, tensor.ndim - 1, equation) for tensor in tensors]


def _top_indices(lowering: Lowering, equation: Equation) -> None:
    (x,) = _joined(lowering, equation)
    lowering.programs += top_indices(lowering.graph, x, lowering.result(equation), name=equation.name)


def _take_along(lowering: Lowering, equation: Equation) -> None:
    x, indices = _joined(lowering, equation)
    lowering.programs += take_along(lowering.graph, x, indices, lowering.result(equation), name=equation.name)


def _put_along(lowering: Lowering, equation: Equation) -> None:
    indices, updates = _joined(lowering, equation)
    lowering.programs += put_along(
        lowering.graph, indices, updates, lowering.result(equation),
        stochastic=equation.arithmetic.stochastic, operation=equation.keyed, name=equation.name,
    )  # fmt: skip


def _rows(lowering: Lowering, tensor: Tensor, axes: int, equation: Equation) -> Tensor:
    """The tensor, or a copy, whose first axes and whose other axes can each be joined."""
    # The reshapes only try whether strides allow it; -1 has no value in an array without elements.
    first, rest = tensor.shape[:axes], tensor.shape[axes:]
    try:
        tensor.reshape(-1 if first and tensor.size else 1, *rest).reshape(*first, -1 if rest and tensor.size else 1)
    except ValueError:
        return lowering.copy(tensor, f"{equation.name}: operand")
    return tensor


def _one_hot(lowering: Lowering, equation: Equation) -> None:
    if equation.output in lowering.labelled.rows:
        return
    (labels,) = (lowering.tensors[var] for var in equation.operands)
    lowering.programs += one_hot(lowering.graph, labels, lowering.result(equation), name=equation.name)


def _dropout_mask(lowering: Lowering, equation: Equation) -> None:
    lowering.programs += dropout_mask(
        lowering.graph, lowering.result(equation), equation.params["rate"],
        operation=equation.draws, name=equation.name,
    )  # fmt: skip


LOWERINGS: dict[str, Callable[[Lowering, Equation], None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(DOTS, _dot),
    **dict.fromkeys(CONVOLUTIONS, lower_convolution),
    **dict.fromkeys(("reduce_sum", "reduce_max"), _reduce),
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys((*COLLECTIVES, GROUP_SUM), _collective),
    EACH_REPLICA: _each_replica,
    "concatenate": _concatenate,
    "pad": _pad,
    "gather": _gather,
    SET_ROW: _set_row,
    "scatter_add": _scatter,
    "scatter_max": _scatter,
    "top_indices": _top_indices,
    "take_along": _take_along,
    "put_along": _put_along,
    "one_hot": _one_hot,
    "dropout_mask": _dropout_mask,
}
