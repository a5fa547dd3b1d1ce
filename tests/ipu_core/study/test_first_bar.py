"""What is imported until a study shows its first bar: it is to appear within a second of `make study`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Runs a study until it chooses its view, and prints what has been imported.
CODE = """
import sys
import ipu_core.__main__ as main
from ipu_core.study import live

def choose(*given):
    print(*sys.modules)
    raise SystemExit

live.choose = choose
main.main(["study", "--out", sys.argv[1]])
"""
HEAVY = {"IPython", "distributed", "jax", "matplotlib", "pandas", "scipy", "sklearn", "torch"}
LATE = {"numpy.ma", "ipu_core.capture", "ipu_core.emulation", "ipu_core.jaxpr", "ipu_core.poptorch", "lowprec.testing"}
OWN = 340  # modules; 326 of them when this was written


def test_nothing_heavy_is_imported_before_the_first_bar(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "out")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    modules = set(printed.splitlines()[-1].split())
    assert "ipu_core.study.command" in modules
    assert not modules & LATE
    assert not {name.split(".")[0] for name in modules} & HEAVY
    assert len([name for name in modules if name.split(".")[0] in ("ipu_core", "lowprec")]) <= OWN
