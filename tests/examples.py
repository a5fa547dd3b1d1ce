"""How much a test tries: all of it where slow tests run, in `make test` a first part that was seen to find faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("lowprec", derandomize=True, deadline=None)  # the same in every run, on a busy machine too
settings.register_profile("slow", settings.get_profile("lowprec"))


def examples(quick: int, slow: int) -> settings:
    """A property is tried on the first few examples, and on all of them where slow tests run."""
    return settings(max_examples=slow if settings.default is settings.get_profile("slow") else quick)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases to parametrize with, a tuple for several names, of which those behind the first few are slow."""
    some = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.slow] if at >= count else []) for at, case in enumerate(some)]
