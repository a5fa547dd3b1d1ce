"""`python -m tests.fuzz [--seconds S] [--first N] [--case N]`: fuzzed calls and compared values, on demand."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.against_reference import compare
from tests.fuzz.runner import arguments, judge, run


def main() -> int:
    """Runs and prints; 1 where a fault was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="half for calls, half for comparisons")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--case", type=int, help="show and run one case in this process")
    options = parser.parse_args()
    if options.case is not None:
        print(arguments(options.case))
        print(*judge(options.case))
        return 0
    report = run(options.first, 1 << 60, options.seconds / 2)
    print(*report.faults, sep="\n")
    print("calls:", ", ".join(f"{count} {verdict}" for verdict, count in sorted(report.counts.items())))
    values, cases, differences = compare(options.first, 1 << 60, options.seconds / 2)
    print(*differences, sep="\n")
    print(f"against the reference: {cases} calls, {values} values, {len(differences)} differ")
    return 1 if report.faults or differences else 0


if __name__ == "__main__":
    sys.exit(main())
