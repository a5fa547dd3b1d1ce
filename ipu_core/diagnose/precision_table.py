"""A table of all equations of a step by name: formats, format of partial sums, rounding, source line."""

from __future__ import annotations

from ipu_core.ir.block import Block, Equation, Format, Literal, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import OPS, STRUCTURE
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.table import Table
from lowprec import FloatFormat
from lowprec.checks import integer

WIDTH = 100
COLUMNS = ("equation", "formats", "sums", "rounding", "line")
LEAST = 10  # characters of a name
NOTE = "fp16 is float16, fp32 float32, bf16 bfloat16, e4m3fn float8_e4m3fn and so on; no rounding: the result is exact."


def precision_table(block: Block, precision: Precision, width: int = WIDTH) -> Table:
    """A row for every equation that computes.

    Args:
        block: typed.
        precision: what typed it.
        width: characters of a line.
    """
    integer("width", width, 1)
    lines, title = source_lines(block), precision.name
    # A model in one file: its name stands in the title, and every row has room for more.
    files = {line.rpartition(":")[0] for line in lines.values() if line}
    if len(files) == 1:
        lines, title = {n: line.rpartition(":")[2] for n, line in lines.items()}, f"{title}, lines of {files.pop()}"
    rows = [_row(equation, lines) for equation in equations_of(block) if equation.op not in STRUCTURE]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    room = width - sum(widths[1:-1]) - 2 * (len(COLUMNS) - 1)
    last = min(widths[-1], max(LEAST, room // 3))
    first = max(LEAST, room - last)
    fitting = tuple((shortened(name, first), *cells, shortened(line, last)) for name, *cells, line in rows)
    return Table(title, COLUMNS, fitting, NOTE, len(COLUMNS))


def source_lines(block: Block) -> dict[int, str]:
    """The line of the model that each equation comes from, by number: "model.py:41".

    What belongs to the optimizer has the line where its parameter is first used.
    """
    first: dict[str, str] = {}
    for equation in equations_of(block):
        if equation.role == "forward" and equation.parameter and equation.source:
            first.setdefault(equation.parameter, equation.source)
    # An optimizer's own lines are in lowprec's files, where its user finds nothing.
    own = {e.number: e.source or "" for e in equations_of(block) if e.role not in ("optimizer", "update")}
    return {e.number: own.get(e.number) or first.get(e.parameter or "", "") for e in equations_of(block)}


def shortened(name: str, room: int) -> str:
    """A name with its middle left out where it is too long."""
    if len(name) <= room:
        return name
    # The middle goes: names begin with the layer and end with the operation and number.
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"


def _row(equation: Equation, lines: dict[int, str]) -> tuple[str, ...]:
    operands = dict.fromkeys(_kind(var.type.format) for var in equation.operands)
    output, accumulate = equation.output.type.format, equation.arithmetic.accumulate
    return (
        equation.name,
        f"{','.join(operands)}->{_kind(output)}" if [*operands] != [_kind(output)] else _kind(output),
        _kind(accumulate) if accumulate else "",
        _rounding(equation),
        lines[equation.number],
    )


def _rounding(equation: Equation) -> str:
    """How the result is rounded, and partial sums where they are otherwise; "": nothing is."""
    own, partials = equation.arithmetic.rounding.mode, equation.arithmetic.partials
    said = "" if _is_exact(equation) else own.removesuffix("_even")
    apart = "" if partials is None or partials.mode == own else f"sums {partials.mode.removesuffix('_even')}"
    return ", ".join(filter(None, (said, apart)))


def _is_exact(equation: Equation) -> bool:
    """Whether nothing is rounded: the operation is exact and its result's format holds all its operands."""
    output = equation.output.type.format
    if not isinstance(output, FloatFormat):
        return True
    formats = [var.type.format for var in equation.operands]
    exact = OPS[equation.op].exact and not any(isinstance(x, Literal) for x in equation.inputs)
    return exact and all(isinstance(fmt, str) or output.contains(fmt) for fmt in formats)


def _kind(fmt: Format) -> str:
    """A format's name without what all have in common."""
    return format_name(fmt).replace("bfloat", "bf").replace("float8_", "").replace("float", "fp")
