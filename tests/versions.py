"""Tests on what is declared: the oldest dependencies that pyproject.toml allows, the newest Python, several PyTorches.

`make test-versions` runs the first two; `python -m tests.versions oldest` or `newest` one of them. `make
test-torch-versions` runs the tests of captured models on the oldest PyTorch that is declared and on the last three
minor versions, `python -m tests.versions torch 2.13` on those that are named; without CUDA's libraries
(`cuda_stand_ins`) each takes 2 gigabytes instead of 6. Each has a virtual environment of its own beside .venv, kept for
the next time. What CI runs here is what the project may declare.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = (
    "pytest>=8",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "ipython",
    "hypothesis>=6.100",
    "gfloat>=0.5",
    "gmpy2>=2.1",
    "softfloatpy>=1.2",
)
PARTS = (
    "tests/lowprec/values", "tests/lowprec/test_rounding.py", "tests/lowprec/test_golden.py",
    "tests/ipu_core/graph", "tests/ipu_core/train", "tests/ipu_core/study", "tests/test_floors.py",
    *(f"--ignore=tests/ipu_core/{name}.py" for name in (
        "study/test_unit_scaled", "study/test_profiles", "study/test_recompute_curve", "train/test_checkpointed",
        "train/test_fullest", "train/test_order", "train/test_overlap", "train/test_stages")),
)  # fmt: skip
"""Rooms that between them import everything and use the most of NumPy.

Without trainings of what others train too, and without what is only placed and scheduled otherwise: integers and lists.
"""

QUIETLY = ("-m", "pytest", "--import-mode=append", "-W", "default::DeprecationWarning")
"""Old releases may use what newer ones of their own dependencies call deprecated."""


def declared(extra: str = "study") -> list[str]:
    """The requirements with an extra, as pyproject.toml declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def oldest(extra: str = "study") -> list[str]:
    """The same, each pinned to the least version it allows."""
    pinned = []
    for requirement in declared(extra):
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
        if found is None:
            raise ValueError(f"{requirement!r} in pyproject.toml declares no least version")
        name, version = found.groups()
        pinned.append(f"{name}=={version}" + ".0" * (2 - version.count(".")))
    return pinned


