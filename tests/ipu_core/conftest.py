"""What a study draws is described in the tests, not rendered: most of the time that a small study takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipu_core.study.plot import Picture


def described(picture: Picture, path: str | Path) -> None:
    """Writes, instead of a PNG, a digest of the curves and words that it would show."""
    found = hashlib.sha256()
    for axes in picture.figure.axes:
        for line in axes.lines:
            found.update(line.get_xydata().tobytes())
        found.update(repr([text.get_text() for text in (axes.title, *axes.texts, *picture.figure.texts)]).encode())
    Path(path).write_text(found.hexdigest())


@pytest.fixture(scope="module", autouse=True)
def unrendered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only test_plot.py, and what runs in a process of its own, renders what it saves."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_plot.py":
            patch.setattr(Picture, "save", described)
        yield
