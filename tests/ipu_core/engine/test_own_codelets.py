"""Codelets as users write them: what they may assign, what they must write, what is raised, what they draw."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from ipu_core import library
from ipu_core.chip import tile
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.errors import FloatingPointException
from ipu_core.graph import Codelet, Execute, Graph, InOut, Input, Output, Param, Repeat, Sequence
from tests.ipu_core.engine.codelets import on_tile_0

CHIP = Target("gc200", tiles=8)
pytestmark = pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
Compute = Callable[[Any], None]


def codelet(compute: Compute, **declared: Any) -> type[Codelet]:
    return type("Own", (Codelet,), {"compute": compute, "cycles": lambda self, target: 1, **declared})


def giving(value: Callable[[Any], Any]) -> Compute:
    def compute(self: Any) -> None:
        self.y = value(self)

    return compute


class Rows:
    """A vertex for each row of x, which writes a row of y."""

    def __init__(
        self, compute: Compute, fmt: str = "float32", *, given: str = "float32", field: Any = Output, **more: Any
    ) -> None:
        self.graph = Graph(CHIP)
        self.x, self.y = on_tile_0(self.graph, given, (3, 4), "x"), on_tile_0(self.graph, fmt, (3, 4), "y")
        self.set = self.graph.add_compute_set("rows")
        own = codelet(compute, x=Input(given, ndim=1), y=field(fmt, ndim=1), **more)
        self.graph.add_vertices(self.set, own, np.arange(3), {"x": self.x, "y": self.y})

    def run(self, x: Any = 1.0, control: Any = None, runs: int = 1, **options: Any) -> np.ndarray:
        engine = Engine(self.graph, Execute(self.set), control, **options)
        engine.write(self.x, np.broadcast_to(np.asarray(x), (3, 4)))
        for _ in range(runs):
            engine.run()
        return engine.read(self.y)


SHAPES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda v: v.x[0], r"shape \(4,\)"),
    (lambda v: v.x[:, :1], r"shape \(3, 1\)"),
    (lambda v: v.x.sum(axis=-1), r"shape \(3,\)"),
    (lambda v: v.x[..., None], r"shape \(3, 4, 1\)"),
    (lambda v: np.asarray(v.x).sum(), r"np.float32\(12.0\), as a sum over the vertices too would be"),
    (lambda v: np.array(3.0), r"array\(3.\), as a sum"),
    (lambda v: [1.0, 2.0, 3.0, 4.0], r"shape \(4,\)"),
]


@pytest.mark.parametrize(("value", "words"), SHAPES)
def test_another_shape_than_the_vertices_is_refused(value: Callable[[Any], Any], words: str) -> None:
    expected = rf"Own\.y takes shape \(3, 4\), the vertices first, or one Python number .*; compute assigned {words}"
    with pytest.raises(ValueError, match=expected):
        Rows(giving(value)).run()


@pytest.mark.parametrize("number", [2, 2.5, True])
def test_one_python_number_is_for_all(number: float) -> None:
    assert (Rows(giving(lambda v: number)).run() == number).all()


@pytest.mark.parametrize("value", [1j, "3", None, [["a"] * 4] * 3, np.ones((3, 4), np.complex64)])
def test_what_is_no_real_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Own\.y takes real numbers; compute assigned"):
        Rows(giving(lambda v: value)).run()


def test_integers_take_no_floats_and_wrap() -> None:
    with pytest.raises(TypeError, match=r"Own\.y holds int32; compute assigned float32: say how it becomes one"):
        Rows(giving(lambda v: v.x), "int32").run(1.5)
    wide = Rows(giving(lambda v: v.x.astype(np.int64) * 2**31 + 5), "int32").run(3)
    assert (wide == 5 - 2**31).all()
    assert Rows(giving(lambda v: v.x > 1), "int32").run(2).all()
    assert Rows(giving(lambda v: v.x > 1), "float16").run(2).all()
    with pytest.raises(ValueError, match=r"Own\.y holds int32; compute assigned 4294967296"):
        Rows(giving(lambda v: 2**32), "int32").run()


def nothing(self: Any) -> None:
    pass


def half(self: Any) -> None:
    self.y[..., 1:3] = self.x[..., 1:3]


def added(self: Any) -> None:
    self.y[...] = self.y + self.x


@pytest.mark.parametrize("fmt", ["float32", "float16", "int32", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize(("compute", "left", "at"), [(nothing, 12, r"\[0, 0\]"), (half, 6, r"\[0, 0\]")])
def test_an_output_is_written_whole(compute: Compute, left: int, at: str, fmt: str) -> None:
    rows = Rows(compute, fmt)
    engine = Engine(rows.graph, Execute(rows.set))
    engine.write(rows.y, np.ones((3, 4), np.int32))
    with pytest.raises(ValueError, match=rf"Own\.y: compute leaves {left} of 12 elements unwritten.*first is {at}"):
        engine.run()
    assert (engine.read(rows.y) == 1).all()


@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_an_output_has_nothing_to_be_read(fmt: str) -> None:
    with pytest.raises(ValueError, match=r"Own\.y: compute leaves 12 of 12 elements unwritten, or makes them of"):
        Rows(added, fmt).run()


@pytest.mark.parametrize("fmt", ["float32", "int32"])
def test_an_operator_in_place_is_for_inouts(fmt: str) -> None:
    def compute(self: Any) -> None:
        self.y += 1

    with pytest.raises(AttributeError, match=r"Own\.y: an operator in place reads what an Output does not have"):
        Rows(compute, fmt).run()
    assert (Rows(compute, fmt, field=InOut).run(runs=3) == 3).all()


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "int32", "uint32", "float32"])
@pytest.mark.parametrize("kind", [Output, InOut])
@pytest.mark.parametrize("randomly", [False, True])
def test_a_codelet_that_writes_an_engines_marks_is_run_again_as_it_was(fmt: str, kind: Any, randomly: bool) -> None:
    """Its outputs are what they would be without: InOuts, and the tiles' generators, as they were."""
    size = np.dtype(lp.as_format(fmt).dtype if "float" in fmt else fmt).itemsize
    codes = {1: [0xA5, 0x5A], 4: [0x7FE5A5A5, 0xFFDA5A5A]}[size]
    marks = np.array([codes * 2] * 3, f"u{size}").view(lp.as_format(fmt).dtype if "float" in fmt else fmt)
    calls = []

    def compute(self: Any) -> None:
        calls.append(None)
        self.y[...] = marks
        self.n += 1
        self.drawn = self.draws.words((3, 4)).astype(np.int32) if randomly else self.n

    graph = Graph(CHIP)
    y, n, drawn = (on_tile_0(graph, form, (3, 4), name) for form, name in ((fmt, "y"), ("int32", "n"), ("int32", "d")))
    own = codelet(
        compute, y=kind(fmt, ndim=1), n=InOut("int32", ndim=1), drawn=Output("int32", ndim=1), uses_key=randomly
    )
    cs = graph.add_compute_set()
    graph.add_vertices(cs, own, [0, 1, 2], {"y": y, "n": n, "drawn": drawn})
    state = HardwareRandom((1, 2)).state(CHIP.tiles, CHIP.workers) if randomly else None
    engine = Engine(graph, Execute(cs), random=state)
    engine.run()
    assert engine.read(y).tobytes() == marks.tobytes()
    assert (engine.read(n) == 1).all()
    assert len(calls) == (2 if kind is Output else 1)
    if randomly:
        other = Engine(graph, Execute(cs), random=state)
        expected = lp_words(other)
        np.testing.assert_array_equal(engine.read(drawn), expected)
    engine.run()
    assert (engine.read(n) == 2).all()
    assert len(calls) == (3 if kind is Output else 2)


