"""Rules in combination: one that names every layer is the global setting, one that names some changes only those."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import Sgd, TrainLoop, nn
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import PRODUCTS, STRUCTURE
from ipu_core.ir.precision.operand_scaling import SCALINGS
from ipu_core.ir.precision.precision import PRESETS, Precision
from ipu_core.ir.precision.role_formats import FORMATS
from ipu_core.ir.precision.rules import OF_COTANGENTS, PASSES, SCALING, STATE, PrecisionRule, names_of
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Adam
from ipu_core.train.step import step_block
from lowprec import FloatFormat, Key, float8_e4m3fn, float16, float32
from tests.examples import examples

RNG = np.random.default_rng(7)
PARAMS = {
    "layers": [{"weight": RNG.normal(size=(6, 6)).astype(np.float32), "bias": np.zeros(6, np.float32)} for _ in "ab"],
    "head": RNG.normal(size=(6, 4)).astype(np.float32),
}
BATCH = (RNG.normal(size=(8, 6)).astype(np.float32), np.array([0, 1, 2, 3, 3, 2, 1, 0], np.int32))
EVERY = ("layers.0", "layers.1", "head", "*")
"""Patterns of all layers, and of what is in none."""
NAMES = [f"{name}/stochastic" if name == "fp16.16" else name for name in PRESETS]
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(FORMATS, ("float32", "float16", "bfloat16")),
    "rounding": ("nearest", "stochastic"),
    "scaling": ("none", *SCALINGS),
    "forward": ("float8_e5m2", "mxfp8_e5m2"), "backward": ("float8_e4m3fn", "mxfp4_e2m1"),
    "forward_rounding": ("nearest", "stochastic"), "backward_rounding": ("stochastic", "none"),
    "scale_rule": ("none",), "rotation": ("fixed", "random"), "rotation_block": ("2",),
}  # fmt: skip


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    for number, layer in enumerate(params["layers"]):
        with nn.name_scope(f"layers.{number}", x):
            x = nn.gelu(nn.linear(x, **layer))
    return nn.softmax_cross_entropy(nn.matmul(x, params["head"]), y)


IDEAL = step_block(loss, Adam(0.1), PARAMS, BATCH, micro_batches=2)  # a step that has every field


def typed(precision: Precision) -> Block:
    return verify(precision.apply(IDEAL))


def text(precision: Precision) -> str | None:
    """The typed Block, or None where narrow partial sums are refused beside operands that float32 lacks."""
    try:
        return str(typed(precision))
    except ValueError as error:
        if "say partials=float64" not in str(error):
            raise
        return None


def parsed(spec: str) -> Precision | None:
    """The precision, or None where a scaling is not to be had: blocks inside of products, rules of other blocks."""
    with contextlib.suppress(ValueError):
        return Precision.parse(spec)
    return None


def everywhere(preset: str, field: str, value: str) -> Precision:
    """What a rule without a pattern says, said of the precision itself."""
    own = Precision.parse(preset)
    (rule,) = Precision.parse(f"{preset}/:{field}={value}").rules
    if field in SCALING[1:]:
        assert own.scaling is not None
        changes: dict[str, Any] = {field: rule.value}
        return replace(own, name="", scaling=replace(own.scaling, **changes))
    said: dict[str, Any] = {field: rule.value}
    # A format that is said without a rounding is rounded as all is.
    kept = {other: how for other, how in own.roundings if other != field}
    return replace(own, name="", roundings=kept, **said)


@pytest.mark.parametrize("field", [*FORMATS, "rounding", *SCALING])
@pytest.mark.parametrize("preset", NAMES)
def test_a_rule_for_every_layer_is_the_same_said_of_everything(preset: str, field: str) -> None:
    values = [value for value in VALUES[field] if parsed(f"{preset}/:{field}={value}") is not None]
    assert len(values) == len(VALUES[field]) or field in SCALING[1:]
    for value in values:
        wanted = text(everywhere(preset, field, value))
        for patterns in ([""], ["*"], EVERY):
            rules = "/".join(f"{pattern}:{field}={value}" for pattern in patterns)
            assert text(Precision.parse(f"{preset}/{rules}")) == wanted, (patterns, value)


@pytest.mark.parametrize(
    "rule", ["layers.0:operands=float32", "layers.0:gradients=float32", "layers.0:operands=float16"]
)
@pytest.mark.parametrize("preset", ["fp8", "mxfp8", "nvfp4", "unit-fp8", "fp8.16"])
def test_a_rule_for_operands_before_they_are_cast_takes_no_cast_away(preset: str, rule: str) -> None:
    def casts(spec: str) -> list[tuple[int, list[str]]]:
        block = typed(Precision.parse(spec))
        made = {e.output: e for e in equations_of(block)}
        return [(e.number, [str(x.type.format) if x not in made or made[x].op != "to_blocks" else "blocks"
                            for x in e.operands[:2]]) for e in equations_of(block) if e.op in PRODUCTS]  # fmt: skip

    assert casts(f"{preset}/{rule}") == casts(preset)
    assert {fmt for _, both in casts(preset) for fmt in both}.isdisjoint({"float16", "float32"})


def test_a_rule_that_says_nothing_of_its_casts_trains_to_the_same_casts_in_bits() -> None:
    losses = []
    for spec in ("fp8/operands=float32/gradients=float32", "fp8/*:operands=float32/*:gradients=float32", "fp8"):
        loop = TrainLoop(loss, PARAMS, BATCH, optimizer=Adam(0.1), precision=spec, engine="direct", key=Key(3))
        losses.append(loop.run([BATCH] * 4, 4).tolist())
    assert losses[0] == losses[1] != losses[2]


def test_products_that_a_function_asked_to_be_wide_are_not_cast_with_rules_either() -> None:
    def wide(params: Any, batch: Any) -> Any:
        x, y = batch
        return nn.softmax_cross_entropy(nn.matmul(nn.convert(x, "float32"), nn.convert(params["head"], "float32")), y)

    params = {"head": PARAMS["head"]}
    block = step_block(wide, Adam(0.1), params, BATCH)
    for spec in ("fp8", "fp8/head:gradients=float16"):
        (product,) = [
            e for e in equations_of(Precision.parse(spec).apply(block)) if e.op == "dot" and e.role == "forward"
        ]
        assert [x.type.format for x in product.operands] == [float32, float32]


def test_casts_round_as_the_rule_for_their_product() -> None:
    def stochastic(spec: str) -> set[str]:
        block = typed(Precision.parse(spec))
        names = [n for e in equations_of(block) if e.op == "dot" for n in [e.parameter] if _cast_at_random(block, e)]
        return {name or "" for name in names}

    every = {"layers.0.weight", "layers.1.weight", "head"}
    assert stochastic("fp8/stochastic") == stochastic("fp8/*:stochastic") == every
    assert stochastic("fp8/layers.0:stochastic") == {"layers.0.weight"}
    assert stochastic("fp8/stochastic/layers.0:nearest") == every - {"layers.0.weight"}


def _cast_at_random(block: Block, product: Equation) -> bool:
    made = {e.output: e for e in equations_of(block)}
    makers = []
    for operand in product.operands:
        while (maker := made[operand]).op in STRUCTURE:
            operand = maker.operands[0]
        makers.append(maker)
    both = {maker.arithmetic.stochastic for maker in makers}
    assert len(both) == 1
    return both.pop()


def said(block: Block) -> Iterator[tuple[int, Equation]]:
    """The equations that a table is asked for, by number."""
    yield from ((e.number, e) for e in equations_of(block) if e.op not in STRUCTURE)


@pytest.mark.parametrize("preset", ["fp16.32", "fp16.16/stochastic", "fp8", "mxfp8", "nvfp4", "mlperf-bert"])
@pytest.mark.parametrize("product", [None, *PASSES])
def test_a_rule_changes_only_what_it_names(preset: str, product: str | None) -> None:
    before = dict(said(typed(Precision.parse(preset))))
    named = {e.number for e in equations_of(IDEAL) if e.op not in STRUCTURE and product in (None, e.role)
             and any(name.startswith("layers.1") for name in names_of(e))}  # fmt: skip
    traced = {e.number for e in equations_of(IDEAL)}
    for field in (*FORMATS, "scaling", "rounding"):
        if product is not None and (field in STATE or (product, field) == ("forward", "gradients")):
            continue
        value = {"rounding": "nearest", "scaling": "none"}.get(field, "bfloat16")
        prefix = f"{product}." if product else ""
        after = dict(said(typed(Precision.parse(f"{preset}/layers.1:{prefix}{field}={value}"))))
        changed = {n for n in traced & before.keys() & after.keys() if _kinds(before[n]) != _kinds(after[n])}
        assert changed <= named, (field, [str(before[n]) for n in changed - named])
        if field not in ("rounding", "scaling") and preset in UNCAST:
            assert changed, field


UNCAST = ("fp16.32", "fp16.16/stochastic", "mlperf-bert")  # of others the results are made by what takes scales out


def _kinds(equation: Equation) -> Any:
    """What the table says of an equation; a maximum has its operand's format, as it is, and a cast it of its reader."""
    if equation.op == "reduce_max":
        return None
    operands = [x.type.format for x in equation.operands] if equation.op in PRODUCTS else []
    return equation.output.type.format, equation.arithmetic.accumulate, operands


