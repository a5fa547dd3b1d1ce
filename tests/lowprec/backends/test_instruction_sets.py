"""The compiled loops give the same bits on every x86-64 level and, under qemu, on aarch64.

tests/kernels/digest.cpp rounds, decodes, draws, evaluates every float32 operation and multiplies; the golden file holds
what it prints.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from lowprec import _kernels

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "kernel_digests.txt"
FLAGS = ("-std=gnu++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi")


EMULATOR = next(filter(shutil.which, ("qemu-aarch64", "qemu-aarch64-static")), "qemu-aarch64")


class Machine(NamedTuple):
    """How to build and run for an instruction set."""

    isa: str
    vector_bytes: int
    compiler: str
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()


MACHINES = [
    *(Machine(f"v{level}", size, "g++", (f"-march=x86-64-v{level}",)) for level, size in ((2, 16), (3, 32), (4, 64))),
    Machine("portable", 16, "aarch64-linux-gnu-g++", runner=(EMULATOR,)),
]


def missing(machine: Machine) -> str | None:
    """Why a machine cannot be built or run here; None if it can."""
    if machine.runner:
        for tool in (machine.compiler, *machine.runner):
            if shutil.which(tool) is None:
                return f"{tool} is not installed (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)"
        return None
    if platform.machine() not in ("x86_64", "AMD64") or machine.isa not in _kernels.isa_names():
        return f"this processor cannot run {machine.isa}"
    return None


def build(machine: Machine, folder: Path) -> Path:
    """The digest program for a machine, linked statically."""
    cpu = ROOT / "kernels" / "cpu"
    sources = [*sorted(cpu.glob("*/loops_*.cpp")), cpu / "isa" / "table.cpp", ROOT / "tests" / "kernels" / "digest.cpp"]
    definitions = (f"-DLP_ISA={machine.isa}", f"-DLP_VECTOR_BYTES={machine.vector_bytes}")
    include = (f"-I{ROOT / 'kernels' / 'include'}", f"-I{cpu}")

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        command = [machine.compiler, *FLAGS, *machine.flags, *definitions, *include, "-c", str(source), "-o", target]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / "digest"
    subprocess.run([machine.compiler, "-static", *objects, "-o", str(program)], check=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: f"{machine.isa}-{machine.compiler}")
def test_the_loops_give_the_golden_digests(machine: Machine, tmp_path: Path) -> None:
    reason = missing(machine)
    if reason is not None:
        pytest.skip(reason)
    program = build(machine, tmp_path)
    printed = subprocess.run([*machine.runner, str(program)], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == GOLDEN.read_text().splitlines()
