"""The table of what every equation of a step has."""

import inspect

import numpy as np
import pytest

from ipu_core import Adam, TrainLoop, nn
from ipu_core.ir.ops import STRUCTURE
from ipu_core.study.models import mlp

PARAMS = {"a.long.name.of.a.layer.in.a.deep.model.weight": np.ones((4, 6)), "w2": np.ones((6, 3))}
BATCH = (np.ones((2, 4), np.float32), np.zeros(2, np.int32))


def loss(params, batch):
    x, y = batch
    first, second = (params[name] for name in PARAMS)
    with nn.name_scope("hidden", x):
        hidden = nn.gelu(nn.matmul(x, first))
    return nn.softmax_cross_entropy(nn.matmul(hidden, second), y)


def loop(precision: str) -> TrainLoop:
    return TrainLoop(loss, PARAMS, BATCH, optimizer=Adam(0.1), precision=precision, engine="direct")


def cells(table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def line_with(text: str) -> str:
    lines, first = inspect.getsourcelines(loss)
    return f"{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_every_equation_has_a_row_with_what_it_computes_in():
    made = loop("fp16.16/stochastic/moments=float16/w2:weights=float32/hidden.gelu:nearest")
    rows = cells(made.precision_table(200))
    assert len(rows) == len([e for e in made.block.equations if e.op not in STRUCTURE])
    (product,) = [row for row in rows if row["equation"].startswith("w2.forward.dot.")]
    assert product == {
        "equation": product["equation"], "formats": "fp16", "sums": "fp16", "rounding": "stochastic",
        "line": line_with("matmul(hidden"),
    }  # fmt: skip
    (gelu,) = [row for row in rows if row["equation"].startswith("hidden.forward.gelu.")]
    assert (gelu["rounding"], gelu["line"]) == ("nearest", line_with("nn.gelu"))
    (update,) = [row for row in rows if row["equation"].startswith("w2.update.")]
    assert update["formats"] == "fp32"
    assert update["line"] == line_with("matmul(hidden")  # where the parameter is first used
    (largest,) = [row for row in rows if ".reduce_max." in row["equation"]]
    assert (largest["rounding"], largest["formats"]) == ("", "fp16")


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_the_width_and_says_whose_it_is(width):
    table = loop("fp16.16/nearest").precision_table(width)
    lines = str(table).splitlines()
    assert lines[0] == "fp16.16/nearest, lines of test_precision_table.py"
    assert max(map(len, lines[1 : 3 + len(table.rows)])) <= width
    assert any("…" in row[0] and row[0].startswith("a.long.") for row in table.rows)
    whole = {part for row in table.rows for part in row[0].split(".")}
    assert {"first_moment", "second_moment", "grad_weight", "update"} <= whole
    assert "<table>" in table._repr_html_()


def test_lines_of_several_files_are_shortened_too():
    def both(params, batch):
        return loss(params, batch) + mlp.loss([{"weight": params["w3"], "bias": params["bias"]}], batch)

    params = {**PARAMS, "w3": np.ones((4, 3)), "bias": np.zeros(3)}
    made = TrainLoop(both, params, BATCH, optimizer=Adam(0.1), precision="fp16.16/nearest", engine="direct")
    table = made.precision_table(90)
    assert max(map(len, str(table).splitlines()[1 : 3 + len(table.rows)])) <= 90
    lines = {row[-1] for row in made.precision_table(200).rows}
    assert any(line.startswith("mlp.py:") for line in lines)
    assert any(line.startswith("test_precision_table.py:") for line in lines)
