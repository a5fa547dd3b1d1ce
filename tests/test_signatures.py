"""Every public class and function says how it is called: for help(), editors and those who wrap it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

import ipu_core
import lowprec
import lowprec.testing
from ipu_core import errors, nn, poptorch

PLACES = (lowprec, lowprec.testing, lowprec.statistics, ipu_core, nn, errors, poptorch)


def public() -> Iterator[tuple[str, Any]]:
    """Names and what they stand for: what a module lists, or defines itself."""
    for place in PLACES:
        own = [name for name, value in vars(place).items() if getattr(value, "__module__", None) == place.__name__]
        names = getattr(place, "__all__", own)
        for name in names:
            value = getattr(place, name)
            if callable(value) and not name.startswith("_") and not isinstance(value, types.ModuleType):
                yield f"{place.__name__}.{name}", value


NAMES = dict(public())


def methods(kind: type) -> Iterator[str]:
    for name in dir(kind):
        if not name.startswith("_") and callable(getattr(kind, name, None)):
            yield name


def test_there_are_many_names() -> None:
    assert len(NAMES) > 200
    assert {"ipu_core.UnitScaled", "lowprec.testing.isa_names", "ipu_core.errors.DataRace"} <= NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    told = inspect.signature(NAMES[name])
    assert "Ellipsis" not in str(told), "a default that says nothing to a reader"
    if isinstance(NAMES[name], type) and not issubclass(NAMES[name], BaseException):
        for method in methods(NAMES[name]):
            inspect.signature(getattr(NAMES[name], method))


def test_a_unit_scaled_function_has_that_of_the_function() -> None:
    scaled = ipu_core.unit_scale(lambda weights, rows: (weights * rows).sum())
    assert list(inspect.signature(scaled).parameters) == ["weights", "rows"]
    assert list(inspect.signature(type(scaled)).parameters) == ["function", "rules"]
