"""Block formats against a copy of the same bytes: the ratio is the copy's time over ours, medians taken in turn.

Quantising reads x and writes elements and scales, dequantising the reverse; the copy moves as many bytes in all, by one
thread. Both write into memory that exists (`out=`; packing makes new arrays). The last column of quantising is a plain
sequence of NumPy and ml_dtypes passes by the same rule ("floor", division, clip, astype).
"""

import argparse
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import lowprec as lp
from lowprec.scaling.blocks import BlockArray
from lowprec.testing import isa, isa_names
from lowprec.values.block_format import block_formats
from tests.benchmarks.bench_rounding import against, copying

Call = Callable[[], object]


def bytes_of(blocks: BlockArray) -> int:
    """Bytes of elements and scales."""
    return blocks.elements.nbytes + blocks.scales.nbytes


def numpy_passes(x: np.ndarray, name: str) -> object:
    """What a user writes without this library: power-of-two scales by frexp, a division, clip and astype."""
    fmt = block_formats[name]
    blocks = x.reshape(-1, fmt.block)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    if fmt.power_of_two:
        scales = np.ldexp(np.float32(1), np.frexp(amax)[1] - 1 - fmt.element.emax)
    else:
        scales = (amax / np.float32(fmt.element.max)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    limit = np.float32(fmt.element.max)
    scaled = np.clip(blocks / scales, -limit, limit)
    return np.rint(scaled * 64).astype(np.int8) if fmt.integers else scaled.astype(fmt.element.dtype)


def quantising(x: np.ndarray, rounds: int, peers: bool) -> None:
    """A line for each format, and a few for other inputs and axes."""
    print(f"  {'':36s} nearest stochastic" + ("   numpy passes" if peers else ""))
    cases = [(name, x, -1, {}) for name in block_formats]
    cases += [
        ("nvfp4", x, -1, {"tensor_scale": "auto"}),
        ("mxfp8_e4m3", x, 0, {}),
        ("mxfp8_e4m3", x.astype(np.float16), -1, {}),
        ("mxfp8_e4m3", x.astype(ml_dtypes.bfloat16), -1, {}),
        ("mxfp8_e4m3", x.astype(np.float64), -1, {}),
        ("mxfp8_e4m3", x, -1, {"rounding": "up"}),
    ]
    for name, values, axis, options in cases:
        out = lp.to_blocks(values, name, axis)
        bytes_moved = values.nbytes + bytes_of(out)
        modes = ["nearest_even", "stochastic"] if "rounding" not in options else [options["rounding"]]

        def ours(
            mode: str, v: Any = values, n: str = name, a: int = axis, o: BlockArray = out, c: Any = options
        ) -> Call:
            call = {**c, "rounding": mode, "key": 1, "out": o}
            return lambda: lp.to_blocks(v, n, a, **call)

        ratios = [against(copying(bytes_moved), ours(mode), rounds) for mode in modes]
        title = f"{name} of {values.dtype}" + (", axis 0" if axis == 0 else "")
        title += "".join(f", {key} {value}" for key, value in options.items())
        line = f"  {title:36s} " + " ".join(f"{r:8.2f}" for r in ratios)
        if peers and not options and axis == -1 and values is x:
            line += f"{against(copying(bytes_moved), lambda n=name: numpy_passes(x, n), 1):12.3f}"
        print(line)


def scaling(x: np.ndarray, rounds: int) -> None:
    """Arrays with one scale."""
    elements = np.empty(x.shape, ml_dtypes.float8_e4m3fnuz)
    for power in (1, "auto"):

        def ours(mode: str, p: Any = power) -> Call:
            options: dict[str, Any] = {"rounding": mode, "key": 1, "overflow": "ipu", "out": elements}
            return lambda: lp.to_scaled(x, "float8_e4m3fnuz", p, **options)

        ratios = [against(copying(5 * x.size), ours(mode), rounds) for mode in ("nearest_even", "stochastic")]
        print(f"  {f'to_scaled float8_e4m3fnuz, {power}':36s} " + " ".join(f"{r:8.2f}" for r in ratios))


def dequantising(x: np.ndarray, rounds: int) -> None:
    """A line for each format."""
    out = np.empty_like(x)
    for name in block_formats:
        blocks = lp.to_blocks(x, name)
        ratio = against(copying(4 * x.size + bytes_of(blocks)), lambda b=blocks: b.dequantize(out=out), rounds)
        print(f"  {'dequantize ' + name:36s} {ratio:8.2f}")
    scaled = lp.to_scaled(x, "float8_e4m3fnuz")
    ratio = against(copying(5 * x.size), lambda: scaled.dequantize(out=out), rounds)
    print(f"  {'dequantize to_scaled':36s} {ratio:8.2f}")


def packing(size: int, rounds: int) -> None:
    """Packing and unpacking of 4- and 6-bit codes."""
    for name in ("float4_e2m1fn", "float6_e2m3fn"):
        fmt = lp.as_format(name)
        codes = np.random.default_rng(1).integers(0, 1 << fmt.bits, size).astype(np.uint8)
        packed = lp.pack(codes, fmt)
        moved = codes.nbytes + packed.nbytes
        there = against(copying(moved), lambda c=codes, f=fmt: lp.pack(c, f), rounds)
        back = against(copying(moved), lambda p=packed, f=fmt: lp.unpack(p, f, size), rounds)
        print(f"  {name:36s} pack {there:5.2f}   unpack {back:5.2f}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", choices=isa_names(), nargs="+", default=[isa_names()[-1]])
    given = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((given.size // 1024, 1024)).astype(np.float32)
    for name in given.isa:
        for threads in given.threads:
            print(f"{x.size} elements, {name}, {threads} thread(s); ratio to a copy of the same bytes by one thread")
            with isa(name), lp.num_threads(threads):
                quantising(x, given.rounds, threads == 1)
                scaling(x, given.rounds)
                dequantising(x, given.rounds)
                packing(x.size, given.rounds)


if __name__ == "__main__":
    main()
