"""Runs cases in forked children with limits on time and memory, and judges what they did.

A call may return, or refuse with one of the errors that its documentation can name. Anything else is a fault: another
exception, one of Python's own messages from deep inside, a crash, a hang, or a result in `out=` that differs from the
one without it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core import errors
from tests.fuzz import ipu_core_calls, lowprec_calls
from tests.fuzz.wild import Draw

CALLS: dict[str, tuple[Callable[..., Any], Callable[[Draw], dict[str, Any]]]] = {
    **lowprec_calls.CALLS, **{f"ipu_core.{name}": call for name, call in ipu_core_calls.CALLS.items()}
}  # fmt: skip
NAMES = [name for name in CALLS if name.removeprefix("ipu_core.") not in ipu_core_calls.HEAVY]
HEAVY = [f"ipu_core.{name}" for name in ipu_core_calls.HEAVY]
HEAVY_SHARE = 0.01

OURS = tuple(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception))
ALLOWED = (
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    MemoryError,
    FloatingPointError,
    NotImplementedError,
    *OURS,
)
PYTHONS_OWN = re.compile(
    r"unhashable type|object is not (subscriptable|iterable|callable)|unsupported operand type"
    r"|object of type .* has no len|incompatible function arguments|object cannot be interpreted"
    r"|not supported between instances"
    r"|object has no attribute|to unpack|truth value of an array|only (length-1|0-dimensional|integer scalar) arrays"
)
SECONDS, MEMORY = 120, 6 << 30  # of silence: a busy machine may take a while


@dataclass
class Report:
    """What became of the cases."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def arguments(case: int) -> tuple[str, dict[str, Any]]:
    """The call of a case: sensible arguments, of which none, one or two are replaced by something wild."""
    d = Draw(case)
    name = d.one_of(HEAVY) if d.chance(HEAVY_SHARE) else d.one_of(NAMES)
    found = CALLS[name][1](d)
    for _ in range(d.one_of((0, 0, 1, 1, 2))):
        if found:
            found[d.one_of(sorted(found))] = d.wild()
    return name, found


def judge(case: int) -> tuple[str, str]:
    """(verdict, what happened): "fine", "refused" or "fault"."""
    name, given = arguments(case)
    try:
        result = CALLS[name][0](**given)
    except ALLOWED as error:
        if PYTHONS_OWN.search(str(error)) and not _of_the_caller(error):
            return "fault", f"{name}: one of Python's own messages: {type(error).__name__}: {error}"
        return ("refused", name) if str(error) else ("fault", f"{name}: {type(error).__name__} without a message")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        return "fault", f"{name}: {type(error).__name__} at {where}: {error}"
    if "out" in given:
        return _same_without_out(name, case, result)
    return "fine", name


def _of_the_caller(error: BaseException) -> bool:
    """Whether it was raised by the call itself, which did not take the arguments, or in a function that was given.

    Then Python's message is the right one.
    """
    return "fuzz" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts


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


def run(first: int, count: int, seconds: float | None = None, batch: int = 200) -> Report:
    """Judges `count` cases from `first` on, or as many as the seconds allow."""
    report, start, at = Report(), time.monotonic(), first
    while at < first + count and (seconds is None or time.monotonic() - start < seconds):
        end = min(at + batch, first + count)
        died = _run(range(at, end), report)
        at = end if died is None else died + 1
    return report
