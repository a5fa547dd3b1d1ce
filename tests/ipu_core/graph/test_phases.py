"""Copies in one exchange phase: which may be, what one costs, and that none changes a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import Copies, Copy, DataRace, Engine, Graph, Sequence, Target
from ipu_core.graph import program_text
from ipu_core.graph.phases import in_phases, meet, several
from ipu_core.graph.program import Program, WriteUndef
from ipu_core.graph.tensor import Tensor

TARGET = Target("gc200", tiles=6)
LENGTH = 12


def variables(count: int) -> tuple[Graph, list[Tensor]]:
    """A graph with variables of some elements, spread over its tiles each in its own way."""
    graph = Graph(TARGET)
    made = [graph.add_variable("float32", (LENGTH,), "abcd"[number]) for number in range(count)]
    for number, tensor in enumerate(made):
        graph.map_linearly(tensor, 1 + number)
    return graph, made


@st.composite
def pieces(draw: st.DrawFn, tensor: Tensor, length: int) -> Tensor:
    """So many elements of a vector, at one stride."""
    step = draw(st.integers(1, (LENGTH - 1) // max(1, length - 1)))
    first = draw(st.integers(0, LENGTH - 1 - step * (length - 1)))
    return tensor[first : first + step * (length - 1) + 1 : step]


@st.composite
def copies(draw: st.DrawFn, tensors: list[Tensor]) -> Copy:
    """From one variable to another."""
    source, to = draw(st.permutations(tensors))[:2]
    length = draw(st.integers(1, 5))
    return Copy(draw(pieces(source, length)), draw(pieces(to, length)))


@settings(deadline=None)
@given(st.data())
def test_two_tensors_meet_where_they_share_an_element(data: st.DataObject) -> None:
    _, tensors = variables(2)
    a, b = (data.draw(pieces(data.draw(st.sampled_from(tensors)), data.draw(st.integers(1, 5)))) for _ in range(2))
    own = [set(np.asarray(tensor.indices()).ravel().tolist()) for tensor in (a, b)]
    assert meet(a, b) == (a.variable is b.variable and bool(own[0] & own[1]))


@settings(deadline=None)
@given(st.data())
def test_phases_give_the_values_of_the_copies_in_order(data: st.DataObject) -> None:
    graph, tensors = variables(4)
    apart = [data.draw(copies(tensors)) for _ in range(data.draw(st.integers(1, 8)))]
    phased = in_phases(apart)
    flat = [copy for phase in phased for copy in (phase.copies if isinstance(phase, Copies) else [phase])]
    assert flat == apart  # in order
    results = []
    for steps in (apart, phased):
        engine = Engine(graph, Sequence(*steps))
        for number, tensor in enumerate(tensors):
            engine.write(tensor, np.arange(LENGTH) + 100.0 * number)
        engine.run()
        results.append([engine.read(tensor) for tensor in tensors])
    np.testing.assert_array_equal(*results)


def moved(graph: Graph, *steps: Program) -> list[Any]:
    """The accounts of the steps of a program."""
    return [step.account for step in Engine(graph, Sequence(*steps)).profile().steps]


def test_one_phase_has_one_barrier_and_the_bytes_of_all() -> None:
    graph, (a, b, c, d) = variables(4)
    apart = [Copy(a, c), Copy(b, d)]
    (phase,) = in_phases(apart)
    (one,), both = moved(graph, phase), moved(graph, *apart)
    assert one.sync_cycles == TARGET.sync_cycles
    for side in ("received", "sent", "shared"):
        total = sum(getattr(each.gather, side) for each in both)
        np.testing.assert_array_equal(getattr(one.gather, side), total)
    assert one.exchange_cycles == one.gather.cycles(TARGET)
    assert one.cycles < sum(each.cycles for each in both)
    assert one.name == "copy a -> c: and 1 more" == several(one.joined)
    assert one.reads == {a.variable, b.variable}
    assert one.writes == one.defines == {c.variable, d.variable}


def test_of_parts_that_fill_a_variable_nothing_is_left() -> None:
    graph, (a, b, c) = variables(3)
    (phase,) = in_phases([Copy(a[:6], c[6:], "parts"), Copy(b[:6], c[:6], "parts")])
    (account,) = moved(graph, phase)
    assert account.defines == {c.variable}
    assert (account.name, account.joined) == ("parts", ())
    (account,) = moved(graph, *in_phases([Copy(a[:6], c[6:]), Copy(b[:5], c[:5])]))
    assert not account.defines


def test_workers_start_once_for_what_stays_on_a_tile() -> None:
    graph = Graph(TARGET)
    x, y = (graph.add_variable("float16", (10,), name) for name in "xy")
    for each in (x, y):
        graph.set_tile_mapping(each, 2)
    (phase,) = in_phases([Copy(x[i : i + 1], y[i : i + 1]) for i in range(10)])
    (account,) = moved(graph, phase)
    assert account.compute.tolist() == [0, 0, 6 * 20 + 10, 0, 0, 0]  # a word for each


def test_what_depends_on_another_copy_waits_for_it() -> None:
    _, (a, b, c) = variables(3)
    reads, overwrites, twice = [Copy(a, b), Copy(b, c)], [Copy(a, b), Copy(c, a)], [Copy(a, c), Copy(b, c)]
    for apart in (reads, overwrites, twice):
        assert in_phases(apart) == apart
    between = [Copy(a, b), WriteUndef(c), Copy(a, c)]
    assert in_phases(between) == between


@pytest.mark.parametrize("other", ["reads", "writes", "is read"])
def test_an_engine_refuses_a_phase_whose_order_counts(other: str) -> None:
    graph, (a, b, c) = variables(3)
    second = {"reads": Copy(b[3:5], c[:2]), "writes": Copy(c[:2], b[:2]), "is read": Copy(c[:2], a[4:6])}[other]
    with pytest.raises(DataRace, match="Copies"):
        Engine(graph, Copies(Copy(a[:6], b[:6]), second))


def test_a_phase_is_printed_with_its_copies_and_takes_nothing_else() -> None:
    graph, (a, b, c) = variables(3)
    lines = program_text(Copies(Copy(a, c), Copy(b[:2], a[:2]))).splitlines()
    assert [line[:8] for line in lines] == ["Copies", "  Copy a", "  Copy b"]
    assert moved(graph, Copies()) == []
    with pytest.raises(TypeError, match="Copy"):
        Copies(Sequence())  # type: ignore[arg-type]
