"""Watched runs at their ends: a kill between two looks, values that are not finite."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Record, Watch
from ipu_core.diagnose.watch import look
from ipu_core.diagnose.watch.file import RowFile
from ipu_core.diagnose.watch.values import WatchedValue
from ipu_core.ir.block import Var
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from tests.ipu_core.diagnose.test_watch import BATCHES, loop, record


def test_a_kill_while_looks_are_replaced_leaves_those_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from before writes over later looks: these do not count from then on, whole or torn."""
    path = tmp_path / "run.watch"
    made = loop(Watch(every=1, path=path))
    made.run(BATCHES, 5)
    rows = Record.read(path).rows
    file = RowFile(path, record(made).values)
    count = RowFile._count

    def killed(self: RowFile, opened: Any, number: int) -> None:
        if number == 3:
            raise SystemExit
        count(self, opened, number)

    monkeypatch.setattr(RowFile, "_count", killed)
    with pytest.raises(SystemExit):
        file.append(rows[2])
    assert Record.read(path).steps.tolist() == [0, 1]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_the_mean_square_is_that_of_the_finite_elements(bad: float) -> None:
    block = Precision.parse("fp32.32").apply(trace(lambda x: x * 2.0, np.ones(4, np.float32)))
    (equation,) = block.equations
    value = WatchedValue("x", "activation", "", "", "multiply", equation.number, "forward", "", "float32", 4)
    seen = look.Look(look.places([value], block), 1, {})
    x = np.array([1.5, 2.0, bad, bad], np.float32)
    seen(equation, [x, 2.0], x * 2)
    (row,) = seen.rows(7)
    assert row["rms"] == pytest.approx(np.sqrt((9 + 16) / 2))
    assert (row["step"], row["elements"], row["infinite"] + row["nan"], row["largest"]) == (7, 4, 2, 4)


def test_changes_of_a_moment_that_is_no_sum_of_two_are_computed_again_and_counted() -> None:
    """Of what is to be at least 0: what is so already is to stay, as are infinities and NaN."""
    old = np.array([0.0, 1.0, 3e38, np.inf, -np.inf, np.nan, -1.0, -2.0, -3.0], np.float32)
    made = old.copy()
    made[7:] = 0.0
    (equation,) = trace(lambda x: np.maximum(x, 0.0), old).equations
    operands = [old if isinstance(atom, Var) else atom.value for atom in equation.inputs]
    assert look._moment(equation, operands, old, made, False) == (3, 1)
