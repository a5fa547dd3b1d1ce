"""The fast paths that the compiled loops can do without, the files that only they need, and how long those are."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU, PYTHON = "kernels/cpu", "lowprec/backends/cpu"
FILES = {
    "top_panels": (f"{CPU}/rounding/loops_top_panels.cpp", f"{CPU}/rounding/top_panels.h"),
    "fast_panels": (f"{CPU}/rounding/loops_fast_panels.cpp", "kernels/include/lowprec/round_fast.h"),
    "machine_conversions": (f"{CPU}/rounding/loops_machine.cpp", f"{CPU}/rounding/machine.h"),
    "brackets": (
        f"{CPU}/elementwise/loops_brackets.cpp",
        f"{CPU}/elementwise/brackets.h",
        f"{CPU}/elementwise/functions_floats.h",
    ),
    "pieces": (f"{CPU}/elementwise/functions_pieces.h", f"{CPU}/elementwise/piece_tables.h"),
    "short_functions": (f"{CPU}/elementwise/functions_doubles.h",),
    "narrow_arithmetic": (f"{CPU}/elementwise/loops_exact_narrow.cpp",),
    "strips": (
        f"{CPU}/product/loops_strip.cpp",
        f"{CPU}/product/turn_codes.h",
        f"{CPU}/accumulate/turned_words.h",
    ),
    "bounded_sums": (f"{CPU}/accumulate/tile_sizes.h",),
    "dense_windows": (
        f"{CPU}/windows/loops_dense.cpp",
        f"{CPU}/windows/loops_dense_nearest.cpp",
        f"{CPU}/windows/loops_dense_other.cpp",
        f"{CPU}/windows/dense_chain.h",
        f"{CPU}/windows/dense_field.h",
        f"{PYTHON}/dense_convolution.py",
    ),
    "narrow_windows": (
        f"{CPU}/windows/loops_windows.cpp",
        f"{CPU}/windows/loops_window_kernels.cpp",
        f"{CPU}/windows/loops_window_weights.cpp",
        f"{CPU}/windows/window_chain.h",
        f"{CPU}/windows/lane_field.h",
        f"{PYTHON}/narrow_convolution.py",
    ),
    "thin_convolution": (f"{PYTHON}/thin_convolution.py",),
    "pipelines": (f"{CPU}/python/module_pipeline.cpp", f"{CPU}/python/pipeline_steps.h", "lowprec/pipeline.py"),
}
"""Whole files; a path's lines in files that others need too are not counted."""


def lines(path: str) -> int:
    """Lines of code of a fast path: not blank, no comments, no docstrings."""
    return sum(lines_of(ROOT / file) for file in FILES[path])


def lines_of(file: Path) -> int:
    """Those of one file."""
    text = file.read_text(encoding="utf-8")
    comment = "#" if file.suffix == ".py" else "//"
    prose = _docstrings(text) if file.suffix == ".py" else set()
    rows = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(row) and not row.startswith(comment) and number not in prose for number, row in rows)


def _docstrings(text: str) -> set[int]:
    """The lines of strings that stand by themselves."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return {row for string in strings for row in range(string.lineno, (string.end_lineno or string.lineno) + 1)}
