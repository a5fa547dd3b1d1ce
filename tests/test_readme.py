"""Every Python snippet of the README runs, the commands it names exist, its links and CONTRIBUTING's files too."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("kernels", "lowprec", "ipu_core", "tests")
TEXT = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_there_is_one_for_each_depth() -> None:
    marks = ["lowprec.astype", "Graph(", "compare("]
    assert [[mark in snippet for mark in marks].index(True) for snippet in SNIPPETS] == [0, 1, 2]


def test_it_has_two_screens() -> None:
    assert len(TEXT.splitlines()) <= 140


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["rounding", "graph", "compare"])
def test_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {})


def test_graph_snippet_prints_what_its_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = SNIPPETS[1]
    exec(compile(snippet, "README.md", "exec"), {})
    promised = re.findall(r"# (\[.*)$", snippet, re.MULTILINE)[0]
    assert capsys.readouterr().out.split() == promised.split()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shell = "".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    targets = re.findall(r"^make (\w+)", shell, re.MULTILINE)
    assert targets == ["study", "test"]  # the main job and the tests, each from a fresh clone
    assert all(re.search(rf"^{target}: (?:light|setup)$", makefile, re.MULTILINE) for target in targets)


def test_continuous_integration_runs_the_tests_as_readme_says() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert "make test" in commands
    assert "set -eu" in commands  # what fails ends it


def test_links_and_pictures_exist() -> None:
    paths = [path for path in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in path and path[0] != "#"]
    assert paths
    assert all((ROOT / path).exists() for path in paths)


def test_files_that_contributing_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|h|cpp))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert "lowprec/sums/matmul.py" in named
    paths = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    missing = [name for name in named if not any(path.endswith(f"/{name}") for path in paths)]
    assert not missing


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b(?:TODO|TBD|XXX|[A-Z]+_TABLE)\b", TEXT)
