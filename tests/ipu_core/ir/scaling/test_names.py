"""Names of precisions with scaled operands, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from lowprec import float8_e4m3fnuz
from tests.ipu_core.ir.scaling.models import loop


@pytest.mark.parametrize("spec, words", [
    ("fp8", "gc200 has no figure for float8_e4m3fn"),
    ("mxfp8", r"forward\.to_blocks\.\d+: gc200 has no unit for mxfp8_e4m3"),
])  # fmt: skip
def test_tiles_refuse_what_they_lack_and_name_the_engine_that_does_it(spec: str, words: str) -> None:
    with pytest.raises(UnsupportedByTarget, match=rf"{words}.*\(engine='direct'\)"):
        loop(spec, engine="tiles")


def test_a_history_needs_a_state_that_is_a_dict() -> None:
    block = trace(
        lambda state, x: (state, (x @ state[0]).sum()), [np.ones((3, 2), np.float32)], np.ones((4, 3)), carry=True
    )
    with pytest.raises(ValueError, match=r"carried in a dict as its last part, 'scaling'; the state has \[0\]"):
        Precision.parse("fp8/delayed").apply(block)


def test_words_and_overrides() -> None:
    precision = Precision.parse("fp8/delayed/amax_history_len=16/amax_compute_algo=most_recent/forward=float8_e4m3fnuz")
    assert precision.scaling.forward == float8_e4m3fnuz
    words = precision.words()
    assert (
        "products of float8_e4m3fnuz, backward float8_e5m2, scaled by the amax of earlier steps (most_recent of 16)"
        in words
    )
    assert "operands float16" in words
    assert (
        Precision.parse("fp8/margin=2/power_of_two=true")
        .words()
        .endswith("by powers of two scaled by their amax, margin 2")
    )


@pytest.mark.parametrize(
    "spec, message",
    [
        ("fp16.32/delayed", "'delayed' in 'fp16.32/delayed': only fp8"),
        ("fp8/late", "unknown word 'late'.*unscaled, static, current, delayed"),
        ("fp8/amax_history=3", "unknown field 'amax_history'.*amax_history_len"),
        ("fp8/amax_history_len=0", "amax_history_len must be an integer from 1"),
        ("fp8/amax_history_len=x", "'amax_history_len=x' in 'fp8/amax_history_len=x'"),
        ("fp8/amax_compute_algo=mean", "amax_compute_algo is max or most_recent, not 'mean'"),
        ("fp8/forward_scale=0", "forward_scale must be a positive float32"),
        ("fp8/forward=float64", "forward cannot be float64"),
        ("fp8/power_of_two=yes", "'power_of_two=yes' in 'fp8/power_of_two=yes': it is true or false"),
        ("fp8/inside=true", "must be powers of two: say power_of_two=true"),
        ("mxfp8/power_of_two=true/inside=true", "not of blocks"),
        ("fp8.16/static/forward_scale=3", "forward_scale must be a power of two from 2\\^-31 to 2\\^32, not 3"),
        ("mxfp8/scale_rule=up", "scale_rule of mxfp8_e4m3 is floor, ceil, even, rceil, not 'up'"),
        ("nvfp4/backward_rounding=upwards", "unknown rounding 'upwards'"),
    ],
)
def test_what_is_no_scaling_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Precision.parse(spec)
