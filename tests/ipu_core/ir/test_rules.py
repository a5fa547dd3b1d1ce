"""Rules of a precision by name and product: what they match, what they change, what is refused."""

from pathlib import Path

import numpy as np
import pytest

from ipu_core import TrainLoop, compare, nn
from ipu_core.ir.block import Block, Equation, text
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.rules import PrecisionRule, names_of
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.step import initial_state, step_block
from lowprec import FloatFormat, Rounding, float8_e4m3fn, float16, float32

LAYER = {"weight": np.zeros((5, 5)), "bias": np.zeros(5)}
PARAMS = {"layers": [LAYER, LAYER], "head": np.zeros((5, 3))}
BATCH = (np.zeros((4, 5)), np.zeros(4, np.int32))


def loss(params, batch):
    x, y = batch
    for number, layer in enumerate(params["layers"]):
        with nn.name_scope(f"layers.{number}", x):
            scores = nn.matmul(x, x.T)
            with nn.name_scope("mixed", x):
                x = nn.gelu(nn.matmul(scores, nn.linear(x, **layer)))
    return nn.softmax_cross_entropy(nn.matmul(x, params["head"]), y)


def typed(precision: str | Precision, optimizer=Sgd(0.1)) -> Block:  # noqa: B008
    return verify(Precision.parse(precision).apply(step_block(loss, optimizer, PARAMS, BATCH)))


def of(block: Block, **wanted) -> list[Equation]:
    return [e for e in block.equations if all(getattr(e, name) == value for name, value in wanted.items())]


def formats(equations) -> set[str]:
    return {e.output.type.format.name for e in equations}


def test_a_precision_without_rules_is_what_it_was():
    assert Precision.parse("fp16.32").rules == ()
    assert ";" not in Precision.parse("fp16.32").words()


def test_weights_of_one_layer_by_the_path_of_its_parameters():
    block = typed("fp16.16/nearest/layers.0.*:weights=float32")
    kept = {e.parameter: e.output.type.format for e in of(block, role="update")}
    assert kept == {
        "layers.0.weight": float32, "layers.0.bias": float32, "layers.1.weight": float16, "layers.1.bias": float16,
        "head": float16,
    }  # fmt: skip
    assert {v.type.format for e in of(block, op="dot") for v in e.operands} == {float16}
    state = Precision.parse("fp16.16/nearest/layers.0.*:weights=float32").cast_state(
        block, initial_state(PARAMS, Sgd(0.1))
    )
    assert state["params"]["layers"][0]["weight"].dtype == np.float32
    assert state["params"]["layers"][1]["weight"].dtype == np.float16


def test_moments_of_one_parameter():
    block = typed("fp16.16/nearest/moments=float16/head:second_moment=float32", Adam())
    moments = {e.parameter: e.output.type.format for e in of(block, role="optimizer", family="second_moment")}
    assert moments.pop("head") == float32
    assert set(moments.values()) == {float16}
    assert formats(of(block, family="first_moment")) == {"float16"}


@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
def test_the_sums_of_one_of_a_layer_s_three_products(product):
    block = typed(f"fp16.16/nearest/layers.1:{product}.partials=float32")
    wide = [e for e in of(block, op="dot") if e.arithmetic.accumulate == float32]
    assert {e.role for e in wide} == {product}
    assert len(wide) == len([e for e in of(block, op="dot", role=product) if e.layer and "layers.1" in e.layer]) > 0


def test_a_rule_for_everything_in_one_product_needs_no_pattern():
    block = typed("fp16.16/nearest/:grad_weight.partials=float32")
    assert {e.arithmetic.accumulate for e in of(block, op="dot", role="grad_weight")} == {float32}
    assert {e.arithmetic.accumulate for e in of(block, op="dot", role="forward")} == {float16}


def test_products_without_parameters_by_their_name_scope():
    block = typed("fp16.16/nearest/layers.*.mixed.dot:forward.operands=float8_e4m3fn")
    narrow = [e for e in of(block, op="dot") if e.operands[0].type.format == float8_e4m3fn]
    assert [e.layer for e in narrow] == ["layers.0.mixed", "layers.0.mixed", "layers.1.mixed", "layers.1.mixed"]
    assert {e.role for e in narrow} == {"forward"}