def newest_python() -> str:
    """The newest CPython that this machine has, on the path or among pyenv's."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += [str(path) for path in pyenv.glob("3.*/bin")]
    found: dict[int, str] = {}
    for folder in folders:
        for path in Path(folder).glob("python3.*"):
            minor = path.name.removeprefix("python3.")
            if minor.isdecimal() and _works(path, int(minor)):
                found.setdefault(int(minor), str(path))
    return found[max(found)]


def _works(python: Path, minor: int) -> bool:
    """Whether it starts and is the version that its name says (version managers leave stand-ins that do not)."""
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def environment(name: str, python: str, requirements: list[str]) -> str:
    """The Python of the virtual environment .venv-NAME, with these requirements."""
    folder = ROOT / f".venv-{name}"
    if not folder.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = str(folder / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], check=True)
    return own


def copied(name: str) -> dict[str, str]:
    """The variables of an environment that takes the packages, and this environment's compiled module, from a copy."""
    from lowprec import _kernels

    copy = ROOT / "build" / name
    shutil.rmtree(copy, ignore_errors=True)
    for package in ("lowprec", "ipu_core"):
        shutil.copytree(ROOT / package, copy / package)
    compiled = Path(_kernels.__file__)
    shutil.copy(compiled, copy / "lowprec")
    shutil.copytree(compiled.parent / "include", copy / "lowprec" / "include", dirs_exist_ok=True)
    for metadata in compiled.parents[1].glob("lowprec-*.dist-info"):  # which lowprec.__version__ is read from
        shutil.copytree(metadata, copy / metadata.name)
    # A safe path and append: the checkout's own folders, which have no compiled module, come last.
    path = {"PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)]), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **path}


def run_oldest() -> int:
    """The suite's parts on the oldest dependencies, with the compiled module of this environment."""
    python = environment("oldest", sys.executable, [*oldest(), *TOOLS])
    return _pytest([python, *QUIETLY], copied("oldest"), PARTS)


def minors(listed: str, count: int = 3) -> list[str]:
    """The last minor versions among those that `pip index versions` lists: "2.13", "2.14", ..."""
    found = {(int(major), int(minor)) for major, minor in re.findall(r"\b(\d+)\.(\d+)\.\d+\b", listed)}
    return [f"{major}.{minor}" for major, minor in sorted(found)[-count:]]


def run_torch(wanted: Sequence[str] = ()) -> int:
    """The tests of captured models, those of packages excepted, on several versions of PyTorch."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    versions = list(wanted)
    if not versions:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (pinned,) = [name.partition("==")[2] for name in oldest("torch") if name.startswith("torch==")]
        versions = [pinned, *minors(listed.partition("Available versions:")[2].partition("\n")[0])]
    parts = sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "ipu_core" / "frontends").glob("test_torch_*.py")
    )
    codes = []
    for version in versions:
        print(f"== PyTorch {version}", flush=True)
        try:
            python = with_torch(version)
        except subprocess.CalledProcessError as error:
            print(f"PyTorch {version} was not installed: {error}", flush=True)
            codes.append(1)
            continue
        codes.append(_pytest([python, *QUIETLY], copied(f"torch-{version}"), parts))
    return max(codes)


def with_torch(version: str) -> str:
    """The Python of an environment with a PyTorch, "2.13" or "2.6.0", and what it needs without a GPU.

    Raises:
        subprocess.CalledProcessError: there is no such version, or it cannot be installed or imported.
    """
    pinned = f"torch=={version}" if version.count(".") == 2 else f"torch=={version}.*"
    python = environment(f"torch-{version}", sys.executable, ["--no-deps", pinned])
    print(
        subprocess.run([python, "tests/cuda_stand_ins.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )
    code = "import importlib.metadata; print(*importlib.metadata.requires('torch'), sep='\\n')"
    needs = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return environment(
        f"torch-{version}", python, [*declared(), *declared("safetensors"), *TOOLS, *of_any_machine(needs)]
    )


def of_any_machine(requirements: Sequence[str]) -> list[str]:
    """Those requirements that hold everywhere: no extra's, and none of one system (CUDA's libraries, triton)."""
    return [each.partition(";")[0].strip() for each in requirements if not re.search("extra ?==|platform_", each)]


def run_newest() -> int:
    """The suite's parts on the newest Python, installed as a user would."""
    python = newest_python()
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if sys.version.startswith(version):
        print(f"Python {version} is the newest there is, and the suite runs on it already")
        return 0
    # Loops know nothing of Python: the instruction sets that this machine does not choose are tested beside.
    install = ["--editable", f"{ROOT}[study]", "--config-settings=cmake.define.LOWPREC_ISAS=best", *TOOLS]
    return _pytest([environment(version, python, install), "-m", "pytest"], None, PARTS)


def _pytest(command: list[str], env: dict[str, str] | None, parts: Sequence[str]) -> int:
    own = subprocess.run([command[0], "-c", "import sys, numpy; print(sys.version.split()[0], numpy.__version__)"],
                         capture_output=True, text=True, check=True)  # fmt: skip
    python, numpy = own.stdout.split()
    print(f"Python {python}, NumPy {numpy}", flush=True)
    several = ("-n", "auto", "--dist", "worksteal")
    return subprocess.run(
        [*command, "-q", "-m", "not slow", *several, *parts], cwd=ROOT, env=env, check=False
    ).returncode


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["oldest", "newest"]
    if wanted[0] == "torch":
        sys.exit(run_torch(wanted[1:]))
    jobs = {"oldest": run_oldest, "newest": run_newest}
    sys.exit(max(jobs[name]() for name in wanted))
