"""A precision's text is a name from which it can be made again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core.ir.precision import PRESETS, Precision
from ipu_core.ir.role_formats import FORMATS
from ipu_core.ir.rules import PrecisionRule
from ipu_core.ir.scaling import SCALINGS
from lowprec import FloatFormat, float16

NAMES = [f"{name}/nearest" if name == "fp16.16" else name for name in PRESETS]
FORMAT = st.sampled_from(["float32", "float16", "bfloat16", "float8_e5m2", "e6m9", "binary8p3se"])
WORDS = st.one_of(
    st.sampled_from(["nearest", "stochastic", "streamed", "unstreamed", "moments=half", "scaled_state=0.3",
                     "scaled_state=1024", "store_root=true", "store_root=false", "promote=128"]),
    st.builds("{}={}".format, st.sampled_from(FORMATS), FORMAT),
)  # fmt: skip
CAST = st.sampled_from(
    ["unscaled", "current", "forward=float8_e4m3fnuz", "backward=mxfp8_e5m2", "forward_scale=0.1", "margin=-3",
     "backward_rounding=stochastic", "rotation=fixed", "rotation_block=16", "scale_rule=none"]
)  # fmt: skip
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
    precision = Precision.parse("/".join([preset, *words, *(cast if preset in SCALINGS else []), *rules]))
    assert str(precision) == precision.name
    mine = replace(precision, name="mine")
    assert replace(Precision.parse(str(mine)), name="mine") == mine
    assert Precision.parse(str(mine)) == replace(mine, name=str(mine))


def test_a_name_that_says_something_else_is_not_its_text() -> None:
    assert str(Precision("fp16.32", rules=("head:weights=float16",))) == "fp32.32/head:weights=float16"
    assert str(Precision("fp16.32", weights=float16)) == "fp32.32/weights=float16"
    assert str(replace(Precision.parse("fp8"), name="mine", weights=float16)) == "fp8/weights=float16"


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
