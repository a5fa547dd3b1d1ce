"""Presets and overrides by name, and what the pass makes of a training step."""

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.block import Block, Equation, text
from ipu_core.ir.precision.precision import PRESETS, Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Lamb, Sgd
from ipu_core.train.step import initial_state, step_block
from lowprec import Rounding, float8_e4m3fn, float8_e5m2, float16, float32
from lowprec import formats as named_formats

PARAMS = [{"weight": np.zeros((6, 5)), "bias": np.zeros(5)}, {"weight": np.zeros((5, 3)), "bias": np.zeros(3)}]
BATCH = (np.zeros((4, 6)), np.zeros(4, np.int32))


def loss(params, batch):
    return nn.softmax_cross_entropy(nn.mlp(params, batch[0], nn.gelu), batch[1])


def typed(spec: str, optimizer=Sgd(0.1)) -> Block:  # noqa: B008
    return verify(Precision.parse(spec).apply(step_block(loss, optimizer, PARAMS, BATCH)))


def formats(equations) -> set[str]:
    return {e.output.type.format.name for e in equations}


def of(block: Block, **wanted) -> list[Equation]:
    return [e for e in block.equations if all(getattr(e, name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("spec", [name + "/nearest" for name, preset in PRESETS.items() if preset.scaling is None])
def test_every_preset_types_every_equation(spec):
    block = typed(spec, Lamb(weight_decay=0.1))
    precision = Precision.parse(spec)
    half = precision.operands
    assert formats(e for e in of(block, family="loss") if e.op != "reduce_max") == {
        half.name if precision.everywhere else "float32"
    }
    assert formats(of(block, role="update")) == {precision.weights.name}
    assert formats(of(block, role="optimizer", family="first_moment")) == {precision.first_moment.name}
    assert formats(of(block, role="optimizer", family="second_moment")) == {precision.second_moment.name}
    assert {e.arithmetic.accumulate for e in of(block, op="dot")} == {precision.partials}
    assert {v.type.format for e in of(block, op="dot") for v in e.operands} == {half}
    assert formats(of(block, op="dot")) == {precision.output.name}
    assert not any(e.arithmetic.stochastic for e in block.equations)


def test_float32_needs_no_conversion_and_keeps_every_number():
    plain = step_block(loss, Sgd(), PARAMS, BATCH)
    block = typed("fp32.32")
    assert [e.number for e in block.equations] == [e.number for e in plain.equations]
    assert not of(block, op="convert")


def test_numbers_of_equations_survive_in_every_precision():
    plain = {e.number: e.op for e in step_block(loss, Sgd(), PARAMS, BATCH).equations}
    for spec in PRESETS:
        numbers = {e.number: e.op.replace("scaled_dot", "dot") for e in typed(spec + "/nearest").equations}
        assert plain.items() <= numbers.items()


def test_master_weights_are_converted_once_for_all_their_uses():
    block = typed("fp16.32")
    conversions = of(block, op="convert")
    assert len(conversions) == len({e.inputs for e in conversions})
    assert sorted(e.parameter for e in conversions if e.parameter) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert len(conversions) == 6  # four parameters, the data and the cotangent of the logits
    assert len(of(typed("fp16.16/nearest"), op="convert")) == 2


def test_where_rounding_is_stochastic():
    block = typed("fp16.16/stochastic")
    stochastic = {e.op for e in block.equations if e.arithmetic.rounding == Rounding("stochastic")}
    assert stochastic == {e.op for e in block.equations if e.arithmetic.rounding != Rounding()}
    assert stochastic == {"convert", "dot", "reduce_sum", "gelu", "gelu_gradient", "scaled_add"}
    assert {e.op for e in of(block, family="elementwise", role="forward")} == {"add"}
    assert not any(e.arithmetic.stochastic for e in of(block, family="loss"))


def test_the_carried_state_takes_the_formats_of_its_new_value():
    block = typed("mlperf-bert-pod16", Lamb())
    state = initial_state(PARAMS, Lamb())
    cast = Precision.parse("mlperf-bert-pod16").cast_state(block, state)
    assert cast["params"][0]["weight"].dtype == np.float16
    assert cast["optimizer"]["first_moment"][0]["weight"].dtype == np.float16
    assert cast["optimizer"]["second_moment"][0]["weight"].dtype == np.float32
    assert cast["optimizer"]["corrections"][0].dtype == np.float32
    with pytest.raises(ValueError, match="carries 14 arrays, the state has 4"):
        Precision.parse("fp32.32").cast_state(block, PARAMS)


def test_gradients_may_have_another_format_than_activations():
    block = typed("fp16.16/stochastic/operands=float8_e4m3fn/gradients=float8_e5m2/output=float16")
    operands = {e.role: [v.type.format for v in e.operands] for e in of(block, op="dot")}
    assert operands["forward"] == [float8_e4m3fn, float8_e4m3fn]
    assert operands["grad_input"] == [float8_e5m2, float8_e4m3fn]
    assert operands["grad_weight"] == [float8_e4m3fn, float8_e5m2]


def test_a_forward_program_alone():
    block = verify(Precision.parse("fp16.32").apply(trace(nn.mlp, PARAMS, BATCH[0])))
    assert block.outputs[0].type.format == float16
    assert {v.type.format for v in block.inputs} == {float32}


def test_constants_are_converted_when_the_pass_runs():
    table = np.full((6, 2), 1 / 3)
    block = verify(Precision.parse("fp16.32").apply(trace(lambda x: x @ table, BATCH[0])))
    (constant,) = block.constants.values()
    assert constant.dtype == np.float16
    assert [e.op for e in block.equations] == ["convert", "dot"]
    assert "%constant0.float16)" in str(block)
    # a digest has what it had when the whole format was printed
    assert f"%constant0.{float16})" in text(block)


def test_overrides():
    precision = Precision.parse("fp16.32/stochastic/weights=float16/moments=bfloat16")
    assert (precision.weights, precision.rounding, precision.rounding_name) == (
        float16,
        Rounding("stochastic"),
        "stochastic",
    )
    assert precision.first_moment.name == precision.second_moment.name == "bfloat16"
    assert precision.name == "fp16.32/stochastic/weights=float16/moments=bfloat16"
    assert Precision.parse(precision) is precision
    assert "partials float32" in precision.words()


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            "fp16",
            "unknown precision 'fp16'.*; there are fp32.32, fp16.32, fp16.16, bf16.32, .*mlperf-bert, mlperf-bert-v2",
        ),
        ("fp16.16", "'fp16.16/nearest' or 'fp16.16/stochastic'"),
        ("fp16.16/upwards", "unknown word 'upwards' in 'fp16.16/upwards'; there are nearest, stochastic, nearest_away"),
        ("fp16.32/weight=float16", "unknown field 'weight'.*weights, gradient_sum.*moments"),
        ("fp16.32/weights=half16", "half16"),
    ],
)
def test_unknown_names_are_refused_with_the_valid_ones(spec, message):
    with pytest.raises(ValueError, match=message):
        Precision.parse(spec)


