"""Transfers beside computation: loads come as early as the room for them allows, in their order, and no earlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from ipu_core.compile.schedule.overlap import overlapped
from ipu_core.graph import Copy, Graph, Overlap, Program, RemoteBuffer, RemoteLoad, RemoteStore
from ipu_core.graph.tensor import Tensor
from tests.ipu_core.engine.codelets import on_tile_0


class Far(NamedTuple):
    """Something that lives in streaming memory, and its place on the tiles."""

    here: Tensor
    there: RemoteBuffer


class Desk:
    """Things of these sizes in bytes, by letters, and programs that read them, make them or do neither."""

    def __init__(self, **sizes: int) -> None:
        graph = Graph("gc200")
        self.far = {
            name: Far(on_tile_0(graph, "bool", (size,), name), RemoteBuffer(name, "bool", (size,)))
            for name, size in sizes.items()
        }
        self._other = {size: on_tile_0(graph, "bool", (size,), f"other {size}") for size in {1, *sizes.values()}}
        self._more = on_tile_0(graph, "bool", (1,), "more")

    def program(self, word: str) -> Program:
        """Of "load a", "store a", "use a", "make a", "replace a" by what is called new, "work"."""
        verb, _, name = word.partition(" ")
        if verb == "work":
            return Copy(self._other[1], self._more, word)
        far = self.far[name]
        if verb == "load":
            return RemoteLoad(far.there, far.here)
        if verb == "store":
            return RemoteStore(far.here, far.there)
        if verb == "replace":
            return RemoteStore(self.far["new"].here, far.there)
        other = self._other[far.here.size]
        return Copy(far.here, other, word) if verb == "use" else Copy(other, far.here, word)

    def word(self, program: Program) -> str:
        match program:
            case Copy(_, _, name):
                return name
            case RemoteLoad(buffer):
                return f"load {buffer.name}"
            case RemoteStore(tensor, buffer):
                return f"{'replace' if tensor.variable.name == 'new' else 'store'} {buffer.name}"
        raise AssertionError(program)

    def overlapped(self, words: Sequence[str], most: int, start: int = 0) -> list[str]:
        (together,) = overlapped([self.program(word) for word in words], most, start)
        assert isinstance(together, Overlap)
        return [self.word(step) for step in together.steps]


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


WORK = "work 1, work 2, load a, use a, store a, work 3, load b, use b, store b, load c, use c, store c"
CASES = {
    "no room": (0, WORK),
    "for one": (8, "load a, work 1, work 2, use a, store a, load b, work 3, use b, store b, load c, use c, store c"),
    "for two": (12, "load a, load b, work 1, work 2, use a, store a, load c, work 3, use b, store b, use c, store c"),
    "for all": (20, "load a, load b, load c, work 1, work 2, use a, store a, work 3, use b, store b, use c, store c"),
}


@pytest.mark.parametrize("name", CASES)
def test_loads_come_as_early_as_there_is_room(name: str) -> None:
    most, expected = CASES[name]
    assert Desk(a=8, b=4, c=8).overlapped(words(WORK), most) == words(expected)


def test_no_load_passes_the_one_before_it() -> None:
    """They share the channel: what is needed first would wait for what is needed later."""
    text = "work 1, make c, store c, load a, use a, load b, use b"  # for b there were room from the beginning
    expected = "work 1, make c, store c, load a, load b, use a, use b"
    assert Desk(a=8, b=2, c=4).overlapped(words(text), 10) == words(expected)


def test_what_is_stored_is_not_loaded_again_before() -> None:
    desk = Desk(a=4, b=4)
    text = "make a, store a, work 1, work 2, load a, use a"
    assert desk.overlapped(words(text), 99) == words("make a, store a, load a, work 1, work 2, use a")
    text = "make new, replace a, work 1, load a, use a"  # from elsewhere on the tiles
    assert Desk(a=4, new=4).overlapped(words(text), 99) == words("make new, replace a, load a, work 1, use a")
    text = "load a, use a, work 1, load a, use a"  # loaded twice: not while it is still needed
    assert desk.overlapped(words(text), 99) == words("load a, use a, load a, work 1, use a")


def test_no_load_comes_before_a_start() -> None:
    text = "work 1, work 2, work 3, load a, use a"
    for start, expected in ((0, 0), (2, 2), (3, 3), (5, 3)):
        assert Desk(a=4).overlapped(words(text), 99, start).index("load a") == expected