def lp_words(engine: Engine) -> Any:
    return engine._random.draw(np.arange(3), 4).astype(np.int32)  # type: ignore[union-attr]


def test_kernels_and_slices_may_write_an_output() -> None:
    def compute(self: Any) -> None:
        np.add(self.x, 1, out=self.y)
        self.y[..., 0] = 7

    assert Rows(compute).run(1)[0].tolist() == [7, 2, 2, 2]


MISSPELT = [
    ("z", r"Own\.z is no field; those that compute may assign are y\. Others are set in prepare"),
    ("a", r"Own\.a was set when the vertices were added; what changes from run to run is an InOut"),
    ("key", r"Own\.key is no field; those that compute may assign are y"),
    ("extra", r"Own\.extra: these vertices go without that optional field: assign it where it is not None"),
]


@pytest.mark.parametrize(("name", "words"), MISSPELT)
def test_compute_assigns_outputs_alone(name: str, words: str) -> None:
    def compute(self: Any) -> None:
        self.y = self.x
        setattr(self, name, self.x)

    with pytest.raises(AttributeError, match=words):
        Rows(compute, a=Param(0), extra=Output("float32", optional=True)).run()


def test_compute_may_keep_what_prepare_has_set() -> None:
    def prepare(self: Any) -> None:
        self.count = 0

    def compute(self: Any) -> None:
        self.count = self.count + 1
        self.y = self.count

    assert (Rows(compute, prepare=prepare).run(runs=3) == 3).all()


