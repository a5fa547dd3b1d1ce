"""Runs cases in forked children with limits on time and memory, and judges what they did.

A call may return, or refuse with one of the errors that its documentation can name. Anything else is a fault: another
exception, one of Python's own messages from deep inside, a crash, a hang, or a result in `out=` that differs from the
one without it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fuzz import ipu_core_calls, lowprec_calls
from tests.fuzz.judgement import ALLOWED, PYTHONS_OWN, inner, of_the_caller
from tests.fuzz.wild import Draw

CALLS = {
    **lowprec_calls.CALLS,
    **{f"ipu_core.{name}": call for name, call in {**ipu_core_calls.CALLS, **ipu_core_calls.HEAVY}.items()},
}
HEAVY_SHARE = 0.002

SECONDS, MEMORY = 120, 6 << 30  # of silence: a busy machine may take a while


@dataclass
class Report:
    """What became of the cases."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def arguments(case: int) -> tuple[str, dict[str, Any]]:
    """The call of a case: sensible arguments, of which none, one or two are replaced by something wild.

    Even cases are lowprec's, odd ones ipu_core's.
    """
    d = Draw(case)
    if case % 2 == 0:
        name = d.one_of(list(lowprec_calls.CALLS))
    else:
        calls = ipu_core_calls.HEAVY if d.chance(HEAVY_SHARE) else ipu_core_calls.CALLS
        name = f"ipu_core.{d.one_of(list(calls))}"
    found = CALLS[name][1](d)
    for _ in range(d.one_of((0, 0, 1, 1, 2))):
        names = sorted(name for name in found if not name.startswith("_"))
        if names:
            changed = d.one_of(names)
            found[changed] = ipu_core_calls.odd(d, found[changed]) if case % 2 else d.wild()
    return name, found


def judge(case: int) -> tuple[str, str]:
    """(verdict, what happened): "fine", "refused" or "fault"."""
    name, given = arguments(case)
    try:
        result = CALLS[name][0](**given)
    except Exception as error:
        words = inner(error) if case % 2 else _of_lowprec(error)
        return ("fault", f"{name}: {words}") if words else ("refused", name)
    if "out" in given:
        return _same_without_out(name, case, result)
    return "fine", name


def _of_lowprec(error: Exception) -> str:
    """What is wrong with an error of lowprec, many of whose refusals are those of the compiled module."""
    if not isinstance(error, ALLOWED):
        return inner(error)
    if PYTHONS_OWN.search(str(error)) and not of_the_caller(error):
        return f"one of Python's own messages: {type(error).__name__}: {error}"
    return "" if str(error) else f"{type(error).__name__} without a message"


def _same_without_out(name: str, case: int, result: Any) -> tuple[str, str]:
    _, again = arguments(case)
    if not isinstance(again.pop("out"), np.ndarray):
        return "fine", name
    wanted = np.asarray(CALLS[name][0](**again))
    same = np.array_equal(np.asarray(result, np.float64), wanted.astype(np.float64), equal_nan=True)
    return ("fine", name) if same else ("fault", f"{name}: another result in out= than without it")


def child(cases: range, write: int) -> None:
    """Judges cases one after the other; a line for each before and after."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    with os.fdopen(write, "w", buffering=1) as out:
        for case in cases:
            out.write(json.dumps([case]) + "\n")
            out.write(json.dumps([case, *judge(case)]) + "\n")


def _run(cases: range, report: Report) -> int | None:
    """Forks one child; the case it died in, or None where it came to the end."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        status = 1
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            child(cases, write)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    current = done = None
    for line in _lines(read):
        if line is None:
            os.kill(pid, signal.SIGKILL)
            report.faults.append(f"case {current}: hangs: {arguments(current or 0)[0]}")
            break
        number, *verdict = json.loads(line)
        current = number
        if verdict:
            done = number
            report.counts[verdict[0]] += 1
            if verdict[0] == "fault":
                report.faults.append(f"case {number}: {verdict[1]}")
    _, status = os.waitpid(pid, 0)
    if current is None or done == cases[-1]:
        return None
    if status != signal.SIGKILL:
        report.faults.append(f"case {current}: died with status {status}: {arguments(current)[0]}")
    report.counts["fault"] += 1
    return current


def _lines(read: int) -> Iterator[str | None]:
    """Lines as they come; None after a silence of SECONDS."""
    rest = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], SECONDS)[0]:
                yield None
                return
            piece = pipe.read(65536)
            if not piece:
                return
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.decode() for line in whole)


def run(first: int, count: int, seconds: float | None = None, batch: int = 500) -> Report:
    """Judges `count` cases from `first` on, or as many as the seconds allow."""
    report, start, at = Report(), time.monotonic(), first
    while at < first + count and (seconds is None or time.monotonic() - start < seconds):
        end = min(at + batch, first + count)
        died = _run(range(at, end), report)
        at = end if died is None else died + 1
    return report
