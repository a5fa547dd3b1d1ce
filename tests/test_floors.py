"""The house's floors: imports look down only, and no module of ours is imported inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lowprec", "ipu_core")

# The floor of a module is that of the longest prefix of its name. plan and engine stand side by side.
FLOORS = {
    "lowprec": 1,
    "ipu_core.errors": 2,
    "ipu_core.interruption": 2,
    "ipu_core.target": 2,
    "ipu_core.control": 2,
    "ipu_core.cost": 2,
    "ipu_core.tile": 2,
    "ipu_core.tile_convolution": 2,
    "ipu_core.hardware_random": 2,
    "ipu_core.graph": 3,
    "ipu_core.plan": 4,
    "ipu_core.engine": 4,
    "ipu_core.report": 5,
    "ipu_core.library": 5,
    "ipu_core.ir": 6,
    "ipu_core.initial": 6,
    "ipu_core.nn": 6,
    "ipu_core.train": 7,
    "ipu_core.study": 8,
    "ipu_core.__main__": 8,
    "ipu_core": 8,  # the package itself only gathers public names
}
STRANGERS = {("ipu_core.plan", "ipu_core.engine"), ("ipu_core.engine", "ipu_core.plan")}


class Import(NamedTuple):
    """One import statement of a module of ours by a module of ours."""

    importer: str
    imported: str
    line: int
    inside_function: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    name = module_name(path)
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] in PACKAGES:
                yield Import(name, target, node.lineno, id(node) in inside)


def prefix_of(name: str) -> str:
    return max((p for p in FLOORS if name == p or name.startswith(p + ".")), key=len)


SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
IMPORTS = [i for path in SOURCES for i in imports_of(path)]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30
    assert len(IMPORTS) > 100


@pytest.mark.parametrize("package", sorted({prefix_of(module_name(path)) for path in SOURCES}))
def test_imports_look_down_only(package: str) -> None:
    bad = []
    for i in IMPORTS:
        if prefix_of(i.importer) != package:
            continue
        target = prefix_of(i.imported)
        if FLOORS[target] > FLOORS[package] or (package, target) in STRANGERS:
            bad.append(f"{i.importer}:{i.line} imports {i.imported}")
    assert not bad, "\n".join(bad)


# What backends may import of lowprec: values, the compiled module, each other, and helpers that know no arrays.
BELOW_BACKENDS = ("spec", "backends", "_kernels", "threads", "types", "integers", "_caching", "_lazy", "extras")


def test_backends_import_values_and_never_the_front() -> None:
    allowed = tuple(f"lowprec.{name}." for name in BELOW_BACKENDS)
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if i.importer.startswith("lowprec.backends.") and not f"{i.imported}.".startswith(allowed)
    ]
    assert not bad, "\n".join(bad)


def test_values_import_values() -> None:
    allowed = ("lowprec.spec.", "lowprec._caching.", "lowprec.types.", "lowprec.integers.")
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if i.importer.startswith("lowprec.spec") and not f"{i.imported}.".startswith(allowed)
    ]
    assert not bad, "\n".join(bad)


def test_what_begins_with_an_underscore_stays_in_its_package() -> None:
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        for owner in (i.imported.split(".")[0],)
        if any(part.startswith("_") and not part.startswith("__") for part in i.imported.split("."))
        and i.importer.split(".")[0] != owner
    ]
    assert not bad, "\n".join(bad)


def test_only_packages_of_lowprec_list_what_is_theirs() -> None:
    """`__all__` stands in packages, whose names others import from them; a module's names are the module's."""
    lowprec = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "lowprec"]
    bad = [str(path) for path in lowprec if "__all__ =" in path.read_text() and path.name != "__init__.py"]
    assert not bad, "\n".join(bad)


def test_only_backends_call_the_kernels() -> None:
    """Beside them: the package, which sees that they are there, the number of threads and the choice of an object."""
    known = {"lowprec", "lowprec.threads", "lowprec.testing.isa"}
    bad = [
        f"{i.importer}:{i.line}"
        for i in IMPORTS
        if i.imported.startswith("lowprec._kernels")
        and i.importer not in known
        and not i.importer.startswith("lowprec.backends.")
    ]
    assert not bad, "\n".join(bad)


def test_no_own_imports_inside_functions() -> None:
    bad = [f"{i.importer}:{i.line} imports {i.imported}" for i in IMPORTS if i.inside_function]
    assert not bad, "\n".join(bad)


def test_every_module_says_what_it_is() -> None:
    bad = [str(path.relative_to(ROOT)) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not bad, "\n".join(bad)


def test_the_kernels_include_nothing_of_the_standard_library() -> None:
    for header in (ROOT / "kernels" / "include" / "lowprec").glob("*.h"):
        included = [line for line in header.read_text().splitlines() if line.startswith("#include")]
        assert all(line.startswith('#include "') for line in included), header