def test_a_gathered_input_cannot_be_written() -> None:
    def compute(self: Any) -> None:
        self.x[...] = 7

    graph = Graph(CHIP)
    x = on_tile_0(graph, "float32", (4,), "x")
    cs = graph.add_compute_set()
    graph.add_vertices(cs, codelet(compute, x=Input("float32", ndim=1)), [0], {"x": (x, [[0, 3, 1, 2]])})
    with pytest.raises(ValueError, match="read-only"):
        Engine(graph, Execute(cs)).run()


RAISES: list[tuple[str, str, str, Callable[[Any], Any], float, str]] = [
    ("oflo", "float32", "float16", lambda v: v.x, 7e4, r"Own\.y: overflow: a value beyond 65504 in the conversion"),
    ("oflo", "float32", "float32", lambda v: v.x.astype(np.float64) * 1e30, 1e30, r"Own\.y: overflow: a value beyond"),
    ("oflo", "float32", "float8_e4m3fn", lambda v: v.x, 500.0, r"Own\.y: overflow: a value beyond 448"),
    ("oflo", "float32", "float16", lambda v: v.x.astype(np.int32), 7e4, r"Own\.y: overflow"),
    ("oflo", "float32", "float32", lambda v: v.x * v.x, 1e30, "Own: overflow encountered in multiply"),
    ("oflo", "float16", "float16", lambda v: v.x * v.x, 1e4, "Own: overflow encountered in multiply"),
    ("div0", "float32", "float32", lambda v: 1 / v.x, 0.0, "Own: divide by zero encountered"),
    ("inv", "float32", "float32", lambda v: np.sqrt(v.x), -1.0, "Own: invalid value encountered in sqrt"),
    ("inv", "float32", "float32", lambda v: lp.divide(v.x, v.x, "float32"), 0.0,
     "Own: invalid operation: NaN from vertex 0"),
]  # fmt: skip


@pytest.mark.parametrize(("enabled", "given", "fmt", "value", "x", "words"), RAISES)
def test_an_enabled_exception_stops_the_run_and_others_do_not(
    enabled: str, given: str, fmt: str, value: Callable[[Any], Any], x: float, words: str
) -> None:
    rows = Rows(giving(value), fmt, given=given)
    with pytest.raises(FloatingPointException, match=f"{words}.*, in rows"):
        rows.run(x, FloatingPointControl(**{enabled: True}))
    with np.errstate(all="ignore"):
        plain = rows.run(x)
        others = dict.fromkeys({"oflo", "div0", "inv"} - {enabled}, True)
        assert rows.run(x, FloatingPointControl(**others)).tobytes() == plain.tobytes()
    assert rows.run(1.0, FloatingPointControl(inv=True, div0=True, oflo=True)).tobytes() == rows.run(1.0).tobytes()


def test_an_overflow_to_nan_is_invalid() -> None:
    rows = Rows(giving(lambda v: v.x), "float16")
    with pytest.raises(FloatingPointException, match=r"Own\.y: invalid operation: NaN in the conversion to float16"):
        rows.run(7e4, FloatingPointControl(inv=True, nanoo=True))