def test_formats_the_machine_lacks_are_refused():
    with pytest.raises(ValueError, match=r"forward cannot be e10m3: .*as in fp32.32/operands=e10m3/partials=float64"):
        Precision.parse("fp8/forward=e10m3")
    for spec in ("fp16.32/partials=float8_e8m0fnu", "fp16.32/layers.0.*:partials=float8_e8m0fnu"):
        with pytest.raises(ValueError, match="float8_e8m0fnu cannot accumulate: it has no negative numbers or no zero"):
            Precision.parse(spec)
    with pytest.raises(TypeError, match=r"partials must be a FloatFormat such as lowprec.float16, not 'float16'"):
        Precision("mine", partials="float16")
    with pytest.raises(TypeError, match=r"rounding must be a lowprec.Rounding, not 'up'"):
        Precision("mine", rounding="up")
    for fmt in named_formats.values():
        assert Precision("mine", gradients=fmt).gradients == fmt


def test_the_gradient_of_a_bias_is_a_gradient_summed_in_partials():
    block = typed("fp16.16/nearest/gradients=float8_e5m2/partials=float32")
    sums = {e.parameter: e for e in of(block, op="reduce_sum", role="grad_weight") if e.family == "reduction"}
    assert sorted(sums) == ["0.bias", "1.bias"]
    for equation in sums.values():
        assert equation.output.type.format == float8_e5m2
        assert equation.arithmetic.accumulate == float32
        assert {v.type.format for v in equation.operands} == {float8_e5m2}


def test_only_sums_have_partials():
    block = typed("fp16.16/nearest")
    assert {e.op for e in block.equations if e.arithmetic.accumulate is not None} == {"dot", "reduce_sum"}
    assert {"reduce_max", "scaled_add", "convert"} <= {e.op for e in block.equations if not e.arithmetic.accumulate}


def test_inputs_come_in_the_formats_that_are_given():
    block = trace(lambda x, labels: nn.layer_norm(x) * nn.one_hot(labels, 5), np.zeros((4, 5)), np.zeros(4, np.int32))
    table = Precision.parse("fp16.16/nearest")
    half, wide = table.apply(block, inputs=[float16, "int32"]), table.apply(block)
    assert [var.type.format for var in half.inputs] == [float16, "int32"]
    assert [var.type.format for var in wide.inputs] == [float32, "int32"]
    assert not [e for e in of(half, op="convert") if e.inputs[0] is half.inputs[0]]  # the norm reads halves
    for wrong in ([float16], ["int32", "int32"], [float16, float16], [float16, "int32", float16]):
        with pytest.raises(ValueError, match="the block takes inputs in the formats a float format, int32, not"):
            table.apply(block, inputs=wrong)
    with pytest.raises(TypeError, match="inputs must be a list"):
        table.apply(block, inputs="float16")
