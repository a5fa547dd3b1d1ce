"""Every path that a page of this project names is there: those for developers, and those of the site."""

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "notebooks" / "docs" / "pages").rglob("*.md"))]
PATH = re.compile(r"`([\w.*-]*(?:/[\w.*-]*)+|[\w*-]+\.(?:py|h|cpp|cu|toml|md|yml))`")
FOREIGN = re.compile(r"build/|results/|fp\d")
"""What is no path of the checkout: what it builds and writes, and names of precisions."""
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def listed() -> list[PurePosixPath]:
    """Files of the checkout, and the folders that they are in."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [PurePosixPath(name) for name in names.splitlines()]
    return [*files, *{folder for file in files for folder in file.parents}]


def missing(text: str, there: list[PurePosixPath]) -> list[str]:
    """The paths in backticks that no file or folder ends in; a part of a path may be a pattern."""
    named = {name for name in PATH.findall(text) if not FOREIGN.match(name)}
    return sorted(name for name in named if not any(path.match(name.rstrip("/")) for path in there))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    assert not missing(page.read_text(), listed())


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:  # of the site's pages its builder sees it
    assert not [name for name in LINK.findall(page.read_text()) if not (ROOT / name).exists()]


def test_a_path_that_moved_is_seen() -> None:
    there = listed()
    assert not missing(
        "`ir/run/fusions.py` `block.py` `kernels/cpu` `loops_*.cpp` `fp8/static` `build/site` `a / b`", there
    )
    assert missing("`ir/fusions.py` `plan/` `lowprec/spec` `blocks_.py` `tests/x.py`", there) == [
        "blocks_.py", "ir/fusions.py", "lowprec/spec", "plan/", "tests/x.py",
    ]  # fmt: skip
