"""What cannot be added to a graph is refused by its kind and leaves the graph as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Accumulation, Graph, Target, Tensor, add_traced, nn
from ipu_core.errors import UnmappedTensor, UnsupportedByTarget

CHIP = Target("gc200", tiles=12)


def variable(graph: Graph, fmt: str = "float32", size: int = 8) -> Tensor:
    x = graph.add_variable(fmt, (size,), "x")
    graph.map_linearly(x, 4)
    return x


Call = Callable[[Graph], Any]


def add(f: Any = nn.exp, make: Callable[[Graph], Any] = lambda graph: [variable(graph)], **how: Any) -> Call:
    """A call with the tensors that are made in the graph."""
    return lambda graph: add_traced(graph, f, make(graph), **{"precision": "fp16.16/nearest", **how})


def of(fmt: str) -> Call:
    return add(make=lambda graph: [variable(graph, fmt)])


def outer(x: Any) -> Any:
    return x.reshape(8, 1) @ x.reshape(1, 8)


def unmapped(graph: Graph) -> list[Tensor]:
    return [graph.add_variable("float32", (8,), "x")]


def half_mapped(graph: Graph) -> list[Tensor]:
    (x,) = unmapped(graph)
    graph.set_tile_mapping(x[:4], 2)
    return [x[:4]]


REFUSED: dict[str, tuple[type[Exception], str, Call]] = {
    "no graph": (TypeError, "graph must be a Graph", lambda graph: add_traced(CHIP, nn.exp, [], precision="fp32.32")),
    "no function": (TypeError, "trace takes a function", add(3)),
    "another graph's": (ValueError, "tensors: 0: x:.* of another graph", add(make=lambda _: [variable(Graph(CHIP))])),
    "unmapped": (UnmappedTensor, "x: 8 of 8 elements are mapped to no tile", add(make=unmapped)),
    "half mapped": (UnmappedTensor, "x: 4 of 8 elements", add(make=half_mapped)),
    "an array": (TypeError, "tensors: 0.a must be a Tensor", add(lambda x: x["a"], lambda _: [{"a": np.zeros(3)}])),
    "a number": (TypeError, "tensors: 1 must be a Tensor, not 3", add(max, lambda g: [variable(g), 3])),
    "a tensor alone": (TypeError, r"of one, a Tensor, give \(x,\)", add(make=variable)),
    "a dict alone": (TypeError, r"of one, a dict, give \(x,\)", add(make=lambda graph: {"x": variable(graph)})),
    "truth values": (ValueError, "tensors: 0 is bool; f computes with floats and int32", of("bool")),
    "unsigned": (ValueError, "tensors: 0 is uint32", of("uint32")),
    "double": (UnsupportedByTarget, "argument x is float64, for which gc200 has no unit", of("float64")),
    "bytes": (UnsupportedByTarget, "argument x is float8_e4m3fnuz, for which gc200", of("float8_e4m3fnuz")),
    "bfloat16": (UnsupportedByTarget, "forward convert 1 is bfloat16", add(precision="bf16.32")),
    "blocks": (UnsupportedByTarget, "elements share scales", add(outer, precision="mxfp8")),
    "eight bits": (UnsupportedByTarget, "float8_e4m3fnuz, for which gc200 has no unit", add(outer, precision="fp8.16")),
    "precision": (ValueError, "unknown precision 'fp7'", add(precision="fp7")),
    "far tiles": (ValueError, r"tiles 5\.\.12 are outside 0\.\.11 of gc200", add(tiles=range(5, 13))),
    "negative tiles": (ValueError, r"tiles -1\.\.3 are outside", add(tiles=[3, -1])),
    "a tile twice": (ValueError, "tiles must differ: 1 of", add(tiles=[3, 4, 3])),
    "no tiles": (ValueError, "one at least", add(tiles=[])),
    "a number of tiles": (TypeError, "tiles must be a list, not 4", add(tiles=4)),
    "half a tile": (TypeError, "tiles must be integers", add(tiles=[0.5])),
    "an argument": (ValueError, "result 1 of f is its argument x, or a view", add(lambda x: (nn.exp(x), x))),
    "a view": (ValueError, "result 0 of f is its argument x", add(lambda x: x.reshape(2, 4).T)),
    "shapes": (ValueError, "do not fit", add(lambda x, y: x + y, lambda g: [variable(g), variable(g, size=7)])),
    "too many arguments": (TypeError, "positional argument", add(make=lambda graph: [variable(graph)] * 2)),
    "no array": (TypeError, "must give arrays or numbers", add(lambda x: "x")),
    "an operation": (TypeError, "operation must be an integer", add(operation="3")),
    "a negative operation": (ValueError, "operation must be an integer of at least 0", add(operation=-3)),
    "an iteration's number": (ValueError, "operation must be an integer of at most 4294967295", add(operation=1 << 32)),
    "orders of nothing": (ValueError, "no products or sums of the block", add(accumulations={0: Accumulation()})),
    "a name": (TypeError, "name must be a str", add(name=3)),
    "temporary": (TypeError, "temporary must be True or False", add(temporary=1)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_is_refused_and_leaves_the_graph_as_it_was(case: str) -> None:
    kind, message, call = REFUSED[case]
    graph = Graph(CHIP)
    with pytest.raises(kind, match=message):
        call(graph)
    assert not graph.compute_sets
    assert all(each.name == "x" for each in graph.variables)
