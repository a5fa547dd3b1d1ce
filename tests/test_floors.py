"""The house's floors: imports look down only, and no module of ours is imported inside a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lowprec", "ipu_core")


class Floor(NamedTuple):
    """Modules, by the beginnings of their names, and the floors below, which they may import with all below them."""

    modules: tuple[str, ...]
    below: tuple[str, ...] = ()


# The floor of a module is that of the longest beginning of its name. placement and engine stand side by side. Of the
# equations only their runs know a tile's arithmetic, and none knows the tiled graph.
FLOORS = {
    "lowprec": Floor(("lowprec",)),
    "chip": Floor(("ipu_core.chip", "ipu_core.errors", "ipu_core.interruption"), ("lowprec",)),
    "graph": Floor(("ipu_core.graph",), ("chip",)),
    "placement": Floor(("ipu_core.placement",), ("graph",)),
    "engine": Floor(("ipu_core.engine",), ("graph",)),
    "report": Floor(("ipu_core.report",), ("engine",)),
    "library": Floor(("ipu_core.library",), ("placement",)),
    "equations": Floor(("ipu_core.ir",), ("lowprec",)),
    "runs": Floor(("ipu_core.ir.run",), ("equations", "chip")),
    "tracing": Floor(
        (
            "ipu_core.ir.trace",
            "ipu_core.ir.passes.autodiff",
            "ipu_core.ir.passes.cotangents",
            "ipu_core.ir.passes.given_gradients",
            "ipu_core.ir.passes.scan_gradient",
            "ipu_core.ir.unit_scaling",
        ),
        ("runs",),
    ),
    "compile": Floor(("ipu_core.compile",), ("library", "engine", "tracing")),
    "system": Floor(("ipu_core.system",), ("compile", "report")),
    "nn": Floor(("ipu_core.nn", "ipu_core.initial"), ("tracing",)),
    "files": Floor(("ipu_core.train.checkpoint", "ipu_core.train.table"), ("runs",)),
    "watch": Floor(
        tuple(f"ipu_core.diagnose.{name}" for name in ("watch", "measure", "wide_counts", "finite", "precision_table")),
        ("files",),
    ),
    "train": Floor(("ipu_core.train",), ("system", "nn", "watch")),
    "diagnose": Floor(("ipu_core.diagnose", "ipu_core.sampling"), ("train",)),
    "study": Floor(("ipu_core.study", "ipu_core.packing", "ipu_core.workloads"), ("diagnose", "report")),
    "reproduce": Floor(("ipu_core.reproduce", "ipu_core.figures"), ("study",)),
    "frontends": Floor(("ipu_core.frontends", "ipu_core.poptorch", "lowprec.torch"), ("train",)),
    "command line": Floor(
        ("ipu_core.__main__", "ipu_core.command_line", "ipu_core.own", "ipu_core"), ("reproduce", "frontends")
    ),  # gathers names
}


class Import(NamedTuple):
    """One import statement of a module of ours by a module of ours."""

    importer: str
    imported: str
    line: int
    inside_function: bool
    for_types: bool  # under `if TYPE_CHECKING`


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    name = module_name(path)
    pending: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text()), False, False)]
    while pending:  # statements alone: no expression holds an import
        node, inside, for_types = pending.pop()
        inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types |= isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            below = (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
            pending += [(each, inside, for_types) for each in below]
            continue
        for target in targets:
            if target.split(".")[0] in PACKAGES:
                yield Import(name, target, node.lineno, inside, for_types)


def floor_of(name: str) -> str:
    """The floor with the longest beginning of a module's name."""
    fitting = [
        (len(p), floor) for floor, (modules, _) in FLOORS.items() for p in modules if f"{name}.".startswith(p + ".")
    ]
    return max(fitting)[1]


def seen_from(floor: str) -> set[str]:
    """The floor itself and all below it."""
    return {floor}.union(*(seen_from(below) for below in FLOORS[floor].below))


SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
IMPORTS = [i for path in SOURCES for i in imports_of(path)]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30
    assert len(IMPORTS) > 100


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_look_down_only(floor: str) -> None:
    assert any(floor_of(module_name(path)) == floor for path in SOURCES)
    seen = seen_from(floor)
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if floor_of(i.importer) == floor and floor_of(i.imported) not in seen
    ]
    assert not bad, "\n".join(bad)


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {module_name(path) for path in SOURCES}
    imports: dict[str, set[str]] = {name: set() for name in names}
    for i in IMPORTS:
        target = i.imported if i.imported in names else i.imported.rpartition(".")[0]
        if target in names - {i.importer} and not i.for_types and not i.importer.startswith(f"{target}."):
            imports[i.importer].add(target)
    list(TopologicalSorter(imports).static_order())  # raises CycleError with the circle


# What backends may import of lowprec: values, the compiled module, each other, and helpers that know no arrays.
BELOW_BACKENDS = (
    "processor",
    "values",
    "backends",
    "_kernels",
    "threads",
    "types",
    "integers",
    "_caching",
    "lazy",
    "_pieces",
    "extras",
)


def test_backends_import_values_and_never_the_front() -> None:
    allowed = tuple(f"lowprec.{name}." for name in BELOW_BACKENDS)
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if i.importer.startswith("lowprec.backends.") and not f"{i.imported}.".startswith(allowed)
    ]
    assert not bad, "\n".join(bad)


def test_values_import_values() -> None:
    allowed = ("lowprec.values.", "lowprec._caching.", "lowprec.types.", "lowprec.integers.", "lowprec.processor.")
    bad = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if i.importer.startswith("lowprec.values") and not f"{i.imported}.".startswith(allowed)
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


def test_only_packages_list_what_is_theirs() -> None:
    """`__all__` stands in packages, whose names others import from them; a module's names are the module's."""
    bad = [str(path) for path in SOURCES if "__all__ =" in path.read_text() and path.name != "__init__.py"]
    assert not bad, "\n".join(bad)


def test_only_backends_call_the_kernels() -> None:
    """Beside them: the number of threads, the processor's state, the choice of an object and the process's end."""
    known = {"lowprec.threads", "lowprec.processor", "lowprec.testing.isa", "lowprec._exit"}
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
    bad = [str(path.relative_to(ROOT)) for path in SOURCES if not re.match(r'(#.*\n)*"""', path.read_text())]
    assert not bad, "\n".join(bad)


def test_the_kernels_include_nothing_of_the_standard_library() -> None:
    for header in (ROOT / "kernels" / "include" / "lowprec").glob("*.h"):
        included = [line for line in header.read_text().splitlines() if line.startswith("#include")]
        assert all(line.startswith('#include "') for line in included), header
