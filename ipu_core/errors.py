"""What is refused and warned of, each a kind of its own, with the numbers in the message.

All of them can be pickled, as a pool of processes does with what its workers raise.
"""

import errno
import functools
import resource
from collections.abc import Mapping, Sequence
from typing import Any

from lowprec.checks import expect, integer, pairs


def refusal_in_words(error: OSError) -> str:
    """An OSError in one line: what was refused for which file, or the limit of open files where that is reached."""
    # the file that came last is not the cause, the limit is
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many open files: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
    # of two files (rename) the second is the one that the user named
    name = error.filename2 or error.filename
    return (f"{error.strerror}: {name}" if name else error.strerror) or " ".join(str(error).split())


class IpuError(Exception):
    """Something the modelled machine cannot do."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class UnmappedTensor(IpuError, ValueError):
    """An element of a variable, or a vertex, lies on no tile."""


class MappedTwice(IpuError, ValueError):
    """An element of a variable was given to two tiles, or twice to one."""


class DataRace(IpuError, ValueError):
    """In one compute set an element is written by two vertices, or written by one and read by another."""


class UnsupportedByTarget(IpuError, NotImplementedError):
    """The target has no such unit, or no public figure for it is known."""


class NotCovered(IpuError, NotImplementedError):
    """A captured module does something that has no counterpart here."""


class FloatingPointException(IpuError, ArithmeticError):
    """An enabled floating-point exception (inv, div0 or oflo) was raised by an operation."""


class Unvalidated(UserWarning):
    """The result rests on a hardware detail for which no public source was found."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class NotFinite(RuntimeWarning):
    """A loss is infinite or NaN."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class OtherOrders(UserWarning):
    """A chip runs a training whose sums have the orders of another family, or of another adder."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class OtherStudy(ValueError):
    """A folder holds another study than the one that was to go on in it, or a damaged one; it is left as it is."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class ChangesNothing(UserWarning):
    """What a precision says changes no equation of the step, such as moments that the optimizer does not keep."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class NothingSaved(UserWarning):
    """What is made again or streamed to save memory of the fullest tile saves none of it, or next to none."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class OutOfStreamingMemory(IpuError, MemoryError):
    """Remote buffers need more than the system has of streaming memory.

    Attributes:
        needed: bytes of all of them.
        available: bytes there are for one chip.
        buffers: the largest, as (name, bytes), largest first.
    """

    def __init__(self, needed: int, available: int, buffers: Sequence[tuple[str, int]]) -> None:
        self.needed = integer("needed", needed)
        self.available = integer("available", available)
        self.buffers = pairs("buffers", buffers)
        largest = ", ".join(f"{name} {size:,}" for name, size in self.buffers)
        super().__init__(
            f"remote buffers need {needed:,} bytes of {available:,} of streaming memory; the largest: {largest}"
        )

    def __reduce__(self) -> tuple[Any, ...]:  # Python's own would call the class with the message alone
        return type(self), (self.needed, self.available, self.buffers), self.__dict__


class OutOfTileMemory(IpuError, MemoryError):
    """A program needs more memory on a tile than the tile has.

    Attributes:
        tile: the fullest tile.
        needed: bytes that tile needs at its peak.
        available: bytes it has.
        categories: bytes by category on that tile at its peak.
        variables: the largest variables there, as (name, bytes), largest first.
        step: the step of the program at that peak.
        before_planning: whether only the values of the step were counted, before it was planned: it needs yet more.
        ways: what the caller that refuses could be given instead, in words.
    """

    def __init__(
        self,
        tile: int,
        needed: int,
        available: int,
        categories: Mapping[str, int],
        variables: Sequence[tuple[str, int]],
        step: str = "",
        *,
        before_planning: bool = False,
        ways: Sequence[str] = (),
    ) -> None:
        self.tile = tile
        self.needed = integer("needed", needed)
        self.available = integer("available", available)
        expect(Mapping, categories=categories)
        expect(str, step=step)
        self.categories = {name: integer(f"categories[{name!r}]", size) for name, size in categories.items()}
        self.variables = pairs("variables", variables)
        self.step = step
        self.before_planning = before_planning
        self.ways = tuple(ways)
        parts = ", ".join(f"{name} {size:,}" for name, size in self.categories.items() if size)
        largest = ", ".join(f"{name} {size:,}" for name, size in self.variables) or "none"
        where = f" at step {step!r}" if step else ""
        more = " for the values of the step alone" if before_planning else ""
        super().__init__(
            f"tile {tile} needs {needed:,} bytes of {available:,}{more}{where}; by category: {parts}; "
            f"largest variables there: {largest}{''.join(f'; {way}' for way in self.ways)}"
        )

    def with_ways(self, ways: Sequence[str]) -> "OutOfTileMemory":
        """The same refusal with what its caller could be given instead: none knows the arguments of those above it."""
        given = self.tile, self.needed, self.available, self.categories, self.variables, self.step
        return type(self)(*given, before_planning=self.before_planning, ways=ways)

    def __reduce__(self) -> tuple[Any, ...]:  # as above; a partial, since pickle passes no keywords
        make = functools.partial(type(self), before_planning=self.before_planning, ways=self.ways)
        given = (self.tile, self.needed, self.available, self.categories, self.variables, self.step)
        return make, given, self.__dict__