FIELDS = st.sampled_from([f for f in (*FORMATS, "rounding", "scaling") if f not in STATE])


@st.composite
def rules(draw: st.DrawFn) -> str:
    field = draw(FIELDS)
    products = ["", *PASSES] if field not in OF_COTANGENTS else ["", *PASSES[1:]]
    product = draw(st.sampled_from(products))
    pattern = draw(st.sampled_from(["", "layers.0", "layers.*", "layers.1.weight", "head"]))
    return f"{pattern}:{product}{'.' if product else ''}{field}={draw(st.sampled_from(VALUES[field]))}"


@examples(quick=15, slow=300)
@given(st.sampled_from(["fp32.32", "fp16.16/nearest", "fp8", "mxfp8", "mlperf-bert"]), st.lists(rules(), max_size=5))
def test_the_last_rule_that_sets_a_field_of_an_equation_counts(preset: str, several: list[str]) -> None:
    precision = Precision.parse("/".join([preset, *several]))
    for equation in equations_of(IDEAL)[::5]:
        wanted: dict[str, Any] = {}
        for rule in precision.rules:
            if rule.matches(equation):
                wanted[rule.field] = rule.value
        at = precision.at(equation)
        plain = Precision.parse(preset)
        assert {f: getattr(at, f) for f in wanted} == wanted
        assert all(getattr(at, f) == getattr(plain, f) for f in (*FORMATS, "rounding", "scaling") if f not in wanted)


