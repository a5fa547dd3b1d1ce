"""The account by intervals equals a brute-force count over every vertex and every transfer, on random small graphs."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import Generator

from ipu_core.chip.target import Target
from ipu_core.engine import Engine, exchange
from ipu_core.errors import DataRace
from ipu_core.graph import Codelet, Copy, Execute, Graph, InOut, Input, Output, Tensor

TARGET = Target("gc200", tiles=7)


class Block(Codelet):
    a = Input(ndim=None)
    out = Output(ndim=None)

    def compute(self) -> None:
        self.out = 0 * self.out

    def cycles(self, target: Target) -> np.ndarray:
        return 5 + np.arange(self.out[..., 0].size if self.out.ndim > 1 else self.out.size).reshape(self.out.shape[:1])


class Whole(Block):
    supervisor = True


class InPlace(Codelet):
    x = InOut(ndim=None)
    b = Input(ndim=None)

    def compute(self) -> None:
        self.x += self.b

    def cycles(self, target: Target) -> int:
        return 11


def variable(graph: Graph, rng: Generator, shape: tuple[int, ...], name: str) -> Tensor:
    tensor = graph.add_variable(rng.choice(["float16", "float32"]), shape, name)
    size = tensor.size
    cuts = np.unique(np.concatenate([[0], rng.integers(0, size, rng.integers(1, 12))]))
    graph.map_intervals(tensor.flatten(), cuts, rng.integers(0, graph.target.tiles, cuts.size))
    return tensor


def random_operand(rng: Generator, tensor: Tensor, vertices: int) -> object:
    """Some view (or index array) with `vertices` leading entries of one or two axes each."""
    rows, columns = tensor.shape
    match rng.integers(0, 8):
        case 0:  # windows that overlap
            wide = Tensor(tensor.variable, 0, (vertices, rows * columns // 3), (1, 1))
            return wide
        case 1:  # one block for all
            return tensor[1:3, ::2].broadcast_to(vertices, 2, -(-columns // 2))
        case 2:  # rows, reversed
            return tensor[:vertices][::-1]
        case 6:  # each vertex's own elements, backwards
            return tensor[:vertices, ::-2]
        case 7:  # windows inside one vertex that overlap
            return Tensor(tensor.variable, 1, (vertices, 3, 4), (9, 2, 1))
        case 3:  # columns
            return tensor.T[:vertices, 1:]
        case 4:  # pairs of vertices share
            return tensor.variable, np.repeat(rng.integers(0, tensor.size, (vertices // 2, 3)), 2, axis=0)
        case _:
            return tensor.variable, rng.integers(0, tensor.size, (vertices, 4))


@pytest.mark.parametrize("seed", range(60))
def test_compute_sets_agree_with_brute_force(seed: int, brute: SimpleNamespace) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph(TARGET)
    sources = [variable(graph, rng, (8, 9), f"a{i}") for i in range(2)]
    out = variable(graph, rng, (20, 6), "out")
    cs = graph.add_compute_set("random")
    for i in range(int(rng.integers(1, 4))):
        vertices = 2 * int(rng.integers(1, 4))
        operand = random_operand(rng, sources[rng.integers(0, 2)], vertices)
        rows = out[6 * i : 6 * i + vertices]
        codelet = [Block, Whole][rng.integers(0, 2)]
        graph.add_vertices(cs, codelet, rng.integers(0, 7, vertices), {"a": operand, "out": rows})
    for row in (18, 19):
        tile = int(rng.integers(0, 7))
        graph.add_vertex(cs, InPlace, tile, {"x": out[row, 1:4], "b": sources[0][row - 18, :3].broadcast_to(3)})
    engine = Engine(graph, Execute(cs))
    groups = cs.all_groups(TARGET.tiles)
    account = engine.profile().steps[0].account
    for counted, expected in (
        (account.gather, brute.gather(groups, TARGET)),
        (account.scatter, brute.scatter(groups, TARGET)),
    ):
        np.testing.assert_array_equal(counted.received, expected.received)
        np.testing.assert_array_equal(counted.sent, expected.sent)
        np.testing.assert_array_equal(counted.shared, expected.shared)
    cycles = [5 + np.arange(g.vertices) if g.codelet is not InPlace else np.array(11) for g in groups]
    np.testing.assert_array_equal(account.compute, brute.compute_cycles(groups, cycles, TARGET))
    np.testing.assert_array_equal(account.memory["gathered operands"], account.gather.received)


def random_view(rng: Generator, tensor: Tensor) -> Tensor:
    """A 3 x 4 view."""
    views = [
        tensor[2:5, 1:5],
        tensor[6:0:-2, ::-2][:, :4],
        tensor.T[:3, 2:6],
        tensor[3, 1:5].broadcast_to(3, 4),
        tensor.T[4:1:-1, 1:8:2],
        tensor.flatten()[7:19].reshape(3, 4),
        tensor[1, 2].broadcast_to(3, 4),
    ]
    return views[rng.integers(0, len(views))]


@pytest.mark.parametrize("seed", range(60))
def test_copies_agree_with_brute_force(seed: int, brute: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    # In parts as copies of millions of runs are counted.
    monkeypatch.setattr(exchange, "MOST_RUNS", 1 + seed % 4)
    rng = np.random.default_rng(seed)
    graph = Graph(TARGET)
    a, b = (variable(graph, np.random.default_rng(5), (9, 10), name) for name in "ab")
    b.variable.pieces.clear()
    graph.map_intervals(b, [0, 11, 30, 31, 60], rng.integers(0, 7, 5))
    source, destination = random_view(rng, a), random_view(rng, b)
    copy = Copy(source, destination)
    if 0 in destination.strides:
        with pytest.raises(DataRace, match="twice"):
            Engine(graph, copy)
        return
    engine = Engine(graph, copy)
    account = engine.profile().steps[0].account
    traffic, local = brute.copied(source, destination, TARGET)
    for counted, expected in zip(account.gather, traffic, strict=True):
        np.testing.assert_array_equal(counted, expected)
    values = rng.integers(0, 100, (9, 10)).astype(np.float32)
    engine.write(a, values)
    engine.run()
    flat = np.zeros(90)
    flat[destination.indices()] = values.ravel()[source.indices()]
    np.testing.assert_array_equal(engine.read(b), flat.reshape(9, 10))
    slowest = 120 + -(-int(local.max()) // 8) if local.any() else 0
    assert account.compute_cycles == slowest


def test_a_copy_onto_itself_is_refused_where_it_overlaps() -> None:
    graph = Graph(TARGET)
    a = graph.add_variable("float32", (10,), "a")
    graph.set_tile_mapping(a, 0)
    Engine(graph, Copy(a[:5], a[5:]))
    with pytest.raises(DataRace, match="element 5 of a"):
        Engine(graph, Copy(a[1:6], a[5:]))


def test_what_a_tile_of_the_pair_holds_is_not_received_by_both() -> None:
    graph = Graph(TARGET)
    a = graph.add_variable("float32", (30,), "a")
    out = graph.add_variable("float32", (2, 1), "out")
    graph.map_intervals(a, [0, 10, 15], [5, 2, 3])
    graph.map_intervals(out, [0, 1], [2, 3])
    cs = graph.add_compute_set()
    graph.add_vertices(cs, Block, [2, 3], {"a": a.broadcast_to(2, 30), "out": out})
    gather = Engine(graph, Execute(cs)).profile().steps[0].account.gather
    assert gather.received[2:4].tolist() == [100, 60]
    assert gather.shared[2:4].tolist() == [40, 40]
    assert gather.sent[[2, 3, 5]].tolist() == [20, 60, 40]


def test_supertiles_share_what_both_receive() -> None:
    graph = Graph(TARGET)
    a = graph.add_variable("float32", (200,), "a")
    out = graph.add_variable("float32", (2, 1), "out")
    graph.set_tile_mapping(a, 5)
    graph.map_intervals(out, [0, 1], [2, 3])
    cs = graph.add_compute_set()
    graph.add_vertices(cs, Block, [2, 3], {"a": a.broadcast_to(2, 200), "out": out})
    account = Engine(graph, Execute(cs)).profile().steps[0].account
    assert account.gather.received[2:4].tolist() == [800, 800]
    assert account.gather.sent[5] == 800
    assert account.exchange_cycles == 100 + 200  # the sender's 800 bytes decide
    assert account.gather._replace(sent=0 * account.gather.sent).cycles(TARGET) == 100 + 100