def test_a_nan_that_a_vertex_was_given_raises_nothing_and_one_beside_it_does() -> None:
    x = np.ones((3, 4), np.float32)
    x[1, 2] = np.nan
    both = FloatingPointControl(inv=True, oflo=True)
    assert np.isnan(Rows(giving(lambda v: v.x * 2)).run(x, both)[1, 2])
    x[2, 0] = 0

    def quietly(v: Any) -> Any:
        with np.errstate(all="ignore"):
            return v.x / v.x

    with pytest.raises(FloatingPointException, match="NaN from vertex 2, which was given none"):
        Rows(giving(quietly)).run(x, both)
    infinite = Rows(giving(lambda v: v.x), "float16")
    assert (infinite.run(np.inf, both) == 65504).all()  # a finite operand overflows, an infinity is none


def test_a_nan_among_parameters_or_in_an_inout_was_given() -> None:
    inv = FloatingPointControl(inv=True)
    graph = Graph(CHIP)
    y = on_tile_0(graph, "float32", (3, 4), "y")

    def compute(self: Any) -> None:
        self.y = self.y * self.a

    cs = graph.add_compute_set()
    own = codelet(compute, y=InOut("float32", ndim=1), a=Param())
    for row, value in enumerate((1.0, np.nan, 2.0)):
        graph.add_vertex(cs, own, row, {"y": y[row]}, {"a": value})
    engine = Engine(graph, Execute(cs), inv)
    values = np.ones((3, 4))
    values[0, 0] = np.nan
    engine.write(y, values)
    engine.run()
    assert np.isnan(engine.read(y)).sum(axis=1).tolist() == [1, 4, 0]


def test_assignment_to_bytes_goes_by_way_of_half_as_on_the_tile() -> None:
    values = np.array([17.0 + 1 / 128, 1.0625 + 2**-14, -1.0625, 0.3], np.float32)
    found = Rows(giving(lambda v: v.x), "float8_e4m3fn").run(values)[0]
    kernel = tile.elementwise("identity", ["float32"], "float8_e4m3fn", lp.Rounding(), FloatingPointControl())
    expected = kernel((values,), None, 0, np.empty(4, found.dtype))
    assert found.tobytes() == expected.tobytes()
    assert found[0] == 16


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_the_tiles_generators_round_halves_alone(fmt: str) -> None:
    state = HardwareRandom((1, 2)).state(CHIP.tiles, CHIP.workers)
    rows, x = Rows(giving(lambda v: v.x), fmt), 1000.0 if fmt == "float8_e4m3fn" else 1 + 2.0**-9
    found = rows.run(x, FloatingPointControl(esr=True), random=state)
    assert found.tobytes() == rows.run(x).tobytes()


def test_outputs_of_one_vertex_round_by_bits_of_their_own() -> None:
    def compute(self: Any) -> None:
        self.y = self.x
        self.z = self.x

    graph = Graph(CHIP)
    x = on_tile_0(graph, "float32", (64,), "x")
    y, z = (on_tile_0(graph, "float16", (64,), name) for name in "yz")
    own = codelet(compute, x=Input("float32", ndim=1), y=Output("half", ndim=1), z=Output("half", ndim=1))
    cs = graph.add_compute_set()
    graph.add_vertex(cs, own, 0, {"x": x, "y": y, "z": z})
    engine = Engine(graph, Execute(cs), FloatingPointControl(esr=True), key=0)
    engine.write(x, np.full(64, 1 + 2.0**-11))
    engine.run()
    assert not np.array_equal(engine.read(y), engine.read(z))


def draw(self: Any) -> None:
    self.y = lp.random_bits(self.key, self.y.shape, 16).astype(np.float32)


def test_vertices_of_other_shapes_draw_bits_of_their_own() -> None:
    graph = Graph(CHIP)
    y = on_tile_0(graph, "float32", (20,), "y")
    cs, own = graph.add_compute_set(), codelet(draw, y=Output("float32", ndim=1), uses_key=True)
    for start, end in ((0, 8), (8, 16), (16, 20)):
        graph.add_vertex(cs, own, 0, {"y": y[start:end]})
    engine = Engine(graph, Execute(cs), key=0)
    engine.run()
    assert len(set(engine.read(y).tolist())) == 20
    first = engine.read(y)
    again = Engine(graph, Execute(cs), key=0)
    again.run()
    np.testing.assert_array_equal(again.read(y), first)


