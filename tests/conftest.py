"""Fixtures of the whole suite: `backend` runs a test once on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowprec import backends


def _missing(name: str) -> str | None:
    """Why a backend cannot run here; None if it can."""
    try:
        with backends.backend(name):
            return None
    except (ImportError, RuntimeError) as error:
        return str(error)


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend that is in force during the test."""
    reason = _missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    with backends.backend(request.param):
        yield request.param
