"""Plants the faults of tests/faults.toml one at a time and sees whether their rooms catch them: `make faults`.

A fault is a text that occurs once in a file, what becomes of it, and the tests that must fail then. They run in a copy
of the tree (in build/faults), where they passed before; a fault in kernels/ builds the module there again, for this
machine's best instruction set. A fault that no test of its room sees SURVIVED, and the exit status is 1: the room needs
a test.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_suffix(".toml")
LONGEST = 900.0
"""Seconds after which the tests of one fault are ended: tests that hang have not caught it."""


@dataclass(frozen=True)
class Fault:
    """One change of one file for the worse, the tests that must see it, and in a sentence what goes wrong."""

    file: str
    before: str
    after: str
    tests: str
    why: str

    def problems(self, root: Path = ROOT) -> list[str]:
        """Why it cannot be planted in the tree at a folder; empty if it can be."""
        path = root / self.file
        if not path.is_file():
            return [f"there is no file {self.file}"]
        text = path.read_text()
        found = [] if text.count(self.before) == 1 else [f"`before` occurs {text.count(self.before)} times, not once"]
        if self.after == self.before:
            found.append("`after` is `before`")
        if path.suffix == ".py":
            try:
                ast.parse(text.replace(self.before, self.after))
            except SyntaxError as error:
                found.append(f"it is not Python: {error}")
        found += [f"there is no test {name}" for name in self.tests.split() if not _exists(root, name)]
        return found if self.tests.split() else [*found, "it names no tests"]

    @property
    def in_module(self) -> bool:
        """Whether the compiled module has to be built again."""
        return self.file.startswith("kernels/") and Path(self.file).suffix not in (".cu", ".cuh")


class Outcome(NamedTuple):
    """What became of a fault, and more words on it: "caught", "SURVIVED", "could not be planted", or "skipped" here."""

    verdict: str
    words: str = ""


def faults(path: Path = LIST) -> list[Fault]:
    """The faults of a file.

    Raises:
        TypeError: a table lacks a key or has another than `Fault` has.
    """
    return [Fault(**table) for table in tomllib.loads(path.read_text())["fault"]]


def _exists(root: Path, name: str) -> bool:
    """Whether a folder, a file or a test in it is there; of a test in a class or with parameters only its function."""
    path, *inner = name.split("::")
    function = inner[-1].partition("[")[0] if inner else ""
    return (root / path).exists() and (not inner or f"def {function}(" in (root / path).read_text())


class Tree:
    """A copy of the tree, with an environment of its own whose packages are this one's."""

    def __init__(self, folder: Path) -> None:
        """Makes the copy, or brings one that is there up to date: what is the same stays, and what was built of it."""
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        there = {name for name in names if name and (ROOT / name).is_file()}
        for path in [path for top in ("lowprec", "ipu_core", "kernels", "tests") for path in (folder / top).rglob("*")]:
            if path.is_file() and str(path.relative_to(folder)) not in there and path.suffix != ".pyc":
                path.unlink()
        for name in there:
            _write(folder / name, (ROOT / name).read_bytes())
        self.module = Path(util.find_spec("lowprec._kernels").origin)  # type: ignore[union-attr, arg-type]
        shutil.copy(self.module, folder / "lowprec")
        if (self.module.parent / "include").is_dir():
            shutil.copytree(self.module.parent / "include", folder / "lowprec" / "include", dirs_exist_ok=True)
        # The finder of an editable install would come before any path: an environment without it has packages alone.
        venv.create(folder / ".venv", symlinks=True)
        packages = [path for path in sys.path if path.endswith("-packages")]
        (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
        (site / "tree.pth").write_text("\n".join([str(folder), *packages, str(folder / "tools")]) + "\n")
        self.python = str(folder / ".venv" / "bin" / "python")
        # Bytecode knows its text by size and second, which a fault may leave as they are; here it does by a digest.
        for package in ("lowprec", "ipu_core"):
            checked = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(folder / package, quiet=1, invalidation_mode=checked)
        self.environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}

    def build(self) -> str:
        """Builds the compiled module of the copy; what the compiler says where it cannot, otherwise nothing."""
        tools = [name for name in ("cmake", "ninja") if shutil.which(name) is None]
        tools += ["nanobind"] if util.find_spec("nanobind") is None else []
        if tools and not (self.folder / "tools").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(self.folder / "tools"), *tools]
            subprocess.run(pip, check=True)
        path = os.pathsep.join([os.environ["PATH"], str(self.folder / "tools" / "bin")])
        environment = {**self.environment, "PATH": path}
        build = self.folder / "build" / "kernels"
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DLOWPREC_ISAS=best", f"-DPython_EXECUTABLE={self.python}"]
        if cached := shutil.which("ccache"):
            options.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={cached}")
        if not (build / "build.ninja").exists():
            configure = ["cmake", "-S", "kernels", "-B", str(build), "-G", "Ninja", *options]
            subprocess.run(configure, cwd=self.folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        command = ["cmake", "--build", str(build)]
        built = subprocess.run(command, cwd=self.folder, env=environment, check=False, capture_output=True, text=True)
        if built.returncode:
            return built.stdout[-2000:]
        shutil.copy(build / self.module.name, self.folder / "lowprec" / "new.so")
        os.replace(self.folder / "lowprec" / "new.so", self.folder / "lowprec" / self.module.name)
        return ""

    def test(self, names: Iterable[str], *options: str) -> tuple[int | None, str]:
        """Runs tests as `make test` chooses them; pytest's exit status, None if they hang, and what it printed last."""
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options, *names]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        status: int | None = None
        printed = ""
        with suppress(subprocess.TimeoutExpired):
            printed, _ = process.communicate(timeout=LONGEST)
            status = process.returncode
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started
        return status, printed

    def plant(self, fault: Fault) -> Outcome:
        """Plants one fault, runs its tests and takes it back."""
        problems = fault.problems(self.folder)
        if problems:
            return Outcome("could not be planted", "; ".join(problems))
        path = self.folder / fault.file
        sound = path.read_bytes()
        try:
            path.write_bytes(sound.replace(fault.before.encode(), fault.after.encode()))
            said = self.build() if fault.in_module else ""
            if said:
                return Outcome("could not be planted", f"it does not compile: {said}")
            return _judged(*self.test(fault.tests.split(), "-x"))
        finally:
            path.write_bytes(sound)
            if fault.in_module:
                self.build()


