"""What lives beside a step's values is an estimate until the program is accounted: where it does not fit, once more."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from ipu_core.engine.memory import MemoryAccount
from ipu_core.errors import OutOfTileMemory
from ipu_core.placement.matmul import RESERVED
from lowprec.checks import truth

Made = TypeVar("Made")


def fitting(make: Callable[[bool, int], Made], *, parallel: bool, memory: Callable[[Made], MemoryAccount]) -> Made:
    """What is made with parallel paths; without where these need more memory than a tile has; and where that is too
    little too, with products that take so much less at a time.

    Args:
        make: called with whether sums of unlike sizes run at once, and with bytes of a tile that products leave free
            beside what is usual.
        parallel: whether they are to.
        memory: of what was made. Where it may need more than there is, it is tried all the same to fit.

    Raises:
        OutOfTileMemory: it does not fit without them either, and not with smaller products.
    """
    made = _fitting(make, parallel)
    if (lacks := memory(made).peak_bytes - memory(made).available) > 0:
        again = make(False, spare_for(lacks, memory(made).categories))
        made = min(made, again, key=lambda one: memory(one).peak_bytes)
    return made


def _fitting(make: Callable[[bool, int], Made], parallel: bool) -> Made:
    if truth("parallel", parallel):
        with suppress(OutOfTileMemory):
            return make(True, 0)
    try:
        return make(False, 0)
    except OutOfTileMemory as error:
        if error.before_planning:
            raise
        with suppress(OutOfTileMemory):
            return make(False, spare_for(error.needed - error.available, error.categories))
        raise


def spare_for(lacks: int, categories: Mapping[str, int]) -> int:
    """Bytes of a tile that products are to leave free, where a program lacked some.

    Args:
        lacks: bytes that it needs and the tile has not.
        categories: its bytes by category on that tile. Code and vertex state are known now: a plan goes by `RESERVED`.
    """
    return max(lacks, categories.get("code", 0) + categories.get("vertex state", 0) - RESERVED)