def test_derivatives_have_the_names_and_lines_of_what_they_are_the_derivatives_of():
    block = step_block(loss, Sgd(), PARAMS, BATCH)
    gelus = of(block, op="gelu_gradient")
    assert [e.layer for e in gelus] == ["layers.1.mixed", "layers.0.mixed"]
    assert {e.source for e in gelus} == {e.source for e in of(block, op="gelu")}
    assert {e.source.rpartition(":")[0] for e in of(block, role="forward")} == {Path(__file__).name}
    assert [*names_of(gelus[0])] == ["layers.1.mixed.gelu_gradient"]


def test_names_change_no_equation():
    def plain(params, batch):
        x, y = batch
        for layer in params["layers"]:
            scores = nn.matmul(x, x.T)
            x = nn.gelu(nn.matmul(scores, nn.linear(x, **layer)))
        return nn.softmax_cross_entropy(nn.matmul(x, params["head"]), y)

    named = step_block(loss, Sgd(), PARAMS, BATCH)
    assert text(named) == text(step_block(plain, Sgd(), PARAMS, BATCH))
    assert nn.gelu(np.ones(3)).tolist() == _scoped_gelu(np.ones(3)).tolist()
    with pytest.raises(ValueError, match="needs a name"):
        nn.name_scope("", np.ones(3))


def _scoped_gelu(x):
    with nn.name_scope("gelu", x):
        return nn.gelu(x)


def test_later_rules_win():
    block = typed("fp16.16/nearest/*:weights=float32/layers.*:weights=float16/layers.1.bias:weights=float32")
    kept = {e.parameter for e in of(block, role="update") if e.output.type.format == float32}
    assert kept == {"layers.1.bias", "head"}


def test_rounding_of_a_part():
    block = typed("fp16.16/nearest/layers.0:stochastic")
    random = [e for e in block.equations if e.arithmetic.stochastic]
    assert random
    assert all((e.layer or e.parameter).startswith("layers.0") for e in random)
    assert Precision.parse("fp16.16/nearest/layers.0:stochastic").stochastic
    assert not Precision.parse("fp16.16/stochastic/layers.0:nearest").at(random[0]).stochastic


def test_conversions_round_as_what_they_convert():
    block = typed("fp16.32/stochastic/layers.0.weight:nearest")
    rounding = {e.parameter: e.arithmetic.stochastic for e in of(block, op="convert") if e.parameter}
    assert rounding == {"layers.0.weight": False, "layers.0.bias": True, "layers.1.weight": True,
                        "layers.1.bias": True, "head": True}  # fmt: skip


def test_a_conversion_of_a_result_rounds_as_the_equation_that_made_it():
    block = typed("fp32.32/stochastic/layers.0.mixed.dot:forward.operands=float16/layers.0.bias:nearest")
    made = {e.output: e.op for e in block.equations}
    conversions = [e for e in of(block, op="convert", role="forward") if e.operands[0] in made]
    rounding = {made[e.operands[0]]: e.arithmetic.stochastic for e in conversions}
    assert rounding == {"dot": True, "add": False}


def test_what_is_computed_in_two_scopes_is_computed_once():
    def twice(x):
        with nn.name_scope("one", x):
            first = nn.gelu(x)
        with nn.name_scope("two", x):
            return first + nn.gelu(x)

    assert [(e.op, e.layer) for e in trace(twice, np.ones(3)).equations] == [("gelu", "one"), ("add", "two")]


def test_the_python_form_is_frozen_hashable_and_says_itself():
    four_bits = FloatFormat("float4", 2, 1)
    rules = (PrecisionRule("head", "partials", four_bits, "forward"), "layers.*:weights=float32", "*:stochastic")
    precision = Precision("mine", weights=float16, rules=rules)
    assert {precision: 1}[Precision("mine", weights=float16, rules=rules)] == 1
    assert [*map(str, precision.rules)] == [
        "head:forward.partials=float4", "layers.*:weights=float32", "*:rounding=stochastic",
    ]  # fmt: skip
    assert precision.words().endswith("; head:forward.partials=float4; layers.*:weights=float32; *:rounding=stochastic")
    (product,) = [e for e in of(typed(precision), op="dot", role="forward", parameter="head")]
    assert product.arithmetic.accumulate == four_bits
    assert precision != Precision("mine", weights=float16)


def test_texts_that_rules_say_are_read_back():
    spec = "fp16.16/nearest/layers.0.*:weights=float32/grad:grad_weight.partials=float32/a.b:moments=float16/x:nearest"
    precision = Precision.parse(spec)
    assert precision.name == spec
    assert len(precision.rules) == 5
    assert Precision.parse("/".join(["fp16.16/nearest", *map(str, precision.rules)])).rules == precision.rules
    assert precision.rules[-1].value == Rounding()


