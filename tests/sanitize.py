"""Runs the kernel tests on a module built with the address and undefined-behaviour sanitizers: `make sanitize`.

Arguments go to pytest; without any, all fast tests of lowprec run (about ten minutes on one core, after a build of some
minutes). `--part 2/4` alone runs the second of four parts. The sanitized module lives in build/sanitize and leaves the
installed one alone; g++'s sanitizer libraries are preloaded, since Python itself is not instrumented.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "sanitize"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"

# -S keeps the editable install's finder out, and the import comes before pytest puts the source folder in front.
RUN = """
import sys
sys.path[:0] = [{site!r}, {packages!r}]
import lowprec
assert lowprec._kernels.__file__.startswith({site!r}), lowprec._kernels.__file__
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def install(site: Path) -> None:
    """Builds and installs lowprec with the sanitizers into a folder of its own."""
    options = (f"cmake.define.CMAKE_CXX_FLAGS={FLAGS}", f"build-dir={FOLDER / 'cmake'}", "install.strip=false")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--upgrade", "--target", str(site), *(f"--config-settings={option}" for option in options), str(ROOT)]
    subprocess.run(command, check=True)


def library(name: str) -> str:
    """The path of one of g++'s run-time libraries."""
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def part_files(part: str) -> list[str]:
    """The test files of part "k/n" but those that run NVRTC or programs of their own, which are not instrumented.

    Raises:
        ValueError: no such part.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"a part is given as 2/4, the second of four, not as {part!r}")
    apart = ("test_cuda_compile", "test_threads", "test_instruction_sets")
    files = sorted(path for path in (ROOT / "tests" / "lowprec").rglob("test_*.py") if path.stem not in apart)
    return [str(path.relative_to(ROOT)) for path in files[int(number) - 1 :: int(count)]]


def main(arguments: list[str]) -> int:
    """Builds, then runs pytest under the sanitizers; its exit status."""
    if arguments[:1] == ["--part"] and len(arguments) == 2:
        arguments = ["-q", "-m", "not slow", "-p", "no:cacheprovider", *part_files(arguments[1])]
    elif not arguments:
        return main(["--part", "1/1"])
    site = FOLDER / "site"
    install(site)
    environment = os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps memory until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that the bounds of NumPy's small arrays are seen
        "LOWPREC_SHIM_FLAGS": FLAGS,
    }
    run = RUN.format(site=str(site), packages=sysconfig.get_paths()["purelib"])
    command = [sys.executable, "-S", "-c", run, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
