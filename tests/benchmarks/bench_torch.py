"""One training step of captured modules beside torch's own in float32: time, and memory at its peak. Direct engine.

Run by `make bench ARGS=torch` where torch is installed, or in the environment of `make test-torch`, by
`.venv-torch/bin/python -m tests.benchmarks.bench_torch`. One thread. Times are taken in turn in a process, in CPU time,
medians of ratios over rounds. Memory is of a process each: the peak of resident memory in a few steps, above what was
resident before the module was made, when everything was imported.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOWPREC_NUM_THREADS": "1"}

import argparse  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

from ipu_core import Sgd, TrainLoop, from_torch  # noqa: E402
from tests.benchmarks.ratios import record  # noqa: E402

PRECISIONS = ("fp32.32", "fp16.16/stochastic")
LIMIT_TIME, LIMIT_MEMORY = 2.0, 3.0
"""Of torch's: the first for the GPT, the second for all."""
LARGE = "GPT 4x128"
RATE = 0.01
Step = Callable[[], float]


def names() -> list[str]:
    """The models, this file's own first."""
    from tests.ipu_core.frontends.torch_zoo import MODELS

    return [LARGE, *MODELS]


def made(name: str) -> tuple[Any, Any, Any]:
    """A module, a batch and its loss.

    Raises:
        ImportError: its package is not installed.
    """
    import torch

    from tests.ipu_core.frontends import torch_zoo
    from tests.ipu_core.frontends.test_torch_models import Gpt

    if name != LARGE:
        module, batches, loss = torch_zoo.made(name)
        return module, batches[0], loss
    torch.manual_seed(1)
    words = torch.randint(0, 64, (8, 65))
    return Gpt(words=64, width=128, layers=4, places=64), (words[:, :-1], words[:, 1:]), None


def step_of(way: str, name: str) -> Step:
    """A call that does one step."""
    module, batch, loss = made(name)
    if way != "torch":
        model = from_torch(module, batch, loss)
        loop = TrainLoop(model, model.params, batch, optimizer=Sgd(RATE), precision=way, engine="direct",
                         model_state=model.state)  # fmt: skip
        return lambda: loop.train(batch)
    import torch

    from tests.ipu_core.frontends.torch_peer import loss_of

    optimizer = torch.optim.SGD(module.parameters(), RATE)

    def step() -> float:
        optimizer.zero_grad()
        value = loss_of(module, batch, loss)
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step


def times(name: str, rounds: int) -> None:
    """Times one model and prints a line for each way."""
    steps = {way: step_of(way, name) for way in ("torch", *PRECISIONS)}
    losses = {way: step() for way, step in steps.items()}
    counts = {way: max(1, round(0.02 / seconds(step, 1))) for way, step in steps.items()}
    taken: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(rounds):
        for way, step in steps.items():
            taken[way].append(seconds(step, counts[way]))
    memory = {way: peak(way, name) for way in steps}
    for way, mine in taken.items():
        ratio, bytes_ratio = (
            median(a / b for a, b in zip(mine, taken["torch"], strict=True)),
            memory[way] / memory["torch"],
        )
        if way != "torch":
            record(f"torch {name}, {way}, of torch", ratio)
            record(f"torch {name}, {way}, memory of torch's", bytes_ratio)
        bound = f"(limit {LIMIT_TIME:g})" if name == LARGE and way == PRECISIONS[0] else ""
        print(
            f"{name:26s} {way:20s} {1e3 * min(mine):9.3f} ms {ratio:6.2f} of torch {bound:11s} "
            f"{memory[way] / 2**20:8.1f} MiB {bytes_ratio:6.2f} of torch (limit {LIMIT_MEMORY:g}) "
            f"loss {losses[way]:.4f}",
            flush=True,
        )


def seconds(call: Step, count: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def peak(way: str, name: str) -> float:
    """Bytes at the peak of a step, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_torch", "--memory", way, name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measured(way: str, name: str) -> int:
    """Bytes of this process at the peak of a few steps, above what it held before the module was there."""
    import torch

    made(name)
    from_torch(
        torch.nn.Linear(2, 1), (torch.zeros(3, 2), torch.zeros(3, 1)), torch.nn.MSELoss()
    )  # imports all it needs
    trim()
    before = resident("VmRSS")
    step = step_of(way, name)
    step()
    trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(3):
        step()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """A figure of this process, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return 1024 * int(lines[field].split()[0])


def trim() -> None:
    """Gives back to the system what is free."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def main() -> None:
    """Prints one line per model and way."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="by default all whose packages are installed")
    parser.add_argument("--memory", nargs=2, metavar=("WAY", "NAME"), help="bytes of one way, in this process")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed here: make test-torch sets up .venv-torch, which has it and the packages")
        return
    warnings.simplefilter("ignore")
    if given.memory:
        print(measured(*given.memory))
        return
    for name in given.models or names():
        try:
            times(name, given.rounds)
        except ImportError as error:
            print(f"{name:26s} {error}")


if __name__ == "__main__":
    main()