def test_vertices_draw_anew_in_every_run_and_every_round() -> None:
    graph = Graph(CHIP)
    y, last = on_tile_0(graph, "float32", (8,), "y"), on_tile_0(graph, "float32", (8,), "last")

    def keep(self: Any) -> None:
        draw(self)
        self.sum = self.sum + self.y

    own = codelet(keep, y=Output("float32", ndim=1), sum=InOut("float32", ndim=1), uses_key=True)
    cs = graph.add_compute_set()
    vertex = graph.add_vertex(cs, own, 0, {"y": y, "sum": last})
    engine = Engine(graph, [Repeat(3, Execute(cs)), Sequence(Execute(cs), Execute(cs))], key=5)

    def bits(key: lp.Key) -> np.ndarray:
        return lp.random_bits(key.fold_in(vertex.operation), (1, 8), 16)[0].astype(np.float32)

    engine.run(0)
    run = lp.Key(5).fold_in(0)
    rounds = [bits(run), bits(run.fold_in((1 << 32) + 1)), bits(run.fold_in((1 << 32) + 2))]
    np.testing.assert_array_equal(engine.read(last), sum(rounds))
    engine.write(last, np.zeros(8))
    engine.run(1)
    np.testing.assert_array_equal(engine.read(last), 2 * bits(lp.Key(5).fold_in(1)))


def test_parameters_of_the_vertices_own_take_part_by_the_vertex() -> None:
    """As many vertices as elements: NumPy alone would take the wrong ones, without a word."""
    graph = Graph(CHIP)
    x, y = on_tile_0(graph, "float32", (3, 3), "x"), on_tile_0(graph, "float32", (3, 3), "y")
    own = codelet(giving(lambda v: v.x * v.a + v.b), x=Input(ndim=1), y=Output(ndim=1), a=Param(), b=Param(0.0))
    cs = graph.add_compute_set()
    for row in range(3):
        graph.add_vertex(cs, own, row, {"x": x[row], "y": y[row]}, {"a": row + 1.0})
    engine = Engine(graph, Execute(cs))
    engine.write(x, np.arange(9).reshape(3, 3))
    engine.run()
    np.testing.assert_array_equal(engine.read(y), np.arange(9).reshape(3, 3) * [[1], [2], [3]])


@pytest.mark.parametrize("bulk", [False, True])
def test_a_parameter_has_32_bits_however_vertices_were_added(bulk: bool) -> None:
    graph = Graph(CHIP)
    x, y = on_tile_0(graph, "float32", (3, 99), "x"), on_tile_0(graph, "float32", (3, 99), "y")
    own = codelet(giving(lambda v: v.x * v.a), x=Input(ndim=1), y=Output(ndim=1), a=Param())
    cs = graph.add_compute_set()
    if bulk:
        graph.add_vertices(cs, own, [0, 1, 2], {"x": x, "y": y}, {"a": 0.1})
    else:
        for row in range(3):
            graph.add_vertex(cs, own, row, {"x": x[row], "y": y[row]}, {"a": 0.1})
    engine, values = Engine(graph, Execute(cs)), np.random.default_rng(0).normal(size=(3, 99)).astype(np.float32)
    engine.write(x, values)
    engine.run()
    np.testing.assert_array_equal(engine.read(y), values * np.float32(0.1))


def test_numbers_of_the_vertices_take_part_by_the_vertex_in_every_expression() -> None:
    graph = Graph(CHIP)
    x, y, s = (on_tile_0(graph, "float32", shape, name) for name, shape in (("x", (3, 3)), ("y", (3, 3)), ("s", (3,))))

    def compute(self: Any) -> None:
        self.y = self.x * (1 - self.s) + (self.s + self.x.max(axis=-1)) * self.a - self.x.sum(axis=-1)

    own = codelet(compute, x=Input(ndim=1), s=Input(), y=Output(ndim=1), a=Param())
    cs = graph.add_compute_set()
    graph.add_vertices(cs, own, [0, 1, 2], {"x": x, "y": y, "s": s}, {"a": np.array([2.0, 3.0, 5.0])})
    engine, values = Engine(graph, Execute(cs)), np.arange(9, dtype=np.float32).reshape(3, 3)
    engine.write(x, values)
    engine.write(s, [4, 8, 16])
    engine.run()
    each, a = np.array([[4], [8], [16]]), np.array([[2], [3], [5]])
    expected = values * (1 - each) + (each + values[:, 2:]) * a - values.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(engine.read(y), expected)


