"""What a wheel contains and that it works where it is installed, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # The build requirements are in the environment that runs the tests or come from the index, as for any user.
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    options = ["--config-settings", f"build-dir={folder / 'build'}"]
    subprocess.run([*command, *options, str(ROOT)], check=True, capture_output=True, text=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"lowprec", "ipu_core"}
    assert sum(name.startswith("lowprec/_kernels.") and name.endswith(".so") for name in names) == 1
    for needed in (
        "lowprec/py.typed",
        "ipu_core/py.typed",
        "lowprec/_kernels.pyi",
        "lowprec/include/lowprec/round.h",
    ):
        assert needed in names
    assert not any("tests" in name or ("/cpu/" in name and name.endswith(".cpp")) for name in names)


@pytest.mark.slow
def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)],
        check=True,
        capture_output=True,
    )
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import lowprec; print(lowprec.__file__); "
    code += "print(lowprec.round(0.1, 'float8_e4m3fn'))"
    # -S leaves the editable install's import hook out; its dependencies are added back.
    dependencies = [p for p in sys.path if p.endswith("site-packages")]
    code = f"import sys; sys.path += {dependencies!r}; " + code
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    where, value = found.stdout.split()
    assert where.startswith(str(target))
    assert value == "0.1015625"


USERS_FILE = """
import numpy as np
import ipu_core
import lowprec

order = lowprec.Accumulation(group=16, accumulate="float16")
product: object = lowprec.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), group=8)
words: str = order.words() + lowprec.Rounding("stochastic", random_bits=8).words()
target = ipu_core.Target("gc200", tiles=4)
graph = ipu_core.Graph(target)
optimizer: ipu_core.Sgd = ipu_core.Sgd(0.1)
"""


@pytest.mark.slow
def test_a_users_file_type_checks_against_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site, user = tmp_path / "site", tmp_path / "user.py"
    zipfile.ZipFile(wheel).extractall(site)
    user.write_text(USERS_FILE)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(user)]
    found = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(site)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout
    user.write_text(USERS_FILE + "lowprec.Accumulation(adder='tree')\nbad: int = order.words()\n")
    found = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(site)}, capture_output=True, text=True
    )
    assert "Found 2 errors" in found.stdout


@pytest.mark.slow
def test_the_source_distribution_holds_the_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files", "tests"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(tracked.stdout.split()) <= names


def test_a_missing_compiled_module_is_one_sentence(tmp_path: Path) -> None:
    """The source folder alone, as it shadows a plain install from the repository's root."""
    (tmp_path / "lowprec").symlink_to(ROOT / "lowprec")
    dependencies = [p for p in sys.path if p.endswith("site-packages")]
    code = f"import sys; sys.path += {dependencies!r}; import lowprec"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: lowprec's compiled module is missing: ")
    assert "During handling" not in found.stderr
