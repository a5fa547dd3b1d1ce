"""Small codelets and graphs for the tests of the engine."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.control import FloatingPointControl
from ipu_core.graph import (
    Codelet,
    Computation,
    Execute,
    Graph,
    InOut,
    Input,
    Output,
    Param,
    Program,
    Repeat,
    Tensor,
    Whole,
)
from ipu_core.target import Target
from lowprec import Key


class Scale(Codelet):
    x = Input("float32", ndim=1)
    y = Output("float32", ndim=1)
    factor = Param(2.0)

    def compute(self) -> None:
        self.y = self.x * self.factor

    def cycles(self, target: Target) -> int:
        return 10


class Decrement(Codelet):
    x = InOut("int32")

    def compute(self) -> None:
        self.x -= 1

    def cycles(self, target: Target) -> int:
        return 3


class Draw(Codelet):
    uses_key = True
    out = Output("float32", ndim=1)

    def compute(self) -> None:
        self.out = self.key.value % 10007

    def cycles(self, target: Target) -> int:
        return 1


class ToHalf(Codelet):
    x = Input("float32", ndim=1)
    y = Output("float16", ndim=1)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> int:
        return 7


def on_tile_0(graph: Graph, fmt: str, shape: tuple[int, ...], name: str, **options: bool) -> Tensor:
    tensor = graph.add_variable(fmt, shape, name, **options)
    graph.set_tile_mapping(tensor, 0)
    return tensor


def counting(graph: Graph) -> tuple[Tensor, Execute]:
    n = on_tile_0(graph, "int32", (), "n")
    cs = graph.add_compute_set("decrement")
    graph.add_vertex(cs, Decrement, 0, {"x": n})
    return n, Execute(cs)


def scaled(operation: int | None) -> tuple[Graph, Tensor, Tensor, Program, list[Key | None]]:
    """Twice x to y by way of a temporary, whole times three instead so that the two can be told apart; keys seen."""
    graph = Graph()
    x, y = (on_tile_0(graph, "float32", (4,), name) for name in "xy")
    middle = on_tile_0(graph, "float32", (4,), "middle", temporary=True)
    seen: list[Key | None] = []

    def bind(operands: list[Any], out: Any, control: FloatingPointControl) -> Callable[[Key | None], Any]:
        def call(key: Key | None) -> None:
            seen.append(key)
            np.multiply(operands[0], 3, out=out)

        return call

    steps = []
    for source, to, factor in ((x, middle, 4.0), (middle, y, 0.5)):
        cs = graph.add_compute_set()
        graph.add_vertex(cs, Scale, 0, {"x": source, "y": to}, {"factor": factor})
        steps.append(Execute(cs))
    return graph, x, y, Repeat(2, Whole(tuple(steps), (Computation((x,), y, bind, operation),))), seen
