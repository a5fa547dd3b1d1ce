"""The job over versions reads what is declared and what there is, and PyTorch is installed without CUDA's libraries."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import cuda_stand_ins
from tests.versions import minors, of_any_machine, oldest


def test_the_last_minor_versions() -> None:
    listed = " 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, 2.9.1, 1.13.1"
    assert minors(listed) == ["2.13", "2.14", "2.15"]
    assert minors(listed, 5) == ["1.13", "2.9", "2.13", "2.14", "2.15"]


def test_the_oldest_pytorch_is_a_whole_version() -> None:
    (wanted,) = [requirement for requirement in oldest("torch") if requirement.startswith("torch")]
    assert wanted.count(".") == 2


def test_what_every_machine_needs_is_installed() -> None:
    listed = [
        "filelock", "sympy>=1.13.3", 'setuptools ; python_version >= "3.12"', 'triton~=3.9; platform_system == "Linux"',
        "optree>=0.13.0; extra == 'optree'", 'cuda-toolkit[cublas]==13.2.2; platform_system == "Linux"',
    ]  # fmt: skip
    assert of_any_machine(listed) == ["filelock", "sympy>=1.13.3", "setuptools"]


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("readelf")), reason="needs gcc and binutils")
def test_a_library_is_loaded_without_those_of_cuda(tmp_path: Path) -> None:
    """One that takes a function with a version of symbols from one library, and one without from another."""
    functions = {
        "libcudart.so.13": {"libcudart.so.13": {"cudaMalloc"}},
        "libcusparseLt.so.0": {"": {"cusparseLtInit"}},
    }
    for name, symbols in functions.items():
        cuda_stand_ins.write(tmp_path / name, symbols)
    user = tmp_path / "libuser.so"
    source = "int cudaMalloc(void), cusparseLtInit(void); int call(void) { return cudaMalloc() + cusparseLtInit(); }"
    how = ["-shared", "-fPIC", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN", "-x", "c", "-", "-x", "none"]
    command = ["gcc", *how, *(str(tmp_path / name) for name in functions), "-o", str(user)]
    subprocess.run(command, input=source, text=True, check=True)
    for name in functions:
        (tmp_path / name).unlink()
    with pytest.raises(OSError, match="cannot open shared object file"):
        ctypes.CDLL(str(user))
    assert cuda_stand_ins.stand_in(tmp_path) == sorted(functions)
    assert ctypes.CDLL(str(user)).call() == 2 * cuda_stand_ins.NO_DEVICE
