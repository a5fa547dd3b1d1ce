"""Every notebook runs from top to bottom in its short form, and the committed one shows no error."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ipu_core.study.reproduce import REPRODUCTIONS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLAIN = [path for path in NOTEBOOKS if not path.stem.startswith("torch_")]
"""Those that need no PyTorch; `make test-torch` runs the others."""


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_published_result_is_a_notebook_that_the_readme_names(name: str) -> None:
    path = ROOT / "notebooks" / f"published_{name.replace('-', '_')}.ipynb"
    assert path in NOTEBOOKS
    assert f"[{name}](notebooks/{path.name})" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWPREC_SHORT", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_was_executed_without_errors(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
