"""Parallel paths only where they fit: what lives beside them is an estimate until the program is accounted."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ipu_core.errors import OutOfTileMemory
from lowprec.checks import truth

Made = TypeVar("Made")


def fitting(make: Callable[[bool], Made], *, parallel: bool) -> Made:
    """What is made with parallel paths, or without where these need more memory than a tile has.

    Args:
        make: called with whether sums of unlike sizes run at once.
        parallel: whether they are to.

    Raises:
        OutOfTileMemory: it does not fit without them either.
    """
    if truth("parallel", parallel):
        with suppress(OutOfTileMemory):
            return make(True)
    return make(False)
