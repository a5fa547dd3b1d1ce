"""Without CuPy or a GPU: importing costs nothing, and asking for the cuda backend gives one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import lowprec as lp
from lowprec import backends


def test_importing_lowprec_does_not_import_cupy() -> None:
    code = "import sys, numpy, lowprec; lowprec.round(numpy.ones(3), 'float16'); print('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_without_cupy_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # what makes an import fail
    with pytest.raises(ImportError) as caught, backends.backend("cuda"):
        pass
    assert str(caught.value) == "CuPy is needed here: python -m pip install -e '.[cuda]' in a clone of lowprec"
    assert lp.round(np.float32([0.1]), "bfloat16").dtype == np.float32


def test_without_a_gpu_one_sentence_gives_cudas_reason(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise cupy.CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", refuse)
    with pytest.raises(RuntimeError) as caught, backends.backend("cuda"):
        pass
    reason = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    assert str(caught.value) == f"the cuda backend needs a GPU and CUDA finds none ({reason})"
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(RuntimeError, match="needs a GPU and CUDA finds none"), backends.backend("cuda"):
        pass


def test_unknown_backends_are_refused_with_the_known_ones() -> None:
    with (
        pytest.raises(ValueError, match=r"unknown backend 'gpu'; known are reference, cpu, cuda"),
        backends.backend("gpu"),
    ):
        pass


FIRST_CALL = """
import sys
import numpy as np
import lowprec as lp
from tests.cuda_shim import cupy_double
sys.modules["cupy"] = cupy_double
assert "lowprec.backends.cuda" not in sys.modules
x = cupy_double.asarray(np.arange(8, dtype=np.uint8))
"""


@pytest.mark.parametrize("call", ["lp.decode(x, 'float8_e5m2')", "lp.encode(x, 'float16')"])
def test_the_first_call_of_a_process_loads_the_backend(call: str, tmp_path: Path) -> None:
    environment = os.environ | {"CUPY_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    code = f"{FIRST_CALL}print({call}.get())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("required", ["0", "1"])
def test_where_a_gpu_is_required_a_skip_is_a_failure(required: str) -> None:
    root = Path(__file__).parents[3]
    test = "tests/lowprec/backends/test_cuda_gpu.py::test_a_captured_graph_replays"
    environment = os.environ | {"LOWPREC_REQUIRE_GPU": required, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == int(required), run.stdout
    assert ("1 error" if required == "1" else "1 skipped") in run.stdout
    assert ("LOWPREC_REQUIRE_GPU=1, and this was skipped: " in run.stdout) == (required == "1")
