"""Optional fields and static values: one declaration, a program for each choice, told apart where programs are."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.graph import Codelet, Execute, Graph, Input, Output, Param, Static, Tensor
from ipu_core.graph.codelet import declared_fields, declared_params, declared_statics, variant
from ipu_core.library.elementwise import ElementwiseVertex
from ipu_core.library.matmul.chains import MatmulChains, MaxChains, SumParts
from lowprec import float16 as FLOAT16

CHIP = Target("gc200", tiles=4)


class Add(Codelet):
    """x + y, or twice x, times a power."""

    x = Input("float32", ndim=1)
    y = Input("float32", ndim=1, optional=True)
    out = Output("float32", ndim=1)
    more = Param(0.0)
    power = Static(1)

    def compute(self) -> None:
        self.out = (self.x + (self.x if self.y is None else self.y)) ** self.power + np.asarray(self.more)[..., None]

    def cycles(self, target: Target) -> int:
        return 10 if self.y is None else 20 * self.power


class Program:
    """Vertices of Add, on tiles of their own, that write parts of one variable."""

    def __init__(self) -> None:
        self.graph = Graph(CHIP)
        self.set = self.graph.add_compute_set("cs")
        self.x, self.y = (self.variable(name, 8) for name in "xy")
        self.out = self.variable("out", 64)

    def variable(self, name: str, size: int) -> Tensor:
        tensor = self.graph.add_variable("float32", (size,), name)
        self.graph.set_tile_mapping(tensor, 0)
        return tensor

    def fields(self, at: int, y: bool) -> dict[str, Tensor]:
        return {"x": self.x, "out": self.out[8 * at : 8 * at + 8]} | ({"y": self.y} if y else {})

    def run(self) -> tuple[Any, Engine]:
        engine = Engine(self.graph, Execute(self.set))
        engine.write(self.x, np.arange(8, dtype=np.float32))
        engine.write(self.y, np.full(8, 3, np.float32))
        engine.run()
        return np.asarray(engine.read(self.out)).reshape(8, 8), engine


def test_vertices_compute_and_cost_by_the_fields_and_static_values_they_are_given() -> None:
    made = Program()
    for at, (y, params) in enumerate(((True, {}), (False, {"power": 3}), (True, {"power": 2, "more": 1.0}))):
        bulk = {name: tensor.reshape(1, 8) for name, tensor in made.fields(at, y).items()}
        made.graph.add_vertices(made.set, Add, [at], bulk, params)
    found, engine = made.run()
    x = np.arange(8.0)
    np.testing.assert_array_equal(found[:3], [x + 3, (2 * x) ** 3, (x + 3) ** 2 + 1])
    assert engine.profile().compute_cycles == 40 * CHIP.workers  # of the slowest tile


def test_vertices_added_one_by_one_are_grouped_by_what_they_are_compiled_for() -> None:
    made = Program()
    for at, (y, params) in enumerate(
        ((True, {}), (False, {}), (True, {"power": 2}), (True, {"power": 1}), (False, {}))
    ):
        vertex = made.graph.add_vertex(made.set, Add, 0, made.fields(at, False), params)
        if y:
            made.graph.connect(vertex, "y", made.y)
    groups = made.set.all_groups(4)
    assert sorted((g.codelet.__name__, *g.operands, g.vertices) for g in groups) == [
        ("Add", "x", "out", 2),
        ("Add", "x", "y", "out", 2),
        ("Add<power=2>", "x", "y", "out", 1),
    ]
    x = np.arange(8.0)
    np.testing.assert_array_equal(made.run()[0][:5], [x + 3, 2 * x, (x + 3) ** 2, x + 3, 2 * x])


def test_every_program_has_its_code_and_static_values_lie_in_no_state() -> None:
    def memory(*given: tuple[bool, dict[str, int]]) -> tuple[int, int]:
        made = Program()
        for at, (y, params) in enumerate(given):
            made.graph.add_vertex(made.set, Add, 0, made.fields(at, y), {"more": 0.0, **params})
        found = made.run()[1].memory.categories
        return found["code"], found["vertex state"]

    without, whole = 4 + 2 * 8 + 4, 4 + 3 * 8 + 4  # list entry, fields with pointer and length, one parameter
    assert memory((True, {})) == (512, whole)
    assert memory((False, {"power": 7})) == (512, without)
    assert memory((True, {}), (True, {"power": 1})) == (512, 2 * whole)
    assert memory((True, {}), (True, {"power": 2})) == (1024, 2 * whole)
    assert memory((True, {}), (False, {})) == (1024, whole + without)
    assert memory((True, {}), (False, {}), (False, {"power": 2}), (False, {"power": 2})) == (1536, whole + 3 * without)


def test_a_program_is_one_class_and_a_subclass_of_its_codelet() -> None:
    assert variant(Add, ("x", "y", "out"), {}) is variant(Add, ("x", "y", "out"), {"power": 1}) is Add
    one = variant(Add, ("x", "out"), {"power": 2})
    assert one is variant(Add, ("x", "out"), {"power": 2})
    assert one is not variant(Add, ("x", "out"), {"power": 3})
    assert issubclass(one, Add)
    assert (one.__name__, one.__module__, one.__doc__) == ("Add<power=2>", __name__, Add.__doc__)
    assert list(declared_fields(one)) == ["x", "out"]
    assert (list(declared_params(one)), declared_statics(one)) == (["more"], {})
    assert (one.power, Add.power) == (2, 1)


def test_programs_go_with_their_codelet() -> None:
    class Own(Add):
        pass

    there = weakref.ref(variant(Own, ("x", "out"), {"power": 5}))
    assert there() is not None
    del Own
    gc.collect()
    assert there() is None


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"y": 3.0}, ValueError, "Add in compute set 'cs' has no parameter 'y'; it has more, power"),
    ({"power": [1]}, TypeError, r"Add: static values must have a hash; given are \{'power': \[1\]\}"),
    ({"power": np.ones(2)}, TypeError, "Add: static values must have a hash"),
]


@pytest.mark.parametrize(("params", "error", "words"), BAD)
def test_bad_static_values_are_refused(params: dict[str, Any], error: type[Exception], words: str) -> None:
    made = Program()
    fields = {name: tensor.reshape(1, 8) for name, tensor in made.fields(0, True).items()}
    with pytest.raises(error, match=words):
        made.graph.add_vertices(made.set, Add, [0], fields, params)


def test_a_field_that_is_not_optional_must_be_given() -> None:
    made = Program()
    with pytest.raises(ValueError, match="Add in compute set 'cs': field 'x' is not given"):
        made.graph.add_vertices(made.set, Add, [0], {"out": made.out[:8].reshape(1, 8)})


def test_what_rounds_stochastically_uses_the_key_and_nothing_else_does() -> None:
    for codelet, fields in ((ElementwiseVertex, "x"), (MatmulChains, ("a", "b", "partial")), (SumParts, "parts")):
        nearest, drawn = (variant(codelet, fields, {"stochastic": drawn}) for drawn in (False, True))
        assert (nearest.uses_key, drawn.uses_key, codelet.uses_key) == (False, True, False)
        assert (nearest().rounding.mode, drawn().rounding.mode) == ("nearest_even", "stochastic")
        assert drawn.__name__ == f"{codelet.__name__}<stochastic>"
    assert not MaxChains.uses_key


@pytest.mark.parametrize("wrong", [-1, 1.5, "5", None])
def test_bytes_of_code_are_a_whole_number(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Wrong\.code_bytes must be an integer"):
        type("Wrong", (Codelet,), {"code_bytes": wrong})


NAMES = [
    "code_bytes",
    "compute",
    "control",
    "converts",
    "cycles",
    "draws",
    "key",
    "prepare",
    "scratch",
    "supervisor",
    "target",
    "trusted",
    "uses_key",
]


@pytest.mark.parametrize("declared", [Input("float32"), Output("float32"), Param(1), Static(1)])
@pytest.mark.parametrize("name", [*NAMES, "_assign", "_prepared", "_variants"])
def test_names_that_every_codelet_has_are_for_no_field(name: str, declared: Any) -> None:
    kind = type(declared).__name__
    with pytest.raises(ValueError, match=rf"Wrong\.{name}: the {kind} needs another name.* its own {', '.join(NAMES)}"):
        type("Wrong", (Codelet,), {name: declared})


@pytest.mark.parametrize("kind", [Input, Output, Param, Static])
def test_fields_are_made_of_their_classes(kind: type) -> None:
    with pytest.raises(TypeError, match=rf"Wrong\.x is the class {kind.__name__}: declare {kind.__name__}\(\.\.\.\)"):
        type("Wrong", (Codelet,), {"x": kind})


@pytest.mark.parametrize(
    ("given", "full"),
    [("fp16", "float16"), ("half", "float16"), ("fp32", "float32"), (np.float32, "float32"), (FLOAT16, "float16"),
     ("e4m3", "float8_e4m3fn"), ("int32", "int32"), ("bool", "bool"), (None, None)],
)  # fmt: skip
def test_a_field_takes_every_name_of_a_format(given: Any, full: str | None) -> None:
    assert Input(given).format == full
    if full is not None:
        graph = Graph(CHIP)
        y = graph.add_variable(full, (2,), "y")
        codelet = type("Own", (Codelet,), {"y": Output(given, ndim=1)})
        graph.add_vertices(graph.add_compute_set(), codelet, [0], {"y": y[None]})


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [("float", ValueError, "unknown format 'float': did you mean float64 or float32.* names int32, uint32, bool"),
     ("int16", ValueError, "unknown format 'int16'.* names int32, uint32, bool"),
     (3, TypeError, "3 is no floating-point format; give .* names int32, uint32, bool"),
     ("e7m9", ValueError, "has no storage dtype: a variable cannot hold it")],
)  # fmt: skip
def test_other_formats_of_fields_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Input(given)
