"""Tests on aarch64, emulated: `make test-aarch64` cross-compiles a wheel and runs a part of the suite on it.

Arguments go to pytest; without any, `PARTS` run. Nothing is installed on this machine and no root is needed: Debian's
Python for arm64, unpacked, lies in build/aarch64/root, and build/aarch64/env is a virtual environment whose Python is
that one under qemu. In it pip installs NumPy and the tests' tools for aarch64, and builds lowprec's wheel, with a
compiler that runs natively. The two are kept for the next time; after a change only lowprec's wheel is made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "aarch64"
SYSTEM = FOLDER / "root"
ENVIRONMENT = FOLDER / "env"
PYTHON = ENVIRONMENT / "bin" / "python"
SITE = FOLDER / "site"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

TOOLS = {
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "cmake": "cmake",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
"""What must be here, and the Debian package that brings it."""

DEBIAN = ("python3", "libpython3-dev", "libstdc++6")
"""What is unpacked of arm64, with all that it depends on."""

TESTERS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "gfloat", "scipy", "gmpy2", "softfloatpy")
"""Of what pyproject.toml declares for tests, what `PARTS` need."""

PARTS = (
    *(f"tests/lowprec/test_{name}.py" for name in (
        "golden", "golden_blocks", "golden_summation", "golden_sums", "determinism", "exhaustive", "rounding", "random",
        "random_halves", "functions", "quick_functions", "half_and_bfloat16", "machine_conversions", "native_order",
        "processor_state",
    )),
    "tests/ipu_core/train/test_golden_run.py",
)  # fmt: skip
"""What pins bits, and what compares the compiled loops with the reference over whole formats: minutes."""

QUICK = ("-q", "-m", "not slow", "-n", "auto", "--dist", "worksteal", *PARTS)

APT = """
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Debug::NoLocking "true";
"""
"""apt's own lists and archives, beside those of this machine, from the sources that it is told of."""

TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT "-idirafter {system}/usr/include")
"""
"""The last line is for Debian's pyconfig.h, which includes another by its path there."""

EMULATED = """#!/bin/sh
exec qemu-aarch64 -L "{system}" -0 "$0" "{system}/usr/bin/python3" "$@"
"""
"""A Python that takes this file for its executable: what it starts by that name is emulated too."""

COMPILER = """#!/bin/sh
exec aarch64-linux-gnu-g++ "$@"
"""
"""What tests that compile something find under the name of g++."""


def missing() -> list[str]:
    """The Debian packages that are to be installed first."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def requirements() -> list[str]:
    """What pyproject.toml declares for building and using lowprec, and the testers among what it declares for tests."""
    project = PYPROJECT["project"]
    tests = [each for each in project["optional-dependencies"]["test"] if each.partition(">=")[0] in TESTERS]
    return [*PYPROJECT["build-system"]["requires"], *project["dependencies"], *tests]


def run(*command: str | Path, **variables: str) -> None:
    """Runs a command to its end, with some variables of the environment.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


def pip(*arguments: str | Path) -> None:
    """This environment's pip, run by the emulated Python."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", PYTHON, *arguments)


def unpack_system() -> None:
    """Python for arm64 and what it needs, from Debian, in `SYSTEM`."""
    apt = FOLDER / "apt"
    for needed in ("state/lists/partial", "cache/archives/partial"):
        (apt / needed).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(APT.format(folder=apt))
    configured = {"APT_CONFIG": str(apt / "apt.conf")}
    run("apt-get", "-qq", "update", **configured)
    run("apt-get", "-qq", "--yes", "--download-only", "install", *DEBIAN, **configured)
    for archive in (apt / "cache" / "archives").glob("*.deb"):
        run("dpkg-deb", "--extract", archive, SYSTEM)
    if not (SYSTEM / "lib").exists():  # as base-files, which nothing depends on, has it since Debian 13
        (SYSTEM / "lib").symlink_to("usr/lib")
    shutil.rmtree(apt)


def make_environment() -> None:
    """A virtual environment of the emulated Python, with NumPy and the tests' tools."""
    PYTHON.parent.mkdir(parents=True)
    for path, text in ((PYTHON, EMULATED.format(system=SYSTEM)), (PYTHON.with_name("g++"), COMPILER)):
        path.write_text(text)
        path.chmod(0o755)
    (ENVIRONMENT / "pyvenv.cfg").write_text(f"home = {SYSTEM / 'usr' / 'bin'}\n")
    pip("install", "--quiet", "--only-binary=:all:", "--no-compile", *requirements())  # bytecode of what is imported


def make() -> None:
    """The system and the environment, if they were not made of the same before."""
    made, wanted = FOLDER / "made", "\n".join((*DEBIAN, *requirements(), EMULATED, COMPILER))
    if made.exists() and made.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    unpack_system()
    make_environment()
    made.write_text(wanted)


def install_lowprec() -> None:
    """lowprec's wheel for aarch64, compiled on this machine, in `FOLDER`/wheels and installed in `SITE`."""
    toolchain, wheels = FOLDER / "toolchain.cmake", FOLDER / "wheels"
    toolchain.write_text(TOOLCHAIN.format(system=SYSTEM))
    shutil.rmtree(wheels, ignore_errors=True)
    options = (f"build-dir={FOLDER / 'cmake'}", f"cmake.define.CMAKE_TOOLCHAIN_FILE={toolchain}")
    settings = [f"--config-settings={option}" for option in options]
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, *settings, ROOT)
    (wheel,) = wheels.glob("lowprec-*_aarch64.whl")
    shutil.rmtree(SITE, ignore_errors=True)
    pip("install", "--quiet", "--no-deps", "--target", SITE, wheel)


def main(arguments: list[str]) -> int:
    """Makes what is not there, builds, and runs pytest; its exit status."""
    if packages := missing():
        print(f"some programs are not installed (Debian: apt-get install {' '.join(packages)})")
        return 1
    make()
    install_lowprec()
    emulated = {
        "PATH": os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]]),
        # A safe path and append: the checkout's own folders, which have no such module, come last.
        "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)]),
        "PYTHONSAFEPATH": "1",
    }
    run("sh", "-ec", PYPROJECT["tool"]["cibuildwheel"]["test-command"], **emulated)  # as on every wheel of a release
    command = [PYTHON, "-m", "pytest", "--import-mode=append", *(arguments or QUICK)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **emulated}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
