"""Every Python snippet of the site's pages runs, page by page; all pages are in it, and it builds without a warning."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ipu_core
import lowprec
from ipu_core import Precision, nn
from ipu_core.ir.precision.precision import PRESETS
from ipu_core.ir.precision.role_formats import FORMATS
from lowprec.backends.owner import load

ROOT = Path(__file__).parent.parent
SITE = ROOT / "notebooks" / "docs"
PAGES = sorted((SITE / "pages").rglob("*.md"))
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"\A---\nneeds: ([\w, ]+)\n---\n")
"""The first lines of a page whose snippets need packages that are not installed with the tests."""
RUN = [page for page in PAGES if SNIPPET.search(page.read_text())]
ON_A_GPU = [page for page in RUN if (needs := NEEDS.match(page.read_text())) and "cupy" in needs[1]]


def name(page: Path) -> str:
    return page.relative_to(SITE / "pages").as_posix()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.cuda] * (page in ON_A_GPU)) for page in RUN], ids=name
)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    needs = NEEDS.match(text)
    for package in needs[1].split(", ") if needs else ():
        pytest.importorskip(package)
    if page in ON_A_GPU:
        try:
            load("cuda").check()
        except RuntimeError as error:
            pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": name(page)}
    for snippet in SNIPPET.finditer(text):
        lines = text.count("\n", 0, snippet.start(1))  # so that an error names the page's own line
        exec(compile("\n" * lines + snippet[1], str(page), "exec"), names)
    names.clear()  # classes that JAX has registered would hold the page's loops for good


def test_how_to_pages_are_written_from_public_names_alone() -> None:
    used = "\n".join(snippet for page in RUN for snippet in SNIPPET.findall(page.read_text()))
    allowed = {"ipu_core", "ipu_core.train.schedules", "lowprec", "lowprec.testing"}
    modules = set(re.findall(r"^(?:from|import) ((?:lowprec|ipu_core)[\w.]*)", used, re.MULTILINE))
    assert modules <= allowed, sorted(modules - allowed)
    assert not re.findall(r"\b(?:lowprec|ipu_core|nn|loop|study|profile)\._\w+", used)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (SITE / "mkdocs.yml").read_text()))
    assert {name(page) for page in PAGES} == listed


def test_every_public_name_has_a_place_in_the_reference() -> None:
    reference = "\n".join(page.read_text() for page in (SITE / "pages" / "reference").glob("*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", reference, re.MULTILINE)}
    shown |= {name.removeprefix("lowprec.") for name in re.findall(r"`([\w.]+)`", reference)}  # the named formats
    public = {*lowprec.__all__, *ipu_core.__all__, *nn.__all__} - {"__version__", "nn"}
    assert not sorted(public - shown)


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: see `make docs`")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    run = "import gc; gc.disable(); from mkdocs.__main__ import cli; cli()"  # a fifth of the time is the collector's
    command = [sys.executable, "-c", run, "build", "--strict", "--quiet", "-f", "notebooks/docs/mkdocs.yml"]
    built = subprocess.run([*command, "-d", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "how-to" / "fp8" / "index.html").exists()
    # The tutorial shows what its snippets print and draw.
    shown = {
        path.name: (path / "index.html").read_text() for path in (tmp_path / "tutorial").iterdir() if path.is_dir()
    }
    assert {name for name, page in shown.items() if 'class="output' not in page} == {"10-studies"}
    assert "are rounded up" in shown["02-random-bits"]
    assert (tmp_path / "tutorial" / "08-comparing-1.png").exists()


def test_the_table_of_precisions_is_the_code_s() -> None:
    page = (SITE / "pages" / "reference" / "precisions.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [_row(preset) for preset in PRESETS]


def _row(name: str) -> str:
    said = name if name != "fp16.16" else "fp16.16/nearest"
    precision = Precision.parse(said)
    formats = [
        getattr(precision, field).name + (f" {how.mode}" if (how := precision.rounding_said(field)) else "")
        for field in FORMATS
    ]
    notes = [word for word, holds in {"streamed": precision.streamed, "mean": precision.running_mean}.items() if holds]
    notes += [f"moments x {precision.scaled_state:g}"] if precision.scaled_state != 1 else []
    notes += ["root of the second"] if precision.store_root else []
    notes += ["under unit scaling"] if precision.unit_scaled else []
    notes += [precision.scaling.words()] if precision.scaling is not None else []
    notes += [precision.order.order_words()] if precision.order is not None else []
    notes += [f"promoted every {precision.promote}"] if precision.promote else []
    rounding = precision.rounding_name if name != "fp16.16" else "must be said"
    return f"| `{name}` | " + " | ".join([*formats, rounding, ", ".join(notes)]) + " |"
