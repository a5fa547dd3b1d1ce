"""A precision's text is a name from which it can be made again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core.ir.precision.operand_scaling import SCALINGS
from ipu_core.ir.precision.precision import PRESETS, Precision
from ipu_core.ir.precision.role_formats import FORMATS
from ipu_core.ir.precision.rules import PrecisionRule
from lowprec import FloatFormat, float16
from lowprec.values.rounding import STOCHASTIC

NAMES = [f"{name}/nearest" if name == "fp16.16" else name for name in PRESETS]
FORMAT = st.sampled_from(["float32", "float16", "bfloat16", "float8_e5m2", "e6m9", "binary8p3se"])
WORDS = st.one_of(
    st.sampled_from(["nearest", "stochastic", "streamed", "unstreamed", "moments=half", "scaled_state=0.3",
                     "scaled_state=1024", "running_mean=true", "store_root=true", "store_root=false", "promote=128",
                     "group=8", "splits=3", "adder=dot4", "adder=aligned13", "adder=sequential",
                     "norms=operands", "norms=float32"]),
    st.builds("{}={}".format, st.sampled_from(FORMATS), FORMAT),
)  # fmt: skip
CAST = st.sampled_from(
    ["unscaled", "current", "forward=float8_e4m3fnuz", "backward=mxfp8_e5m2", "forward_scale=0.1", "margin=-3",
     "backward_rounding=stochastic", "rotation=fixed", "rotation_block=16", "scale_rule=none"]
)  # fmt: skip
OF_NO_C600 = {"forward_scale=0.1", "backward=mxfp8_e5m2"}
"""What products whose scales are powers of two of whole tensors refuse."""
PATTERNS = st.sampled_from(["", "layers.0", "*.attention.*", "head.weight"])
RULES = st.one_of(
    st.builds("{}:{}={}".format, PATTERNS, st.sampled_from(FORMATS), FORMAT),
    st.builds("{}:{}.{}={}".format, PATTERNS, st.sampled_from(["forward", "grad_weight"]),
              st.sampled_from(["operands", "partials", "output"]), FORMAT),
    st.builds("{}:{}".format, PATTERNS, st.sampled_from(["nearest", "stochastic", "moments=half", "scaling=none",
                                                         "scaling=mxfp4", "grad_input.rounding=nearest"])),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_s_text_is_its_name(name: str) -> None:
    precision = Precision.parse(name)
    assert str(precision) == name
    assert Precision.parse(str(precision)) == precision
    assert str(replace(PRESETS[name.split("/")[0]], name="")) == name  # the shortest that says it


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.lists(WORDS, max_size=4), st.lists(CAST, max_size=3), st.lists(RULES, max_size=3))
def test_a_text_is_parsed_to_what_it_is_of(preset: str, words: list[str], cast: list[str], rules: list[str]) -> None:
    said = [word for word in cast if preset in SCALINGS and not (preset == "fp8.16" and word in OF_NO_C600)]
    if preset == "h100-fp8" or "promote=128" in words:
        words = [word for word in words if word != "splits=3"]  # refused: a promotion says the parts
    precision = Precision.parse("/".join([preset, *words, *said, *rules]))
    assert str(precision) == precision.name
    mine = replace(precision, name="mine")
    assert replace(Precision.parse(str(mine)), name="mine") == mine
    assert Precision.parse(str(mine)) == replace(mine, name=str(mine))


@pytest.mark.parametrize("make, says", [
    (lambda: Precision("fp16.16/nearest"), "'fp16.16/nearest' says another operands, gradients, partials, output"),
    (lambda: Precision("fp16.32", rules=("head:weights=float16",)), "'fp16.32' says another operands"),
    (lambda: Precision("fp32.32", weights=float16), r"another weights than .*\.changed\(weights=\.\.\.\)"),
    (lambda: replace(Precision.parse("fp8"), weights=float16), "'fp8' says another weights"),
    (lambda: replace(Precision.parse("fp8"), scaling=None), "'fp8' says another scaling"),
    (lambda: replace(Precision.parse("fp32.32"), streamed=True), "says another streamed"),
    (lambda: replace(Precision.parse("fp32.32/a:weights=float16"), rules=()), "says another rules"),
    (lambda: Precision("fp16.16"), "'fp16.16' must say how it rounds"),
    (lambda: Precision("fp16.32/weights=float31"), "unknown format 'float31'"),
    (lambda: Precision("fp32.32/"), "nothing between two '/', or behind the last one, in 'fp32.32/'"),
    (lambda: Precision("FP32.32"), "unknown precision 'FP32.32': did you mean 'fp32.32'"),
    (lambda: Precision(" fp32.32"), "unknown precision ' fp32.32'"),
    (lambda: Precision("float16"), "'float16' is that of a format, but operands are float32"),
    (lambda: Precision("bf16", float16), "'bf16' is that of a format, but operands are float16"),
])  # fmt: skip
def test_a_name_that_says_something_else_is_refused(make: Callable[[], Precision], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("name", [*NAMES, "fp8/head:scaling=none", "fp16.16/stochastic/layers.*:weights=float32"])
def test_a_name_that_says_the_same_is_taken(name: str) -> None:
    known = Precision.parse(name)
    same = Precision(**{field.name: getattr(known, field.name) for field in fields(Precision)})
    assert same == known
    assert hash(same) == hash(known)
    assert pickle.loads(pickle.dumps(known)) == copy.deepcopy(known) == known
    assert eval(repr(known), {"Precision": Precision}) == known
    assert replace(known, name="mine") != known


def test_a_precision_shows_what_makes_it_again() -> None:
    mine = Precision("mine", weights=float16)
    assert repr(mine) == "replace(Precision.parse('fp32.32/weights=float16'), name='mine')"
    assert eval(repr(mine), {"Precision": Precision, "replace": replace}) == mine
    own = Precision("mine", weights=FloatFormat("own", 5, 4, bias=3))
    assert repr(own).startswith("<Precision mine: operands float32")


def test_what_is_changed_is_called_so() -> None:
    fp8 = Precision.parse("fp8")
    assert str(fp8.changed(weights=float16)) == "fp8/weights=float16"
    assert fp8.changed(weights=float16) == Precision.parse("fp8/weights=float16")
    assert fp8.changed(weights=float16).changed(weights=fp8.weights) == fp8
    own = fp8.changed(weights=FloatFormat("own", 5, 4, bias=3))
    assert (own.name, own.weights.name, own.scaling) == ("changed fp8", "own", fp8.scaling)
    rules = PrecisionRule("head", "scaling", None), PrecisionRule("head", "rounding", STOCHASTIC)
    assert fp8.with_rules(rules) == Precision.parse("fp8/head:scaling=none/head:rounding=stochastic")
    assert Precision("mine").with_rules(rules[1:]).name == "mine/head:rounding=stochastic"
    unnamed = PrecisionRule("head", "scaling", replace(SCALINGS["fp8"], margin=1))
    assert fp8.with_rules([unnamed]).name == "changed fp8"


@pytest.mark.parametrize("spec, says", [
    ("fp16.32//nearest", "nothing between two '/'"),
    ("fp16.32/", "nothing between two '/'"),
    ("fp16.32/ nearest", "unknown word ' nearest'"),
    ("fp16.32/Nearest", "unknown word 'Nearest'"),
    ("FP16.32", "did you mean 'fp16.32'"),
    ("fp16.32 ", "did you mean 'fp16.32'"),
    ("fp16.32/weights = float16", "unknown field 'weights '"),
    ("fp16.32/weights= float16", "unknown format ' float16'"),
    ("fp16.32/scaled_state=1_0", "not '1_0'"),
    ("fp16.32/scaled_state= 2", "not ' 2'"),
    ("fp16.32/scaled_state=nan", "not 'nan'"),
    ("fp16.32/promote=\u0663", "not '\u0663'"),
    ("fp16.32/promote=1e2", "not 100"),
    ("fp16.32/promote=64/splits=2", "beside it splits=2 does nothing"),
    ("fp16.32/group=0", "group must be an integer of at least 1"),
    ("fp16.32/splits=two", "splits must be an integer of at least 1, not 'two'"),
    ("fp16.32/adder=tree", "unknown adder 'tree'; allowed are sequential"),
    ("fp16.32/adder=aligned", "adder=aligned13"),
    ("fp16.32/adder=aligned99", "needs aligned_bits, 1 to 35, not 99"),
    ("fp8/margin= 3", "it is an integer, not ' 3'"),
    ("fp8/margin=1_0", "it is an integer, not '1_0'"),
    ("fp8/forward_scale=inf", "it is a number, not 'inf'"),
    ("fp8/forward_scale=1_0", "it is a number, not '1_0'"),
    ("fp16.32/running_mean=True", "must be true or false, not 'True'"),
    ("unit-fp8/unit_scaled=yes", "must be true or false, not 'yes'"),
])  # fmt: skip
def test_a_name_is_read_to_the_letter(spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Precision.parse(spec)


def test_of_two_words_for_one_field_the_later_counts() -> None:
    def fields_of(spec: str) -> Precision:
        return replace(Precision.parse(spec), name="")

    assert fields_of("fp16.16/stochastic/nearest") == fields_of("fp16.16/nearest")
    assert fields_of("fp32.32/weights=float16/weights=float32") == fields_of("fp32.32")
    assert fields_of("fp8/head:scaling=none/margin=1") == fields_of("fp8/margin=1/head:scaling=none")


@pytest.mark.parametrize("wrong, kind, says", [
    ({"scaling": "fp8"}, TypeError, "scaling must be an OperandScaling or None, not 'fp8'"),
    ({"streamed": "no"}, TypeError, "streamed must be True or False, not 'no'"),
    ({"running_mean": 2}, TypeError, "running_mean must be True or False, not 2"),
    ({"store_root": "false"}, TypeError, "store_root must be True or False"),
    ({"unit_scaled": None}, TypeError, "unit_scaled must be True or False"),
    ({"scaled_state": True}, ValueError, "scaled_state must be a number"),
    ({"norms": "float16"}, ValueError, "norms must be 'float32' or 'operands', not 'float16'"),
    ({"norms": None}, ValueError, "not None"),
    ({"norms": "operands", "everywhere": True}, ValueError, "beside it norms='operands' does nothing"),
    ({"name": None}, TypeError, "name must be a text, not None"),
])  # fmt: skip
def test_fields_of_another_kind_are_refused(wrong: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Precision(**{"name": "mine", **wrong})


def test_what_no_name_says_is_told_in_words_which_are_refused_as_a_name() -> None:
    own = FloatFormat("own", 5, 4, bias=3)
    scaled = PrecisionRule("head", "scaling", replace(SCALINGS["fp8"], margin=1))
    for precision in (Precision("mine", weights=own), Precision("mine", rules=(scaled,))):
        assert str(precision) == precision.words()
        with pytest.raises(ValueError, match=r"settings of a precision are joined by|unknown precision"):
            Precision.parse(str(precision))


def test_what_may_be_none_is_none_in_a_name() -> None:
    assert Precision.parse("mxfp8/scale_rule=none").scaling == replace(SCALINGS["mxfp8"], scale_rule=None)
    assert Precision.parse("fp8/rotation=fixed/rotation=none").scaling == SCALINGS["fp8"]
    with pytest.raises(ValueError, match="rotation is fixed or random, not 'never'"):
        Precision.parse("fp8/rotation=never")
