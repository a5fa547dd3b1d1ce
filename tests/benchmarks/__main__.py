"""Runs every benchmark, each in a process of its own: `make bench`, or `make bench ARGS=step` for those named so."""

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.machine import described

FOLDER = Path(__file__).parent


def main(names: list[str]) -> int:
    """Returns 1 if a benchmark failed."""
    chosen = [path for path in sorted(FOLDER.glob("bench_*.py")) if not names or path.stem[6:] in names]
    if not chosen:
        valid = ", ".join(path.stem[6:] for path in sorted(FOLDER.glob("bench_*.py")))
        print(f"no such benchmark: {' '.join(names)}; there are {valid}", file=sys.stderr)
        return 2
    print(described(), flush=True)
    codes = []
    for path in chosen:
        print(f"== {path.stem}", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
