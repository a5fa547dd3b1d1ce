"""The notebooks on models of PyTorch run from top to bottom in their short form."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("torch_*.ipynb"))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWPREC_SHORT", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