TOGETHER: list[Callable[[Any], Any]] = [
    lambda v: v.x / v.x.sum(),
    lambda v: v.x - np.mean(v.x, axis=0),
    lambda v: v.x / np.exp(v.x).max(),
    lambda v: np.cumsum(np.add(v.x, 1).sum(axis=(0, 1))) + v.x,
    lambda v: np.add.reduce(v.x) + v.x,
]


@pytest.mark.parametrize("value", TOGETHER)
def test_vertices_are_not_taken_together(value: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"takes vertices together.*: give the vertices' own axes, as axis=-1"):
        Rows(giving(value)).run()


def test_vertices_without_elements() -> None:
    graph = Graph(CHIP)
    x, y, z = (on_tile_0(graph, "float32", shape, name) for name, shape in (("x", (3, 0)), ("y", (3,)), ("z", (3, 0))))

    def compute(self: Any) -> None:
        self.y = self.x.sum(axis=-1)
        self.z = self.x

    own = codelet(compute, x=Input(ndim=1), y=Output(), z=Output(ndim=1))
    cs = graph.add_compute_set()
    graph.add_vertices(cs, own, [0, 1, 2], {"x": x, "y": y, "z": z})
    graph.add_vertices(cs, own, np.zeros(0, int), {"x": x[:0], "y": y[:0], "z": z[:0]})
    engine = Engine(graph, Execute(cs), FloatingPointControl(inv=True, oflo=True, div0=True))
    engine.write(y, np.ones(3))
    engine.run()
    assert engine.read(y).tolist() == [0, 0, 0]


@pytest.mark.parametrize("given", [[1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), np.array([[1.0], [2.0], [3.0]])])
def test_numbers_of_the_vertices_may_be_given_as_a_list(given: Any) -> None:
    rows = Rows(giving(lambda v: v.x * v.a), a=Param(given))
    np.testing.assert_array_equal(rows.run(), np.repeat([[1.0], [2.0], [3.0]], 4, axis=1))


def test_several_numbers_for_all_vertices_are_a_tuple() -> None:
    rows = Rows(giving(lambda v: v.x * v.a), a=Param((1, 2, 3, 4)))
    np.testing.assert_array_equal(rows.run(), [[1, 2, 3, 4]] * 3)
    for wrong in (np.arange(4.0), [1, 2, 3, 4], np.ones(())):
        with pytest.raises(
            ValueError, match=r"parameter 'a' has shape .*which does not begin with the vertex axes \(3,"
        ):
            Rows(giving(lambda v: v.x * v.a), a=Param(wrong))


def test_a_codelet_that_rounds_by_itself_assigns_values_of_the_format() -> None:
    esr = FloatingPointControl(esr=True)
    with pytest.raises(ValueError, match=r"Own\.y is float16: under esr an assigned float32 is rounded stochastically"):
        Rows(giving(lambda v: v.x), "float16", converts=False).run(1.0, esr)
    assert (Rows(giving(lambda v: v.x.astype(np.float16)), "float16", converts=False).run(1.0, esr) == 1).all()


def test_one_number_is_rounded_to_nearest_under_esr() -> None:
    esr, state = FloatingPointControl(esr=True), HardwareRandom((1, 2)).state(CHIP.tiles, CHIP.workers)
    for options in ({"key": 3}, {"random": state}):
        assert (Rows(giving(lambda v: 0.1), "float16").run(1.0, esr, **options) == np.float16(0.1)).all()


def test_this_packages_own_codelets_are_trusted() -> None:
    for module in walk_packages(library.__path__, f"{library.__name__}."):
        import_module(module.name)
    found = [Codelet]
    for kind in found:
        found += kind.__subclasses__()
    ours = {kind for kind in found if kind.__module__.startswith("ipu_core.library.")}
    assert len(ours) >= 18
    assert all(kind.trusted for kind in ours)
