"""A fixed number of fuzzed cases; `python -m tests.fuzz` runs more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fuzz.against_reference import compare

CALLS = [3000, pytest.param(40_000, marks=pytest.mark.slow)]
COMPARISONS = [700, pytest.param(3000, marks=pytest.mark.slow)]
CODE = """
import json, sys
from tests.fuzz.runner import run
report = run(0, int(sys.argv[1]))
print(json.dumps([report.counts, report.faults]))
"""


@pytest.mark.parametrize("calls", CALLS)
def test_public_calls_return_or_refuse_in_words(calls: int) -> None:
    # A process of its own: its children are forked from one that never made a thread, and a crash is seen as one.
    done = subprocess.run([sys.executable, "-c", CODE, str(calls)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    counts, faults = json.loads(done.stdout.splitlines()[-1])
    assert not faults, "\n".join(faults)
    assert counts["fine"] + counts["refused"] == calls
    assert counts["fine"] > calls / 4  # the arguments are sensible enough to reach the inside


@pytest.mark.parametrize("comparisons", COMPARISONS)
def test_compiled_loops_agree_with_the_reference(comparisons: int) -> None:
    values, calls, differences = compare(0, comparisons)
    assert not differences, "\n".join(differences)
    assert calls == comparisons
    assert values > 10 * comparisons