def _judged(status: int | None, printed: str) -> Outcome:
    """What the tests say of a fault: a test that failed has caught it; one that was not reached has not."""
    if status == 1:
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, flags=re.MULTILINE)
        return Outcome("caught", f"by {failed[-1]}" if failed else "")
    last = printed.rstrip().rpartition("\n")[2]
    if status in (0, 5) and " skipped" in last and " passed" not in last:
        return Outcome("skipped")
    if status is None:
        return Outcome("SURVIVED", f"the tests hang, {LONGEST:.0f} s long")
    if status == 0:
        return Outcome("SURVIVED")
    if status < 0:
        return Outcome("caught", f"by the end of the process, signal {-status}")
    return Outcome("could not be planted", f"pytest ended with status {status}: {printed[-2000:]}")


def _write(path: Path, content: bytes) -> None:
    """Leaves a file alone whose content is this: what was built of it stays new."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def chosen(all_of_them: Sequence[Fault], match: str = "", part: str = "1/1") -> list[Fault]:
    """The faults with a text in their file or their sentence, and of those every n-th from the k-th on, for part "k/n".

    Raises:
        ValueError: no such part.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"a part is given as 2/4, the second of four, not as {part!r}")
    matching = [fault for fault in all_of_them if match in fault.file or match in fault.why]
    return matching[int(number) - 1 :: int(count)]


def run(planted: Sequence[Fault], tree: Tree) -> list[Outcome]:
    """Plants them one after the other, but for those whose tests fail without them, and prints what becomes of each."""
    if any(fault.in_module for fault in planted) and (said := tree.build()):
        print(said)
        return [Outcome("could not be planted", "kernels/ does not compile")] * len(planted)
    rooms = {fault.tests for fault in planted if not fault.problems()}
    failing: set[str] = set()
    if rooms and tree.test(sorted({name for room in rooms for name in room.split()}))[0] not in (0, 5):
        failing = {room for room in rooms if tree.test(room.split())[0] not in (0, 5)}
    outcomes = []
    for fault in planted:
        begun = time.monotonic()
        alone = Outcome("could not be planted", "its tests fail, or are not found, without it")
        outcomes.append(alone if fault.tests in failing else tree.plant(fault))
        verdict, words = outcomes[-1]
        seconds = time.monotonic() - begun
        print(f"{verdict}: {fault.file}: {fault.why} [{words or fault.tests}, {seconds:.1f} s]", flush=True)
    return outcomes


def main(arguments: Sequence[str]) -> int:
    """Runs and prints; 1 where a fault survived or could not be planted."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="those with TEXT in their file or their sentence")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts")
    parser.add_argument("--list", action="store_true", help="print them and plant none")
    options = parser.parse_args(arguments)
    try:
        planted = chosen(faults(), options.match, options.part)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for fault in planted:
            print(f"{fault.file}: {fault.why} [{fault.tests}]", *fault.problems(), sep="\n    ")
        return 0
    tree = Tree(ROOT / "build" / "faults" / options.part.replace("/", "-"))
    outcomes = run(planted, tree)
    counts = {verdict: [outcome.verdict for outcome in outcomes].count(verdict) for verdict, _ in outcomes}
    print(f"{len(planted)} faults:", ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(not counts.keys() <= {"caught", "skipped"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
