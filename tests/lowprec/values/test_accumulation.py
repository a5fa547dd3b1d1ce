"""Accumulation: parts, stages, words and hash."""

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec import Accumulation, FloatFormat, Rounding, as_format, float16, formats
from lowprec.values.accumulation import run_length, stage_count
from lowprec.values.sum_rules import sum_rules


@given(st.integers(0, 5000), st.integers(1, 70), st.integers(1, 300))
def test_parts_are_whole_groups_and_cover_every_term_once(size: int, group: int, splits: int) -> None:
    order = Accumulation(group=group, splits=splits)
    parts = order.parts(size)
    chunk = group * math.ceil(math.ceil(size / group) / splits) if size else group
    assert [k for start, end in parts for k in range(start, end)] == list(range(size))
    assert all(start == i * chunk for i, (start, _) in enumerate(parts))
    assert all(end > start for start, end in parts)
    assert len(parts) <= splits


@given(st.integers(1, 2000), st.sampled_from([None, 1, 2, 3]))
def test_stages_cover_their_results_in_order(parts: int, stages: int | None) -> None:
    runs = Accumulation(stages=stages).stage_runs(parts)
    left = parts
    for stage in runs:
        assert [i for start, end in stage for i in range(start, end)] == list(range(left))
        left = len(stage)
    assert left == 1
    assert len(runs) == (stage_count(parts) if stages is None else stages)


def test_stage_borders_and_run_lengths() -> None:
    assert [stage_count(n) for n in (1, 15, 16, 124, 125, 10**6)] == [1, 1, 2, 2, 3, 3]
    assert [run_length(n, 2) for n in (1, 16, 17, 25, 26, 124)] == [1, 4, 5, 5, 6, 12]
    assert [run_length(n, 3) for n in (125, 126, 216, 217)] == [5, 6, 6, 7]
    assert Accumulation().stage_runs(17) == (((0, 5), (5, 10), (10, 15), (15, 17)), ((0, 4),))


def test_digest_is_pinned_and_every_field_changes_it() -> None:
    order = Accumulation(group=16, splits=4, accumulate="float16")
    assert order.words() == (
        "group 16, splits 4, stages by number of parts, accumulate float16, out float16, adder sequential"
    )
    assert order.digest() == ("878da02ff7e5e07aabe1a6f38993738203e20185ef2c575614eda1195dbb3506")
    changes: tuple[dict[str, object], ...] = (
        {"group": 8},
        {"splits": 2},
        {"stages": 2},
        {"accumulate": "float32"},
        {"out": "float32"},
        {"adder": "dot4"},
    )
    assert len({order.digest(), *(replace(order, **change).digest() for change in changes)}) == 7
    assert order.with_types("float32", "float16").with_types("float16", "float16") == order
    assert hash(order) == hash(replace(order))


def test_formats_of_one_name_have_digests_of_their_own() -> None:
    """Else a study would take the results of one for those of the other."""
    mine = [FloatFormat("mine", 5, 10, bias) for bias in (15, 16)]
    called_float16 = FloatFormat("float16", 5, 10, 16)
    for field in ("accumulate", "out"):
        orders = [replace(Accumulation(), **{field: fmt}) for fmt in (float16, called_float16, *mine)]
        assert orders[0].words() == orders[1].words()
        assert orders[2].words() == orders[3].words()
        assert len({order.digest() for order in orders}) == 4


def test_the_places_of_an_aligned_adder_belong_to_it() -> None:
    order = Accumulation(group=32, accumulate="float16", adder="aligned", aligned_bits=13)
    assert order.words().endswith("adder aligned (13 bits)")
    assert replace(order, aligned_bits=14).digest() != order.digest()
    assert replace(order, aligned_bits=14) != order
    assert order.with_types("float32").aligned_bits == order.one_part().aligned_bits == 13
    assert pickle.loads(pickle.dumps(order)) == order


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"group": 0}, "group must be an integer of at least 1"),
        ({"splits": 2.0}, "splits must be an integer"),
        ({"stages": 4}, "stages must be 1, 2 or 3"),
        ({"adder": "tree"}, "sequential, dot4, pairwise, aligned"),
        ({"group": True}, "group must be an integer"),
        ({"accumulate": "float8_e8m0fnu"}, "cannot accumulate: it has no negative numbers or no zero"),
        ({"aligned_bits": 13}, "aligned_bits=13 is for adder='aligned', not 'sequential'"),
        ({"adder": "aligned"}, "needs aligned_bits, 1 to 35, not None"),
        ({"adder": "aligned", "aligned_bits": 36}, "needs aligned_bits, 1 to 35, not 36"),
        ({"adder": "aligned", "aligned_bits": 13, "group": None}, "needs a group of at most 32768 products, not None"),
        ({"adder": "aligned", "aligned_bits": 13, "group": 32769}, "needs a group of at most 32768 products"),
        ({"accumulate": "halve"}, "halve"),
        ({"accumulate": "float8_e8m0fnu"}, "cannot accumulate"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Accumulation(**fields)  # type: ignore[arg-type]


@given(
    *(st.integers(1, 9), st.integers(0, 4), st.integers(-20, 180)),
    *(st.sampled_from(["ieee", "top", "negative_zero", "none"]), st.booleans(), st.booleans()),
)
def test_accumulators_are_the_formats_whose_every_value_is_a_float32(
    exponent_bits: int, mantissa_bits: int, bias: int, nan: Any, infinities: bool, subnormals: bool
) -> None:
    try:
        fmt = FloatFormat("any", exponent_bits, mantissa_bits, bias, True, infinities, nan, subnormals)
    except ValueError:
        return
    values = np.array([fmt.value_of(code) for code in range(1 << fmt.bits)])
    with np.errstate(over="ignore"):
        held = np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True)
    assert taken(fmt) == held


def test_wide_significands_and_ranges_that_float32_holds_and_does_not() -> None:
    edges = {(8, 22, 127): True, (8, 22, 128): True, (8, 22, 129): False, (8, 21, 129): True, (8, 22, 126): False}
    edges |= {(2, 23, 1): True, (2, 24, 1): False, (2, 25, 1): False, (7, 23, 127): True, (7, 23, 128): False}
    edges |= {(9, 2, 255): False, (1, 23, 149 - 22): True, (4, 20, 131): False, (4, 20, 130): True, (4, 20, 176): False}
    for (exponent_bits, mantissa_bits, bias), held in edges.items():
        fmt = FloatFormat("any", exponent_bits, mantissa_bits, bias)
        assert taken(fmt) == held, (exponent_bits, mantissa_bits, bias)
    named = {name for name, fmt in formats.items() if not taken(fmt)}
    assert named == {"float64", "float8_e8m0fnu"}


def taken(fmt: FloatFormat) -> bool:
    """Whether sums in float32 accumulate in a format."""
    try:
        return sum_rules(Accumulation(accumulate=fmt, out="float32"), Rounding()).out == as_format("float32")
    except ValueError:
        return False


def test_sums_in_float32_refuse_wider_accumulators_than_an_accumulation_says() -> None:
    order = Accumulation(splits=2, accumulate="e2m25", out="float64")
    assert "accumulate e2m25, out float64" in order.words()
    assert order.parts(33) == Accumulation(splits=2).parts(33)
    with pytest.raises(ValueError, match="e2m25 cannot accumulate: partial sums are float32, which lacks some of its"):
        sum_rules(order, Rounding())
