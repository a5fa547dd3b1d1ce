"""Fixtures of lowprec's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowprec import backends


@pytest.fixture(params=["reference", "cpu"])
def host_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend that has arithmetic (the GPU's has rounding only), in force during the test."""
    with backends.backend(request.param):
        yield request.param
