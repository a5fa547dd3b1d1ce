"""`python -m lowprec.testing gpu`: a sentence without a GPU; the report on CuPy's double, whose times mean nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import pytest

from lowprec.testing import gpu, gpu_benchmark
from lowprec.testing.__main__ import main

SMALL = {"size": 256, "count": 1 << 15, "side": 64}


def test_without_a_gpu_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["gpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        said.err == "lowprec.testing: CuPy is needed here: python -m pip install -e '.[cuda]' in a clone of lowprec\n"
    )


def test_a_driver_that_is_missing_is_named(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert main(["gpu"]) == 2
    assert capsys.readouterr().err == "lowprec.testing: the cuda backend needs a GPU and CUDA finds none\n"


def test_other_products_of_cupys_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUPY_TF32", "1")
    assert main(["gpu"]) == 2
    assert "CUPY_TF32 is set" in capsys.readouterr().err


def test_the_command_is_run_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "lowprec.testing", "tpu"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "invalid choice: 'tpu'" in run.stderr


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_benchmark, "RUNS", 1)
    monkeypatch.setattr(gpu, "FAMILIES", (gpu.decoding, gpu.sums, gpu.convolutions, gpu.blocks))


@pytest.mark.usefixtures("quick")
def test_the_report(cupy: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"], **SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"lowprec [\w.+]+ on a GPU, \d{4}-\d\d-\d\d \d\d:\d\d UTC", lines[0])
    assert lines[1] == "device    a double of a GPU, compute capability 00, 1 multiprocessors"
    assert lines[2] == "driver    CUDA 13.2, runtime 13.0, NVRTC 0.0"
    assert lines[3].startswith("versions  CuPy 14.0-double, NumPy ")
    families = dict(re.fullmatch(r"(\w+) +([0-9a-f]{16}) +[0-9a-f]{16}", line).groups() for line in lines[6:10])  # type: ignore[union-attr]
    assert list(families) == ["decoding", "sums", "convolutions", "blocks"]
    assert len(set(families.values())) == 4
    assert sum("of copy" in line for line in lines) == 19
    assert sum(line.startswith("product ") for line in lines) == 7


@pytest.mark.usefixtures("quick")
def test_bits_that_differ_are_said(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "FAMILIES", (gpu.decoding,))
    monkeypatch.setattr(gpu, "upload", lambda x: cupy.asarray(x)[::-1])
    monkeypatch.setattr(gpu, "rows", lambda *_: iter(["no times"]))
    assert main(["gpu"], **SMALL) == 1
    assert capsys.readouterr().out.count("DIFFERENT") == 1


def test_every_family_has_its_own_bits_on_the_cpu() -> None:
    found = [gpu.digest(family(lambda x: x, 256)) for family in gpu.FAMILIES]
    assert found == [gpu.digest(family(lambda x: x, 256)) for family in gpu.FAMILIES]
    assert len(set(found)) == len(gpu.FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", gpu.FAMILIES, ids=lambda family: family.__name__)
def test_every_family_on_the_double(family: object, cupy: ModuleType) -> None:
    assert callable(family)
    assert gpu.digest(family(gpu.upload, 256)) == gpu.digest(family(lambda x: x, 256))
