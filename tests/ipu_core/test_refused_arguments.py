"""What is no argument of a call is refused at its door, in words that name it and say what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ipu_core
from ipu_core import nn
from ipu_core.graph.tensor import whole
from tests.fuzz.block_calls import block_of, machine
from tests.fuzz.machine_calls import FEW, Parts
from tests.fuzz.training_calls import loop

X = np.ones((2, 3, 4), np.float32)


def graphs() -> tuple[ipu_core.Graph, ipu_core.Graph]:
    """Two graphs, each with a compute set and variables "x" and "y" on a tile."""
    made = ipu_core.Graph("gc200"), ipu_core.Graph("gc200")
    for graph in made:
        for name in "xy":
            graph.set_tile_mapping(graph.add_variable("float32", (4,), name), 0)
        graph.add_compute_set("work")
    return made


def _foreign(program: Callable[[ipu_core.Graph], Any]) -> Callable[[], Any]:
    """An engine of one graph with a program of another."""
    one, other = graphs()
    return lambda: ipu_core.Engine(one, program(other))


def _number(fmt: str) -> ipu_core.Tensor:
    """A tensor of one element, called "n"."""
    return graphs()[0].add_variable(fmt, (), "n")


def _constant(value: float) -> Callable[[], Any]:
    return lambda: graphs()[0].add_constant("int32", [value])


def _saying(**said: Any) -> Callable[[], Any]:
    """An engine with one vertex of a codelet whose methods give these."""
    methods = {name: lambda self, target, value=value: value for name, value in {"cycles": 1, **said}.items()}
    codelet = type("Saying", (ipu_core.Codelet,), {"compute": lambda self: None, **methods})
    graph, _ = graphs()
    graph.add_vertex(graph.compute_sets[0], codelet, 0)
    return lambda: ipu_core.Engine(graph, ipu_core.Execute(graph.compute_sets[0]))


class Nothing(ipu_core.Codelet):
    def compute(self) -> None: ...

    def cycles(self, target: Any) -> int:
        return 1


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an integer constant that is none": (
        _constant(-1.5), ValueError, r"a constant of int32 holds integers of int32, not \[-1.5\]"),
    "an integer constant that is too large": (_constant(2**40), ValueError, "not .1099511627776."),
    "an integer constant that is NaN": (_constant(float("nan")), ValueError, r"not \[nan\]"),
    "a truth value as an index": (
        lambda: graphs()[0].add_variable("float32", (4,))[True], TypeError, "and None, not bool"),
    "another graph's compute set in an engine": (
        _foreign(lambda g: ipu_core.Execute(g.compute_sets[0])), ValueError, "compute set 'work' is of another graph"),
    "another graph's variable in an engine": (
        _foreign(lambda g: ipu_core.Copy(*map(whole, g.variables))), ValueError, "variable '[xy]' is of another graph"),
    "another graph's compute set for a vertex": (
        lambda: graphs()[0].add_vertex(graphs()[1].compute_sets[0], Nothing), ValueError, "'work' is of another graph"),
    **{f"cycles of {value}": (_saying(cycles=value), ValueError, "Saying.cycles must give whole numbers of at least 0")
       for value in (-1, 1.5, float("nan"), float("inf"), "a", None, True, 2**70)},
    "cycles of other vertices": (_saying(cycles=np.ones(3)), ValueError, r"Saying.cycles gives \(3,\) numbers for"),
    "less than no scratch": (_saying(scratch=-8), ValueError, "Saying.scratch must give whole numbers of at least 0"),
    "a field that no precision has": (
        lambda: ipu_core.Precision("").changed(weigths=None), TypeError, "no field 'weigths' to change; there are"),
    "a program of a text": (lambda: ipu_core.Call("x"), TypeError, "'x' is no program; programs are"),  # type: ignore[arg-type]
    "a copy without tensors": (lambda: ipu_core.Copy(1, 2), TypeError, "source must be a Tensor, not 1"),  # type: ignore[arg-type]
    "a branch on a number": (
        lambda: ipu_core.If(1, ipu_core.Sequence()), TypeError, "If needs a Tensor of one element, not 1"),  # type: ignore[arg-type]
    "a case that is no program": (
        lambda: ipu_core.Switch(Parts().flag, {0: 1}), TypeError, "1 is no program"),  # type: ignore[dict-item]
    **{f"a switch on a {kind}": (
        lambda kind=kind: ipu_core.Switch(_number(kind), {1: ipu_core.Sequence()}), ValueError,
        f"Switch needs a whole number, an int32 or uint32, not {kind} of n:{kind}")
       for kind in ("float32", "float16", "float8_e4m3", "bool")},
    "a load from a part of an entry": (
        lambda: ipu_core.RemoteLoad((p := Parts()).buffer, p.to, _number("float32")), ValueError,
        r"RemoteLoad '\w+': entry needs a whole number, an int32 or uint32, not float32 of n"),
    "a store to a part of an entry": (
        lambda: ipu_core.RemoteStore((p := Parts()).to, p.buffer, _number("float32")), ValueError,
        r"RemoteStore '\w+': entry needs a whole number, an int32 or uint32, not float32 of n"),
    "a stream of one length": (
        lambda: ipu_core.DataStream("s", "float32", 3), TypeError, "shape must be a sequence of integers, not 3"),  # type: ignore[arg-type]
    "no entries": (
        lambda: ipu_core.RemoteBuffer("b", "float32", (3,), 0), ValueError, "an integer of at least 1, not 0"),
    "a number on a tile": (
        lambda: Parts().graph.set_tile_mapping(3, 0), TypeError, "tensor must be a Tensor, not 3"),  # type: ignore[arg-type]
    "a tensor of another graph": (
        lambda: Parts().graph.set_tile_mapping(Parts().to, 0), ValueError, r"to:float32\[6\] is of another graph"),
    "starts that are halves": (
        lambda: (p := Parts()).graph.map_intervals(p.to, [0.5], [0]), TypeError, "starts must be integers"),
    "no compute sets": (lambda: Parts().graph.join([]), ValueError, "join needs a compute set at least"),
    "an entry that is not there": (
        lambda: (p := Parts()).engine().read_remote(p.buffer, 2), IndexError, r"has the entries 0\.\.1, not 2"),
    "the profile of no program": (lambda: Parts().engine().profile(99), IndexError, r"programs 0\.\.15, not 99"),
    "yes for accumulations": (
        lambda: ipu_core.plan(block_of("product"), FEW, True), TypeError,  # type: ignore[arg-type]
        "accumulations must be a dict from equation numbers to Accumulations, not True"),
    "a machine of a Block": (
        lambda: ipu_core.Machine(block_of("product")), TypeError, "lowered must be a Lowered"),
    "a state that is a number": (lambda: machine().write(3), TypeError, "state must be a list, not 3"),  # type: ignore[arg-type]
    "the LSTM of another dict": (
        lambda: nn.lstm({"w": X}, X), ValueError, "params must be a dict of hidden: hidden is missing in w"),
    "the GRU without a bias": (
        lambda: nn.gru_cell({"input": X, "hidden": X}, X, X), ValueError, "bias, hidden_bias is missing in input, hid"),
    "heads without layers": (
        lambda: nn.multi_head_attention({"qkv": {"weight": X}}, X, 2), ValueError, "out is missing in qkv"),
    "axes that are text": (lambda: nn.mean(X, "x"), TypeError, "axis must be a list, not 'x'"),  # type: ignore[arg-type]
    "a mask of halves": (lambda: nn.causal_mask(1.5), TypeError, "a sequence of integers, not"),  # type: ignore[arg-type]
    "a history of a text": (
        lambda: loop().restore(loop().arrays(), 1, {"skipped": 3, "not_finite": None}), ValueError,
        r"a history is what history\(\) gave"),
    "a state of a list": (lambda: loop().restore([], 1), TypeError, r"arrays must be a Mapping, not \[\]"),  # type: ignore[arg-type]
    "no path": (lambda: loop().save(3), TypeError, "path must be a path, not 3"),  # type: ignore[arg-type]
    "callbacks that cannot be called": (
        lambda: loop().run([], 1, callbacks=[3]), TypeError, "a callback is a function .loop, loss."),  # type: ignore[list-item]
    "rows of different lengths": (
        lambda: nn.relu([[1.0], [2.0, 3.0]]), ValueError, r"no array can be made of \[\[1.0\], \[2.0, 3.0\]\]"),
    "gradients nested otherwise": (
        lambda: ipu_core.Sgd(0.1).update({"w": X}, {"v": X}, {}, 0.1), ValueError, "nested as the parameters, w"),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_refused_in_words(what: str) -> None:
    call, kind, words = CASES[what]
    with pytest.raises(kind, match=words):
        call()


def test_a_refused_history_leaves_the_loop_as_it_was() -> None:
    here = loop()
    with pytest.raises(ValueError, match="history"):
        here.restore(here.arrays(), 5, {"skipped": [1]})
    assert here.step == loop().step