def test_an_earlier_rule_that_a_later_one_takes_back_leaves_nothing() -> None:
    for rule, back in (
        ("layers.0:operands=float32", "layers.0:operands=float16"),
        ("layers.*:scaling=none", ":scaling=fp8"),
        ("head:backward=float8_e4m3fn", "head:scaling=fp8"),
    ):
        assert str(typed(Precision.parse(f"fp8/{rule}/{back}"))) == str(typed(Precision.parse("fp8")))
        assert str(typed(Precision.parse(f"fp8/{back}/{rule}"))) != str(typed(Precision.parse("fp8")))


@pytest.mark.parametrize("rule, message", [
    ("weights=e4m3:stochastic", "'weights=e4m3' in the rule .* is no name of a part; settings are joined by '/'"),
    ("head=1:weights=float16", "'head=1' in the rule .* is no name of a part"),
    (" head:weights=float16", "for nothing in this model; names are head"),
    ("head/:weights=float16", "unknown word 'head'"),
    ("Head:weights=float16", "for nothing in this model"),
    ("layers.0.:weights=float16", "for nothing in this model"),
    ("layers.0.*.*:weights=float16", "for nothing in this model"),
    ("head:forward.gradients=float32", "nothing forward reads gradients"),
    ("head:weights=", "unknown format ''"),
    ("head:", "unknown rounding ''; there are nearest, "),
    ("layers.0.gelu:weights=float16", "what has such a name has no weights to set, but operands, rounding"),
    ("layers.0.gelu:partials=float16", "has no partials to set"),
    ("layers.0.gelu:output=float16", "has no output to set"),
    ("layers.0.bias:scaling=fp8", "has no scaling to set, but operands, gradients, partials, weights"),
    ("head:scaling=fp8/layers.0:rotation=fixed", "'layers.0:rotation=fixed' is for nothing .* no rotation to set"),
    ("head:scaling=fp8/layers.0:forward=float8_e5m2/layers.0:scaling=fp8", "'layers.0:forward=float8_e5m2' is for no"),
])  # fmt: skip
def test_a_rule_that_sets_nothing_is_refused_with_what_there_is(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        typed(Precision.parse(f"fp16.32/{rule}"))


def test_forward_casts_have_no_format_of_cotangents() -> None:
    for field in ("backward=float8_e4m3fn", "backward_rounding=stochastic"):
        with pytest.raises(ValueError, match="nothing forward reads backward"):
            Precision.parse(f"fp8/head:forward.{field}")


def test_moments_are_a_rule_for_an_optimizer_that_has_one_of_the_two() -> None:
    from_momentum = step_block(loss, Sgd(0.1, momentum=0.9), PARAMS, BATCH)
    block = Precision.parse("fp32.32/head:moments=float16").apply(from_momentum)
    kept = {e.parameter for e in equations_of(block) if e.family == "first_moment" and e.output.type.format == float16}
    assert kept == {"head"}
    with pytest.raises(ValueError, match=r"has no second_moment to set, but .*first_moment"):
        Precision.parse("fp32.32/head:second_moment=float16").apply(from_momentum)


def test_a_model_that_is_evaluated_refuses_a_rule_for_another_and_a_part_of_one_does_not() -> None:
    block = trace(lambda params, x: nn.matmul(x, params["head"]), PARAMS, BATCH[0])
    wrong = Precision.parse("fp16.32/heads:operands=float32")
    with pytest.raises(ValueError, match="'heads:operands=float32' is for nothing in this model; names are head"):
        wrong.apply(block)
    same = Precision.parse("fp16.32/head:operands=float16")
    assert str(wrong.apply(block, whole=False)) == str(same.apply(block))
    Precision.parse("fp16.32/layers.0:weights=float16/head:grad_weight.partials=float16").apply(block)


def test_rules_are_made_of_texts() -> None:
    with pytest.raises(TypeError, match="pattern must be a str, not 3"):
        PrecisionRule(3, "weights", float16)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="field must be a str, not None"):
        PrecisionRule("head", None, float16)  # type: ignore[arg-type]
    own = FloatFormat("own", 4, 3)
    assert Precision("mine", rules=(PrecisionRule("head", "operands", own),)).at(_of_head()).operands == own
    assert Precision.parse("fp32.32/head:operands=e4m3").at(_of_head()).operands == float8_e4m3fn
    assert Precision.parse("fp16.16/stochastic/head:nearest_even").rules[0] == Precision.parse(
        "fp16.16/stochastic/head:nearest").rules[0]  # fmt: skip


def _of_head() -> Equation:
    return next(e for e in equations_of(IDEAL) if e.parameter == "head")
