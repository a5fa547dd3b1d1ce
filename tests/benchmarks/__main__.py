"""Runs every benchmark, each in a process of its own: `make bench`, or `make bench ARGS=step` for those named so.

What is 20 % slower than the last ratios kept for this model of machine is said at the end, the worst first;
`make bench ARGS=--keep` keeps the new ones in their place.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.benchmarks import ratios
from tests.benchmarks.machine import described

FOLDER = Path(__file__).parent


def main() -> int:
    """Returns 1 if a benchmark failed."""
    paths = {path.stem[6:]: path for path in sorted(FOLDER.glob("bench_*.py"))}
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__, prog="make bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(paths)} (default: all)")
    parser.add_argument("--keep", action="store_true", help="keep the ratios as this model of machine's last ones")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in paths]
    if unknown:
        parser.error(f"no such benchmark: {' '.join(unknown)}; there are {', '.join(paths)}")
    print(described(), flush=True)
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        collected = Path(folder) / "ratios"
        collected.touch()
        for name in given.names or paths:
            print(f"== {name}", flush=True)
            command = [sys.executable, "-m", f"tests.benchmarks.{paths[name].stem}"]
            codes.append(subprocess.run(command, check=False, env=os.environ | {ratios.COLLECTED: str(collected)}))
        measured, last = ratios.collected(collected), ratios.file_of_machine()
    ratios.report(ratios.load(last), measured, Console(width=130))
    if given.keep:
        ratios.keep(last, measured)
        print(f"kept in {last}")
    return int(any(done.returncode for done in codes))


if __name__ == "__main__":
    raise SystemExit(main())
