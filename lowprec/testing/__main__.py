"""The command line: `python -m lowprec.testing gpu` runs the checks of a graphics card and prints a report to paste."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence

from lowprec import streams
from lowprec.testing.gpu import report

FAILED, MISSING = 1, 2


def main(arguments: Sequence[str] | None = None, **sizes: int) -> int:
    """Runs the command line: 1 where bits differ, 2 with one sentence on standard error where there is no GPU.

    Args:
        arguments: of the command line; None: the process's.
        sizes: as `lowprec.testing.gpu.report` has them.
    """
    parser = argparse.ArgumentParser(prog="python -m lowprec.testing", description="Checks of a machine's devices.")
    parser.add_argument("device", choices=["gpu"], help="what is checked: the current CUDA device, through CuPy")
    parser.parse_args(arguments)
    return streams.guarded("lowprec.testing", functools.partial(_gpu, **sizes))


def _gpu(**sizes: int) -> int:
    right = True
    try:
        if os.environ.get("CUPY_TF32", "0") != "0":
            raise RuntimeError("CUPY_TF32 is set, and CuPy's products would be of fewer bits: unset it")
        for line, fine in report(**sizes):
            print(line, flush=True)
            right = right and fine
    except (ImportError, RuntimeError) as error:
        print(f"lowprec.testing: {error}", file=sys.stderr)
        return MISSING
    return 0 if right else FAILED


if __name__ == "__main__":
    sys.exit(main())
