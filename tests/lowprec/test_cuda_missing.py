"""Without CuPy or a GPU: importing costs nothing, and asking for the cuda backend gives one sentence."""

from __future__ import annotations

import subprocess
import sys
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
    assert str(caught.value) == "CuPy is needed here: python -m pip install 'lowprec[cuda]'"
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
