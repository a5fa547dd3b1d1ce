"""Every notebook runs from top to bottom in its short form, and the committed one shows no error."""

import ast
import linecache
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from ipu_core.reproduce import REPRODUCTIONS, few_bits, four_bits, fp8, packed, weights
from ipu_core.study.models.size import Size

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLAIN = [path for path in NOTEBOOKS if not path.stem.startswith("torch_")]
"""Those that need no PyTorch; `make test-torch` runs the others."""

STUDIES = ("published_reversible",)
"""Slow: all of it that takes long is run at a small share, to its verdicts, by the test of its module too."""

SMALL = Size(width=32, layers=1, heads=2, context=32)
"""Of the models over bytes, each of which is traced and planned again for every row of a table."""


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_published_result_is_a_notebook_that_the_readme_names(name: str) -> None:
    path = ROOT / "notebooks" / f"published_{name.replace('-', '_')}.ipynb"
    assert path in NOTEBOOKS
    assert f"[{name}](notebooks/{path.name})" in (ROOT / "README.md").read_text("utf-8")


def show(value: object) -> None:
    """Makes what a notebook would show of a cell's last value, and the figures that are open."""
    for name in ("_repr_html_", "_repr_png_"):
        getattr(value, name, lambda: None)()
    repr(value)
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        pyplot.figure(number).set_layout_engine("none")  # half the time of a picture that nobody sees
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")


def run_cells(path: Path) -> None:
    """Runs the cells in this process, where everything is imported already."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for number, text in enumerate(cells):
        name = f"<{path.stem}, cell {number}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name  # for inspect
        tree = ast.parse(text, name)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        show(eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else None)


@pytest.mark.filterwarnings("ignore")  # pictures that cannot be shown here
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in STUDIES else []) for path in PLAIN],
)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWPREC_SHORT", "1")
    for module in (few_bits, four_bits, fp8, packed, weights):
        monkeypatch.setattr(module, "SIZE", SMALL)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    with matplotlib.rc_context(), np.printoptions():
        run_cells(path)


@pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if place else []) for place, path in enumerate(PLAIN)],
)
def test_notebook_runs_in_jupyters_kernel(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWPREC_SHORT", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_was_executed_without_errors(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