@pytest.mark.parametrize("rule, message", [
    ("layers.2.*:weights=float32", r"for nothing in this model; names are layers\.1, layers\.0, layers"),
    ("heads:weights=float32", "names are head"),
    ("head:grad_wieght.partials=float32", "unknown product 'grad_wieght'.*forward, grad_input, grad_weight"),
    ("head:grad_weight.weights=float32", "kept from step to step"),
    ("head:wieghts=float32", "unknown field 'wieghts'.*weights"),
    ("head:scaled_state=2", "unknown field 'scaled_state'"),
    ("head:weights=float31", "unknown format 'float31'"),
    ("head:rounding=upwards", "unknown rounding 'upwards'; there are nearest, "),
    ("layers.*.mixed.reduce_max:forward.output=float32", "for nothing"),
    ("layers.0.mixed.gelu:grad_input.output=float32", "has no part in grad_input"),
])  # fmt: skip
def test_what_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        typed(f"fp16.16/nearest/{rule}")


def test_rules_that_are_none():
    with pytest.raises(TypeError, match="a rule is a PrecisionRule or a text"):
        Precision("mine", rules=(3,))
    with pytest.raises(ValueError, match="unknown field 'nothing'"):
        Precision("mine", rules=(PrecisionRule("head", "nothing", float16),))
    with pytest.raises(ValueError, match="a rule is a pattern, a colon and a setting"):
        Precision("mine", rules="head")
    with pytest.raises(TypeError, match="partials must be a FloatFormat"):
        Precision("mine", rules=(PrecisionRule("head", "partials", Rounding()),))


def test_both_engines_give_the_same_bits_with_rules():
    rng = np.random.default_rng(0)
    params = {"layers": [{"weight": rng.normal(size=(5, 5)), "bias": np.zeros(5)} for _ in range(2)],
              "head": rng.normal(size=(5, 3))}  # fmt: skip
    batch = rng.normal(size=(4, 5)).astype(np.float32), np.array([0, 1, 2, 0], np.int32)
    precision = "fp16.16/stochastic/layers.0.*:weights=float32/layers.1:nearest/:grad_weight.partials=float32"
    losses = []
    for engine in ("direct", "tiles"):
        loop = TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision=precision, engine=engine)
        losses.append(loop.run(lambda step: batch, 5).tolist())
        assert loop.words().splitlines()[0].endswith("; layers.1:rounding=nearest; :grad_weight.partials=float32")
        assert loop.params["layers"][0]["weight"].dtype == np.float32
        assert loop.params["layers"][1]["weight"].dtype == np.float16
    assert losses[0] == losses[1]


def test_a_comparison_takes_rules_and_keeps_them_apart(tmp_path):
    names = ["fp16.16/nearest", "fp16.16/nearest/head:weights=float32", "fp16.16/nearest/layers.*:weights=float32"]
    study = compare(loss, PARAMS, [BATCH], names, optimizer=Sgd(0.1), steps=2, seeds=1, engine="direct")
    assert [result["precision"] for result in study.results] == names
    study.save(tmp_path / "study")
    assert "layers.*:weights=float32" in (tmp_path / "study" / "plan.txt").read_text()
    with pytest.raises(ValueError, match="for nothing in this model"):
        compare(loss, PARAMS, [BATCH], [f"{names[0]}/tail:weights=float32"], optimizer=Sgd(0.1), steps=2,
                engine="direct")  # fmt: skip


def test_a_model_that_is_evaluated_has_the_names_of_its_parameters():
    precision = Precision.parse("fp16.16/nearest/head:operands=float8_e4m3fn/layers.0:grad_weight.partials=float32")
    block = verify(precision.apply(trace(loss, PARAMS, BATCH)))
    assert [e.parameter for e in of(block, op="dot") if e.operands[0].type.format == float8_e4m3fn] == ["head"]


def casts(block: Block) -> dict[tuple[str, str | None], list[str]]:
    """What the operands of every product come from, by role and parameter."""
    made = {e.output: e.op for e in block.equations}
    return {(e.role, e.parameter): [made.get(x, "input") for x in e.operands] for e in of(block, op="dot")}


