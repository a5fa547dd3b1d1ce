"""Studies on a cluster: Dask's real scheduler and workers, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.study import command, point
from ipu_core.study.compare import compare
from ipu_core.study.executors import connected
from ipu_core.study.models import catalogue as models
from ipu_core.study.run import Event, run_on
from ipu_core.study.settings import Settings
from ipu_core.train.optim import Sgd
from tests.ipu_core.test_kills import points

SMALL = ["--layers", "64-48-10", "--lr", "0.01", "--engine", "direct", "--steps", "300", "--seeds", "3"]
SMALL += ["--precisions", "fp32.32", "fp16.16/stochastic"]


def start(part: str, *more: str) -> subprocess.Popen[bytes]:
    """The scheduler or a worker, a process of its own."""
    line = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--no-dashboard", *more]
    return subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def environment() -> dict[str, str]:
    """In which a process that is started elsewhere finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path)}


class Cluster:
    """A scheduler on this machine and two workers."""

    def __init__(self, folder: Path) -> None:
        file = folder / "scheduler.json"
        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        self.processes = [scheduler]
        wait_for(lambda: file.exists() and file.read_text().endswith("\n}"))  # it is written in place
        self.tcp = json.loads(file.read_text())["address"]
        self.address = self.tcp.replace("tcp://", "dask://")
        more = (self.tcp, "--no-nanny", "--nthreads", "1", "--local-directory", str(folder))
        self.workers = [start("worker", *more) for _ in range(2)]
        self.processes += self.workers
        with connected(self.address) as executor:
            assert executor is not None
            executor._client.wait_for_workers(2, timeout=300)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path_factory.mktemp("dask"))
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ones_own_function_goes_to_dask_and_tells_how_far_it_is(cluster: Cluster) -> None:
    """A closure too; workers of this machine tell their progress while they run."""
    factor = 0.5

    def loss(params: Any, batch: Any) -> Any:
        return np.mean((batch @ params["w"] - factor) ** 2)

    batches = list(np.random.default_rng(0).normal(size=(5, 8, 3)).astype(np.float32))
    more: dict[str, Any] = {"optimizer": Sgd(0.1), "steps": 12, "seeds": 2, "engine": "direct"}
    given = loss, {"w": np.zeros((3, 1), np.float32)}, batches, ["fp32.32", "fp16.16/stochastic"]

    def slow(item: int, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for step in range(3):
            report({"step": step, "loss": 1.0})
        return {"item": item}

    events: list[Event] = []
    with connected(cluster.address) as executor:
        assert executor is not None
        made = compare(*given, **more, executor=executor)
        run_on(executor, slow, [7, 8], events.append)
    assert not made.failures
    here = compare(*given, **more)

    def kept(results: list[dict[str, Any]]) -> Any:
        return {(r["precision"], r["seed"]): {k: r[k] for k in r if k != "seconds"} for r in results}

    assert kept(made.results) == kept(here.results)
    assert [e.payload["step"] for e in events if e.kind == "progress" and e.item == 7] == [0, 1, 2]
    assert sorted(e.item for e in events if e.kind == "done") == [7, 8]


def test_a_study_on_dask_that_loses_a_worker_has_the_bits_of_a_serial_one(cluster: Cluster, tmp_path: Path) -> None:
    """The command line, its folder relative to where it runs; one of two workers is killed while it has a point.

    The worker is stopped first: without its point the study cannot end, however slow this process is.
    """
    serial, folder, worker = tmp_path / "serial", tmp_path / "dask", cluster.workers[0]
    used = pytest.importorskip("psutil").Process(worker.pid).cpu_times
    idle = used().user
    line = [sys.executable, "-m", "ipu_core", "study", *SMALL, "--executor", cluster.address, "--out", folder.name]
    study = subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: study.poll() is not None or used().user > idle + 0.3)  # that is: it is at work
    worker.send_signal(signal.SIGSTOP)
    results = folder / "results.jsonl"
    wait_for(lambda: study.poll() is not None or (results.exists() and b"\n" in results.read_bytes()))
    worker.kill()
    printed, errors = study.communicate(timeout=600)
    assert len(lines := results.read_text().splitlines()) == 6, lines
    assert study.returncode == 0, errors
    assert "Traceback" not in printed + errors
    assert main(["study", *SMALL, "--workers", "1", "--out", str(serial)]) == 0
    assert len(points(serial)) == 6
    assert points(folder) == points(serial)
    assert {path.name for path in folder.iterdir()} == {path.name for path in serial.iterdir()}


class Elsewhere(Executor):
    """Does everything at once, in another working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future, here = Future[Any](), Path.cwd()
        os.chdir(self.folder)
        try:
            future.set_result(fn(*args, **kwargs))
        finally:
            os.chdir(here)
        return future


def test_workers_in_another_folder_find_data_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0)
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) % 2
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    settings = Settings(data="own.npz", layers=(4, 2), steps=3, batch=4, engine="direct")
    made, folder = command.study(
        settings, ("fp32.32",), (0,), Path("out"), keep_parameters=True, executor=Elsewhere(there)
    )
    assert not made.failures
    assert [result["seed"] for result in made.results] == [0]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".jsonl", ".txt", ".png", ".npz", ".html"}
    assert "no checkpoint" not in capsys.readouterr().err
    assert not list(there.iterdir())


def test_workers_with_another_lowprec_or_other_data_refuse(tmp_path: Path) -> None:
    settings = Settings(layers=(64, 10), steps=3, engine="direct")
    digest = models.load(settings).digest()
    task = command.Task(point.Point("fp32.32", 0), tmp_path / "s.npz", digest)
    command.run_task(settings, task, lambda _: None)
    with pytest.raises(ValueError, match=f"its worker has other data than the study: {digest[:16]}, not 00"):
        command.run_task(settings, replace(task, data="00"), lambda _: None)
    with pytest.raises(ValueError, match=r"its worker has other lowprec than the study: .*, not 0\.0\.1"):
        command.run_task(settings, replace(task, version="0.0.1"), lambda _: None)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["study", *SMALL, *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    return errors


def test_where_no_scheduler_is_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("ipu_core.study.executors.SECONDS", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"dask://127.0.0.1:{taken.getsockname()[1]}"
        words = refusal(capsys, "--executor", address, "--out", str(tmp_path / "out"))
    assert f"no Dask scheduler answers at {address}" in words
    assert not (tmp_path / "out").exists()


def test_what_names_no_executor_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in ("dask://", "dask://here", "dask://here:port", "tcp://here:1", "here:1", "dask://here:1/x", "mpi"):
        assert f"such as dask://localhost:8786, not {spec!r}" in refusal(capsys, "--executor", spec)
    assert "give one" in refusal(capsys, "--executor", "dask://here:1", "--workers", "2")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "distributed is needed here: " in (words := refusal(capsys, "--executor", "dask://here:1"))
    assert "[dask]" in words
