"""Small codelets and graphs for the tests of the engine."""

from ipu_core.chip.target import Target
from ipu_core.graph import Codelet, Execute, Graph, InOut, Input, Output, Param, Tensor


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
