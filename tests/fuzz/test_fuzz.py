"""A fixed number of fuzzed cases; `python -m tests.fuzz` runs more."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.fuzz.against_reference import compare

CALLS, COMPARISONS = 8000, 1500
CODE = """
import json, sys
from tests.fuzz.runner import run
report = run(0, int(sys.argv[1]))
print(json.dumps([report.counts, report.faults]))
"""


def test_public_calls_return_or_refuse_in_words() -> None:
    # A process of its own: its children are forked from one that never made a thread, and a crash is seen as one.
    done = subprocess.run([sys.executable, "-c", CODE, str(CALLS)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    counts, faults = json.loads(done.stdout.splitlines()[-1])
    assert not faults, "\n".join(faults)
    assert counts["fine"] + counts["refused"] == CALLS
    assert counts["fine"] > CALLS / 4  # the arguments are sensible enough to reach the inside


def test_compiled_loops_agree_with_the_reference() -> None:
    values, calls, differences = compare(0, COMPARISONS)
    assert not differences, "\n".join(differences)
    assert calls == COMPARISONS
    assert values > 10 * COMPARISONS
