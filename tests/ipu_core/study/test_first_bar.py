"""What is imported until a study shows its bars: they are to appear within a second of `make study`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Runs a study until its bars are there, and prints what has been imported.
CODE = """
import os, sys
sys.stderr = open(os.devnull, "w")
os.environ.update(FORCE_COLOR="1", TERM="xterm")
sys.stderr.isatty = lambda: True
import ipu_core.__main__ as main
from ipu_core.study import live

def enter(view, entered=live.Terminal.__enter__):
    entered(view)
    view.__exit__(None, None, None)
    print(*sys.modules)
    raise SystemExit

live.Terminal.__enter__ = enter
main.main(["study", "--out", sys.argv[1]])
"""
HEAVY = {"IPython", "distributed", "jax", "matplotlib", "pandas", "scipy", "sklearn", "torch"}
LATE = {
    "ipu_core.compile", "ipu_core.engine", "ipu_core.frontends.emulation", "ipu_core.frontends.jax",
    "ipu_core.frontends.torch", "ipu_core.graph", "ipu_core.library", "ipu_core.nn", "ipu_core.placement.matmul",
    "ipu_core.poptorch", "ipu_core.study.command", "ipu_core.train.loop", "lowprec.testing", "numpy.ma",
}  # fmt: skip
OWN = 211  # modules; 181 of them when this was written


def test_nothing_heavy_is_imported_before_the_first_bar(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "out")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    modules = set(printed.splitlines()[-1].split())
    assert {"ipu_core.study.live", "rich.live"} <= modules
    assert not modules & LATE
    assert not {name.split(".")[0] for name in modules} & HEAVY
    assert len([name for name in modules if name.split(".")[0] in ("ipu_core", "lowprec")]) <= OWN
    assert not (tmp_path / "out").exists()


def test_the_package_loads_nothing_but_names_until_they_are_asked_for() -> None:
    code = (
        "import sys, ipu_core; before = {n for n in sys.modules if n.startswith('ipu_core')}\n"
        "import ipu_core.placement.matmul\n"
        "print(sorted(before), callable(ipu_core.plan), ipu_core.chip.target.Target is ipu_core.Target)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "['ipu_core', 'ipu_core.interruption'] True True\n"
