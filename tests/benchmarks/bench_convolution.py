"""A 3 x 3 convolution of a 56 x 56 image, 64 channels to 64, and its gradients, against float32; depthwise ones alone.

The peer is torch where it is installed, else im2col and sgemm in NumPy. Both are timed in turn, round after round, in
one process, on 1 and 2 threads; ratios are medians over rounds. Run by `make bench`, or `make bench ARGS=convolution`.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OMP_WAIT_POLICY": "passive"}

import argparse  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import lowprec as lp  # noqa: E402
from tests.benchmarks.ratios import record  # noqa: E402

SIZE, CHANNELS, KERNEL = 56, 64, 3
FLOPS = 2 * SIZE**2 * CHANNELS**2 * KERNEL**2
LIMIT = 2.0
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16, nearest, group 16": {"accumulate": "float16"},
    "float16, stochastic, group 16": {"accumulate": "float16", "rounding": "stochastic", "key": 1},
    "float16, nearest, group 1": {"accumulate": "float16", "group": 1},
}


def operands(images: int) -> tuple[Any, Any, Any]:
    """Images, weight and output gradient, as float16."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(images, SIZE, SIZE, CHANNELS))
    w = rng.normal(size=(KERNEL, KERNEL, CHANNELS, CHANNELS))
    return x.astype(np.float16), w.astype(np.float16), rng.normal(size=x.shape).astype(np.float16)


def torch_calls(images: int, threads: int, groups: int = 1) -> dict[str, Callable[[], Any]]:
    """torch's float32 convolution and gradients, in its channels-last layout."""
    import torch

    torch.set_num_threads(threads)
    x, w, g = (np.float32(array) for array in operands(images))
    last = torch.channels_last
    tx, tg = (torch.from_numpy(array).permute(0, 3, 1, 2).contiguous(memory_format=last) for array in (x, g))
    tw = torch.from_numpy(w[:, :, : CHANNELS // groups]).permute(3, 2, 0, 1).contiguous(memory_format=last)
    gradient = torch.nn.grad
    return {
        "forward": lambda: torch.nn.functional.conv2d(tx, tw, padding=1, groups=groups),
        "input gradient": lambda: gradient.conv2d_input(tx.shape, tw, tg, padding=1, groups=groups),
        "weight gradient": lambda: gradient.conv2d_weight(tx, tw.shape, tg, padding=1, groups=groups),
    }


def numpy_calls(images: int, threads: int) -> dict[str, Callable[[], Any]]:
    """im2col and sgemm in float32 (OpenBLAS takes its threads from the environment)."""
    del threads
    x, w, _ = (np.float32(array) for array in operands(images))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    matrix = w.reshape(-1, CHANNELS)

    def forward() -> Any:
        windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), (1, 2))
        return windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, len(matrix)) @ matrix

    return {"forward": forward}


def peer(images: int, threads: int) -> tuple[str, dict[str, Callable[[], Any]]]:
    """torch if there is one."""
    try:
        return "torch", torch_calls(images, threads)
    except ImportError:
        return "numpy im2col + sgemm", numpy_calls(images, threads)


def seconds(call: Callable[[], Any], count: int) -> float:
    """Per call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def compare(images: int, threads: int, rounds: int) -> None:
    """Prints a line per pass and setting."""
    library, base = peer(images, threads)
    x, w, g = operands(images)
    for name, plain in base.items():
        calls = {"forward": (lp.conv2d, (x, w)), "input gradient": (lp.conv2d_input_gradient, (g, w, (SIZE, SIZE)))}
        calls["weight gradient"] = lp.conv2d_weight_gradient, (x, g, (KERNEL, KERNEL))
        function, args = calls[name]
        for setting, options in SETTINGS.items():
            with lp.num_threads(threads):

                def ours(function: Any = function, args: Any = args, options: Any = options) -> None:
                    function(*args, padding=1, **options)

                times = [(seconds(plain, 3), seconds(ours, 3)) for _ in range(rounds)][2:]
            theirs = statistics.median(a for a, _ in times)
            ratio = statistics.median(b / a for a, b in times)
            record(f"convolution {images} images, {threads} threads, {name}, {setting}, of {library}", ratio)
            limit = "" if setting.endswith("group 1") else f"  (limit {LIMIT:g})"
            print(
                f"  {images:2d} images, {threads} threads, {name:15s} {setting:30s} "
                f"{1e3 * ratio * theirs:7.2f} ms, {library} {1e3 * theirs:6.2f} ms "
                f"({images * FLOPS / theirs / 1e9:4.0f} GFLOP/s), ratio {ratio:5.2f}{limit}",
                flush=True,
            )


def depthwise(threads: int, rounds: int) -> None:
    """Prints a line per pass and setting of the same image with one channel in each group, beside torch if there is."""
    x, _, g = operands(1)
    w = np.random.default_rng(1).normal(size=(KERNEL, KERNEL, 1, CHANNELS)).astype(np.float16)
    try:
        peers = torch_calls(1, threads, CHANNELS)
    except ImportError:
        peers = {}
    for setting, options in SETTINGS.items():
        given = dict(padding=1, groups=CHANNELS, **options)
        passes: dict[str, Callable[[], Any]] = {
            "forward": lambda given=given: lp.conv2d(x, w, **given),
            "input gradient": lambda given=given: lp.conv2d_input_gradient(g, w, (SIZE, SIZE), **given),
            "weight gradient": lambda given=given: lp.conv2d_weight_gradient(x, g, (KERNEL, KERNEL), **given),
        }
        words = []
        for name, call in passes.items():
            beside = peers.get(name, call)
            with lp.num_threads(threads):
                times = [(seconds(beside, 3), seconds(call, 3)) for _ in range(rounds)][2:]
            words.append(f"{name} {1e3 * statistics.median(b for _, b in times):6.2f} ms")
            if peers:
                ratio = statistics.median(b / a for a, b in times)
                record(f"depthwise convolution, {threads} threads, {name}, {setting}, of torch", ratio)
                words[-1] += f" ({ratio:.2f} of torch)"
        print(f"  depthwise, {threads} threads, {setting:30s} {', '.join(words)}", flush=True)


def main() -> None:
    """Each number of threads in a process of its own."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, choices=(1, 2))
    given = parser.parse_args()
    if given.threads:
        for images in given.images:
            compare(images, given.threads, given.rounds)
        depthwise(given.threads, given.rounds)
        return
    for threads in (1, 2):
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "tests.benchmarks.bench_convolution", *sys.argv[1:], "--threads", str(threads)]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