def test_operands_of_some_products_are_not_cast():
    every = casts(typed("mxfp4"))
    assert {op for ops in every.values() for op in ops} == {"to_blocks"}
    for spec, spared in (
        ("mxfp4/head:scaling=none", {key for key in every if key[1] == "head"}),
        ("mxfp4/head:grad_weight.scaling=none", {("grad_weight", "head")}),
        ("mxfp4/:forward.scaling=none", {key for key in every if key[0] == "forward"}),
    ):
        found = casts(typed(spec))
        assert {key for key, ops in found.items() if "to_blocks" not in ops} == spared
        assert all(found[key] == every[key] for key in found.keys() - spared)
    assert len({key for key in every if key[1] == "head"}) == 3


def test_operands_of_some_products_alone_are_cast_as_a_preset_does():
    block = typed("fp32.32/layers.0:scaling=mxfp8/head:forward.scaling=fp8")
    to_blocks = {e.params["format"] for e in of(block, op="to_blocks")}
    assert to_blocks == {"mxfp8_e4m3"}
    eight = {e.parameter for e in of(block, op="dot", role="forward") if e.operands[0].type.format == float8_e4m3fn}
    assert eight == {"head"}
    made = {e.output: e.op for e in block.equations}
    for product in of(block, op="dot"):
        there = any(name.startswith("layers.0") for name in names_of(product))
        assert ({made.get(x) for x in product.operands} == {"to_blocks"}) is there
    assert not of(typed("fp32.32"), op="to_blocks")


def test_one_product_s_casts_have_rotations_and_roundings_of_their_own():
    spec = "mxfp4/:grad_weight.rotation=fixed/:grad_weight.backward_rounding=stochastic/head:scale_rule=rceil"
    block = typed(spec)
    made = {e.output: e for e in block.equations}
    for product in of(block, op="dot"):
        blocks = [made[x] for x in product.operands]
        rotated = [made[e.inputs[0]].op == "hadamard" for e in blocks]
        assert rotated == [product.role == "grad_weight"] * 2
        assert [e.params["rule"] for e in blocks] == ["rceil" if product.parameter == "head" else "floor"] * 2
        cotangents = [product.role == "grad_weight" and e.role != "forward" for e in blocks]
        assert [e.arithmetic.stochastic for e in blocks] == cotangents
    assert Precision.parse(spec).stochastic
    assert not Precision.parse(spec.replace("stochastic", "nearest")).stochastic


def test_histories_are_of_the_products_that_are_scaled_by_them():
    slots = {spec: typed(f"fp8/delayed{spec}").inputs for spec in ("", "/head:scaling=none", "/head:scaling=fp8")}
    lengths = {
        spec: next(v.type.shape[0] for v in inputs if v.name == "scaling.scale") for spec, inputs in slots.items()
    }
    assert lengths["/head:scaling=none"] == lengths["/head:scaling=fp8"] < lengths[""]
    loop = TrainLoop(loss, PARAMS, BATCH, optimizer=Sgd(0.1), precision="fp8/delayed/head:scaling=fp8", engine="direct")
    assert np.isfinite(loop.train(BATCH))


@pytest.mark.parametrize("spec, words", [
    ("fp16.32/head:rotation=fixed", "is for operands that are cast; only fp8"),
    ("mxfp4/head:scaling=some", "is none or that of fp8, mxfp8, mxfp4, nvfp4, fp8.16, not 'some'"),
    ("mxfp4/head:rotation=always", "rotation is fixed or random"),
    ("mxfp4/head:rotation_block=many", "'rotation_block=many' in"),
    ("mxfp4/tail:scaling=none", "is for nothing in this model"),
])  # fmt: skip
def test_rules_of_scaling_that_there_are_not(spec, words):
    with pytest.raises(ValueError, match=words):
        typed(spec)


def test_rules_of_scaling_are_written_as_they_are_read():
    spec = "mxfp4/head:scaling=none/:grad_weight.rotation=random/:forward=nvfp4"
    assert [str(rule) for rule in Precision.parse(spec).rules] == spec.split("/")[1:]
    with pytest.raises(TypeError, match="OperandScaling or None"):
        PrecisionRule("head", "scaling", "none")
    with pytest.raises(ValueError, match="cannot be delayed"):
        PrecisionRule("head", "scaling", Precision.parse("fp8/delayed").scaling)
    kept = PrecisionRule("", "scaling", Precision.parse("mxfp4").scaling)
    assert str(kept) == ":scaling=mxfp4"
