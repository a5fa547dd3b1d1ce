"""An equation has one name: the same in reports, tables, profiles, plans, manifests, prints and messages."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import (
    AbortOnNaN,
    Adam,
    Engine,
    FloatingPointControl,
    Graph,
    Target,
    TrainLoop,
    WriteUndef,
    blame,
    compare,
    nn,
    plan,
)
from ipu_core import Sequence as InOrder
from ipu_core.diagnose.finite import cause
from ipu_core.errors import FloatingPointException
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.rules import named
from tests.ipu_core.diagnose.blame import planted

ROWS = 8
RNG = np.random.default_rng(0)
PARAMS = {
    "layers": [{"w": RNG.normal(size=(6, 10)).astype(np.float32), "b": np.zeros(10, np.float32)}],
    "out": RNG.normal(size=(10, 3)).astype(np.float32),
}
BATCH = RNG.normal(size=(ROWS, 6)).astype(np.float32), RNG.integers(0, 3, ROWS).astype(np.int32)


def loss(params: Any, batch: Any) -> Any:
    x, labels = batch
    for layer in params["layers"]:
        x = nn.gelu(nn.linear(x, layer["w"], layer["b"]))
    with nn.name_scope("mix", x):
        x = nn.softmax(x @ x.T, axis=-1) @ x
    with nn.name_scope("head", x):
        x = x @ params["out"]
    return nn.softmax_cross_entropy(x, labels)


def loop(precision: str = "fp16.16/stochastic", engine: str = "tiles", **options: Any) -> TrainLoop:
    options = {"optimizer": Adam(0.01), **options}
    return TrainLoop(loss, PARAMS, BATCH, precision=precision, engine=engine, **options)


def every(equations: Iterable[Equation]) -> Iterator[Equation]:
    """All of them, regions and what is in their bodies too."""
    for equation in equations:
        yield equation
        if equation.region is not None:
            yield from every(equation.region.body.equations)


def products(block: Block) -> list[Equation]:
    return [equation for equation in equations_of(block) if equation.op == "dot"]


def of_lines(words: str) -> set[str]:
    return {line.strip().partition(": ")[0] for line in words.splitlines()}


WHOLE = {"micro_batches": 2, "loss_scale": 64.0}


def test_a_name_says_parameter_or_layer_role_operation_and_number() -> None:
    block = loop(**WHOLE).block
    by_name = {equation.name: equation for equation in every(block.equations)}
    for name, equation in by_name.items():
        assert re.fullmatch(rf"(.+\.)?\w+\.{equation.op}\.{equation.number}", name)
    about = {name.rpartition(".")[0] for name in by_name}
    assert {
        "layers.0.w.forward.dot", "layers.0.w.grad_weight.dot", "out.grad_input.dot",
        "layers.0.b.grad_weight.reduce_sum", "mix.forward.dot", "mix.grad_input.dot", "mix.forward.exp", "forward.gelu",
        "layers.0.w.gradient_sum.add",
        "layers.0.w.first_moment.scaled_add", "out.second_moment.scaled_add", "out.update.scaled_add",
        "optimizer.reduce_max", "region.loop", "region.branch",
    } <= about  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "fp8", "mxfp8"])
def test_no_two_equations_of_a_block_and_its_bodies_have_one_name(precision: str) -> None:
    made = [loop(precision, "direct", **WHOLE, recompute=True) for _ in range(2)]
    assert any(equation.drawn is not None for equation in every(made[0].block.equations))
    names = [[equation.name for equation in every(each.block.equations)] for each in made]
    assert len(set(names[0])) == len(names[0])
    assert names[0] == names[1]
    plain = {equation.name for equation in products(loop("fp32.32", "direct", **WHOLE).block)}
    assert plain <= {name.replace("scaled_dot", "dot") for name in names[0]}  # whatever the precision


def test_patterns_of_rules_are_for_names_too() -> None:
    block = loop(engine="direct").block
    for equation in equations_of(block):
        start = equation.parameter or equation.layer
        assert start is None or (named(start, equation.name) and named(f"{start}.*", equation.name))
    ruled = [equation.name for equation in equations_of(block) if equation.parameter == "layers.0.w"]
    assert ruled
    assert ruled == [equation.name for equation in equations_of(block) if named("layers.0.w", equation.name)]
    assert all(named("layers.0.*", name) for name in ruled)
    assert not any(named("layers.1.*", name) for name in ruled)


def test_a_product_is_called_the_same_everywhere(tmp_path: Path) -> None:
    made = loop(watch=1, micro_batches=2, parallel=False)  # else many stand behind the first name of a step
    made.train(BATCH)
    found = products(made.block)
    assert {equation.role for equation in found} == {"forward", "grad_input", "grad_weight"}
    assert len(found) == 11
    assert made.profile is not None
    assert made.watched is not None
    study = compare(
        loss, PARAMS, [BATCH], ["fp16.16/stochastic"], steps=1, seeds=1, optimizer=Adam(0.01), engine="direct",
        micro_batches=2,
    )  # fmt: skip
    folder = study.save(tmp_path / "study")
    numbers = {equation.number: equation.name for equation in found}
    places = {
        "sums": made.sums(),
        "words": of_lines(made.words()),
        "words of no machine": of_lines(loop(engine="direct", micro_batches=2).words()),
        "plan": plan(made.block, Target("gc200")).names.values(),
        "profile": [step.name.partition(":")[0] for step in made.profile.steps],
        "outline": [words.partition(":")[0] for _, words in made.profile.outline],
        "watch": made.watched.values["name"].tolist(),
        "precision table": [row[0] for row in made.precision_table(1000).rows],
        "print": re.findall(r"# (\S+)", str(made.block)),
        "manifest": json.loads((folder / "manifest.json").read_text())["accumulations"],
        "result": json.loads((folder / "results.jsonl").read_text())["accumulations"],
    }
    for place, names in places.items():
        assert set(numbers.values()) <= set(names), place
    assert {value["name"] for value in made.watched.values if value["op"] == "dot"} == set(numbers.values())
    assert all(equation.name == name for name, (equation, _) in made.sums().items())


def test_blame_calls_it_so_too() -> None:
    fault = next(fault for fault in planted.FAULTS if fault.name == "a 4-bit accumulator forward")
    made = fault.loop()
    (culprit,) = blame(made, planted.batch, fault.steps).culprits
    (product,) = [e for e in products(made.block) if (e.role, e.parameter) == ("forward", "layer0.weight")]
    assert culprit.equation == product.name
    assert product.name in made.sums()
    assert f"{product.name}, line " in str(culprit)


def test_messages_call_it_so_too() -> None:
    made = loop("fp32.32", "direct", control=FloatingPointControl(oflo=True))
    (first,) = [e for e in products(made.block) if (e.role, e.parameter) == ("forward", "layers.0.w")]
    huge = (np.full((ROWS, 6), 3e38, np.float32), BATCH[1])
    with pytest.raises(FloatingPointException, match=rf", in {re.escape(first.name)}"):
        made.train(huge)
    planned = made._stepper.prepared.planned
    state = {str(place): leaf for place, leaf in enumerate(made._stepper.runner.read())}
    inputs, key = made.next_step(huge)
    words = cause(planned.block, planned.accumulations, FloatingPointControl(), state, [inputs[len(state) :]], [key])
    assert words == f"it began in {first.name}"
    skipped = loop(engine="direct", loss_scale=2.0**40)
    skipped.train(BATCH)
    names = {equation.name for equation in equations_of(skipped.block)}
    on_the_way = [name for name in skipped.skipped[0].names if not name.startswith("gradient of ")]
    assert on_the_way
    assert set(on_the_way) <= names


GENERIC = re.compile(
    r"stream feed (batch\.[01]|lr|loss_scale)|(load|store) state\.optimizer\.\w+\.[\w.]+|entry of the (new )?state"
    r"|total\.(loss|bad|gradients\.[\w.]+)|write back [\w.]+|new [\w.]+"
)


@pytest.mark.parametrize("options", [{}, WHOLE, {**WHOLE, "streamed": "optimizer.*", "overlap": True}])
def test_a_step_of_a_profile_says_of_which_equation_it_is_or_what_it_is_for(options: dict[str, Any]) -> None:
    made = loop(**options)
    assert made.profile is not None
    names = {equation.name for equation in equations_of(made.block)}
    said = [step.name.partition(":")[0].removeprefix("undefine ") for step in made.profile.steps]
    others = {name for name in said if name.removeprefix("stream result ") not in names}
    assert {name for name in others if not GENERIC.fullmatch(name)} == set()
    assert {"stream feed batch.0", "stream feed lr"} <= others
    assert len([name for name in said if name.startswith("stream result ")]) == 1 + ("loss_scale" in options)


def test_what_stops_at_nan_and_what_is_undefined_says_where() -> None:
    graph = Graph(Target("gc200"))
    x = graph.add_variable("float32", (4,), "x")
    graph.set_tile_mapping(x, 0)
    steps = Engine(graph, InOrder(WriteUndef(x), AbortOnNaN(x))).profile().steps
    assert [(step.name, step.kind) for step in steps] == [("undefine x", "sync"), ("abort on NaN in x", "sync")]
    assert [step.cycles for step in steps] == [0, Target("gc200").sync_cycles]
