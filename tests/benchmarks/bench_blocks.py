"""Block formats against a copy of the same bytes: the ratio is the copy's time over ours, medians taken in turn.

Quantising reads x and writes elements and scales, dequantising the reverse; the copy moves as many bytes in all, by one
thread, into memory that exists, while our results are new arrays each time unless `--fresh-copy` makes the copy's new
too. The last column of quantising is a plain sequence of NumPy and ml_dtypes passes of the same rule ("floor").
"""

import argparse
from collections.abc import Callable

import ml_dtypes
import numpy as np

import lowprec as lp
from lowprec.blocks import BlockArray, block_formats
from lowprec.testing import isa, isa_names
from tests.benchmarks.bench_rounding import against, copying

Call = Callable[[], object]


def fresh_copying(bytes_moved: int) -> Call:
    """A copy that reads and writes so many bytes in all, into new memory."""
    source = np.ones(bytes_moved // 2, np.uint8)
    return lambda: source.copy()


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


def quantising(x: np.ndarray, rounds: int, copy: Callable[[int], Call], peers: bool) -> None:
    """A line for each format, and a few for other inputs and axes."""
    print(f"  {'':34s} nearest stochastic" + ("   numpy passes" if peers else ""))
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
        bytes_moved = values.nbytes + bytes_of(lp.to_blocks(values, name, axis))
        modes = ["nearest_even", "stochastic"] if "rounding" not in options else [options["rounding"]]
        ratios = []
        for mode in modes:
            call = {**options, "rounding": mode, "key": 1}
            ratios.append(
                against(copy(bytes_moved), lambda v=values, n=name, a=axis, c=call: lp.to_blocks(v, n, a, **c), rounds)
            )
        title = f"{name} of {values.dtype}" + (", axis 0" if axis == 0 else "")
        title += "".join(f", {key} {value}" for key, value in options.items())
        line = f"  {title:34s} " + " ".join(f"{r:8.2f}" for r in ratios)
        if peers and not options and axis == -1 and values is x:
            line += f"{against(copy(bytes_moved), lambda n=name: numpy_passes(x, n), 3):12.3f}"
        print(line)
    codes = x.size
    for power in (0, "auto"):
        ratios = [
            against(
                copy(4 * x.size + codes),
                lambda m=m, p=power: lp.to_scaled(x, "float8_e4m3fnuz", p, rounding=m, key=1, overflow="ipu"),
                rounds,
            )
            for m in ("nearest_even", "stochastic")
        ]
        print(f"  {'to_scaled float8_e4m3fnuz, ' + str(power):34s} " + " ".join(f"{r:8.2f}" for r in ratios))


def dequantising(x: np.ndarray, rounds: int, copy: Callable[[int], Call]) -> None:
    """A line for each format."""
    for name in block_formats:
        blocks = lp.to_blocks(x, name)
        ratio = against(copy(4 * x.size + bytes_of(blocks)), blocks.dequantize, rounds)
        print(f"  {'dequantize ' + name:34s} {ratio:8.2f}")
    scaled = lp.to_scaled(x, "float8_e4m3fnuz")
    print(f"  {'dequantize to_scaled':34s} {against(copy(5 * x.size), scaled.dequantize, rounds):8.2f}")


def packing(size: int, rounds: int, copy: Callable[[int], Call]) -> None:
    """Packing and unpacking of 4- and 6-bit codes."""
    for name in ("float4_e2m1fn", "float6_e2m3fn"):
        fmt = lp.as_format(name)
        codes = np.random.default_rng(1).integers(0, 1 << fmt.bits, size).astype(np.uint8)
        packed = lp.pack(codes, fmt)
        moved = codes.nbytes + packed.nbytes
        there = against(copy(moved), lambda c=codes, f=fmt: lp.pack(c, f), rounds)
        back = against(copy(moved), lambda p=packed, f=fmt: lp.unpack(p, f, size), rounds)
        print(f"  {name:34s} pack {there:5.2f}   unpack {back:5.2f}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 22)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", choices=isa_names(), nargs="+", default=[isa_names()[-1]])
    parser.add_argument("--fresh-copy", action="store_true")
    given = parser.parse_args()
    copy = fresh_copying if given.fresh_copy else copying
    x = np.random.default_rng(0).standard_normal((given.size // 1024, 1024)).astype(np.float32)
    for name in given.isa:
        for threads in given.threads:
            what = "into new memory" if given.fresh_copy else "by one thread"
            print(f"{x.size} elements, {name}, {threads} thread(s); ratio to a copy of the same bytes {what}")
            with isa(name), lp.num_threads(threads):
                quantising(x, given.rounds, copy, threads == 1)
                dequantising(x, given.rounds, copy)
                packing(x.size, given.rounds, copy)


if __name__ == "__main__":
    main()
