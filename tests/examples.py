"""How much a test tries: all of it where slow tests run, in `make test` a first part that was seen to find faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("lowprec", derandomize=True, deadline=None)  # the same in every run, on a busy machine too
settings.load_profile("lowprec")
_quick = False


def only_first(whether: bool) -> None:
    """Whether the later examples are left out; said before the tests are imported.

    Not a second profile of hypothesis: two that set the same are one object there, and no test of which one holds.
    """
    global _quick
    _quick = whether


def examples(quick: int, slow: int) -> settings:
    """A property is tried on the first few examples, and on all of them where slow tests run."""
    return settings(max_examples=quick if _quick else slow)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases to parametrize with, a tuple for several names, of which those behind the first few are slow."""
    some = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.slow] if at >= count else []) for at, case in enumerate(some)]
