"""Fixtures of the whole suite: `backend` runs a test once on every backend."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lowprec import backends
from lowprec.backends.cuda import device
from tests.cuda_shim import cupy_double
from tests.cuda_shim.tree import tree_source
from tests.examples import only_first

# Half a million objects of ten thousand tests, and every graph that a test makes, the collector would go through again
# and again: a fifth of the time that the suite takes.
gc.disable()
atexit.register(gc.unfreeze)  # nanobind wants its functions freed at the end

SLOW_SECONDS = 4 * 3600  # within which a slow test ends on a slow machine


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests are left out, so are the later examples of the others (see `tests.examples`)."""
    only_first(config.option.markexpr.startswith("not slow"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have a limit of their own; the others that of pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With LOWPREC_REQUIRE_GPU=1 a test of a GPU that is skipped has failed: on a machine that should have one."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.skipped and item.get_closest_marker("cuda") and os.environ.get("LOWPREC_REQUIRE_GPU") == "1":
        report.outcome = "failed"
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"LOWPREC_REQUIRE_GPU=1, and this was skipped: {why}"


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Cycles are freed behind the tests of a module; what lives on then is not looked at again."""
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Shells start background jobs with Ctrl-C ignored, and programs that the tests interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing(name: str) -> str | None:
    """Why a backend cannot run here; None if it can."""
    try:
        with backends.backend(name):
            return None
    except (ImportError, RuntimeError) as error:
        return str(error)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where compiled kernels are kept during the run, by all the processes of one that has several."""
    own = tmp_path_factory.getbasetemp()
    return str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernel_cache")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, kernel_cache: str) -> Iterator[ModuleType]:
    """CuPy's part played on the CPU: lowprec.backends.cuda runs, its kernels compiled from this checkout by g++."""
    cached = (device.kernel, device.most_blocks)
    for function in cached:
        function.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", cupy_double)
    monkeypatch.setattr(device, "source", tree_source)
    monkeypatch.setenv("CUPY_CACHE_DIR", kernel_cache)
    cupy_double.calls.clear()
    yield cupy_double
    for function in cached:
        function.cache_clear()


@pytest.fixture(params=["double", pytest.param("device", marks=pytest.mark.cuda)])
def device_arrays(request: pytest.FixtureRequest) -> ModuleType:
    """CuPy's double, and CuPy itself where there is a GPU: the same tests of both."""
    if request.param == "double":
        return request.getfixturevalue("cupy")  # type: ignore[no-any-return]
    if (reason := _missing("cuda")) is not None:
        pytest.skip(reason)
    cupy = device.cupy()

    def asarray(x: Any) -> Any:
        try:
            return cupy.asarray(x)
        except ValueError:  # CuPy 14.2 copies bfloat16 of ml_dtypes' dtypes, and few others; it holds them all
            return device.upload(np.asarray(x))

    return cast(ModuleType, SimpleNamespace(**{**vars(cupy), "asarray": asarray}))


@pytest.fixture(params=["reference", "cpu", "cuda-source", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend that is in force during the test; "cuda-source" is the GPU's code run on the CPU."""
    name = request.param
    if name == "cuda-source":
        request.getfixturevalue("cupy")
        name = "cuda"
    reason = _missing(name)
    if reason is not None:
        pytest.skip(reason)
    with backends.backend(name):
        yield request.param
