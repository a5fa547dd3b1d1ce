"""`identify`: black boxes made from known arithmetics are named, all others refused, and what is named trains."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from ipu_core import Precision, execute, trace
from lowprec import Accumulation, FloatFormat, Rounding, as_format
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.black_box import differing
from tests.lowprec.identification.boxes import draw, same

REGISTER = FloatFormat("e8m13", 8, 13)
FP8 = Operands(as_format("float8_e4m3fn"))
TENSOR_CORE = Arithmetic(
    Accumulation(32, 1, None, REGISTER, "float32", "aligned", 13), Rounding("toward_zero"), FP8, promote=128
)
BOXES = [
    Arithmetic(Accumulation(16)),
    Arithmetic(Accumulation(16, accumulate="float16"), operands=Operands(as_format("float16"))),
    Arithmetic(Accumulation(16, 1, None, "float32", "bfloat16", "aligned", 25), operands=Operands(as_format("bf16"))),
    Arithmetic(
        Accumulation(24, 4, None, "float16", "float32"),
        Rounding("nearest_away"),
        Operands(as_format("tfloat32"), Rounding("toward_zero")),
    ),
    Arithmetic(
        Accumulation(10, adder="aligned", aligned_bits=9), Rounding("toward_zero"), Operands(as_format("tf32")), 390
    ),
    Arithmetic(Accumulation(None, 7, adder="pairwise"), operands=Operands(as_format("bfloat16"))),
    Arithmetic(Accumulation(8, 20, 2, "bfloat16", adder="sequential"), Rounding("up", flush=True)),
]


@cache
def known(box: Arithmetic) -> lp.Identified:
    return lp.identify(box, trials=10**4)


@pytest.mark.parametrize("box", BOXES, ids=Arithmetic.words)
def test_known_arithmetics_are_named(box: Arithmetic) -> None:
    found = known(box)
    assert found.arithmetic is not None, found.reason
    assert found.any_length
    assert same(box, found)
    assert found.operands == box.operands
    assert found.counterexample is None
    assert "reproduces 10,000 random products" in str(found)


def test_a_tensor_core_with_promotion_is_named_to_the_letter() -> None:
    found = known(TENSOR_CORE)
    assert found.arithmetic == TENSOR_CORE
    assert found.order(4096).splits == 32


def test_blocks_of_a_fixed_length_are_no_number_of_parts() -> None:
    def blocks(a: Any, b: Any) -> Any:
        left, right = lp.round(a, "bfloat16"), lp.round(b, "bfloat16")
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for start in range(0, a.shape[1], 32):
            total += lp.matmul(left[:, start : start + 32], right[start : start + 32])
        return total

    found = lp.identify(blocks, trials=1000)
    assert found.promote == 32
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 5024), (5024, 8)))
    assert not differing(found(a, b), blocks(a, b)).any()
    assert "promote=32" in str(Precision.parse(found))


# What only sums that cancel flush; a largest accumulator that is rounded up in the result; the ends of groups of dot4.
@pytest.mark.parametrize("number", [14, 28, 85])
def test_boxes_that_few_numbers_tell_from_another(number: int) -> None:
    box = draw(number)
    found = lp.identify(box, trials=20_000, terms=128)
    assert found.arithmetic is not None
    assert same(box, found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_a_hundred_random_boxes_most_are_named_and_none_wrongly() -> None:
    found = [(box := draw(number), lp.identify(box, trials=10**5)) for number in range(100)]
    named = [(box, answer) for box, answer in found if answer.arithmetic is not None]
    assert len(named) >= 95
    for box, answer in named:
        assert same(box, answer), f"{answer} for {box.words()}"


def test_products_of_numpy_in_half_precision_are_named() -> None:
    found = lp.identify(lambda a, b: a.astype(np.float16) @ b.astype(np.float16), trials=10**4)
    assert found.operands == Operands(as_format("float16"))
    assert found.accumulation == Accumulation(16, accumulate="float32", out="float16")


def test_unfused_products_are_named() -> None:
    found = lp.identify(lambda a, b: np.cumsum(a[:, :, None] * b, axis=1)[:, -1], trials=10**3, terms=64)
    assert found.accumulation == Accumulation(1, adder="pairwise")


def test_a_sum_in_order_is_named_and_one_by_eights_is_refused_with_its_reason() -> None:
    found = lp.identify(lambda x: np.cumsum(x)[-1], kind="sum", trials=10**3, terms=256)
    assert found.accumulation == Accumulation(16)
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert found(x) == np.cumsum(x)[-1]
    with pytest.raises(TypeError, match="one vector"):
        found(x, x)
    other = lp.identify(lambda x: x.reshape(-1, 8).sum(0, dtype=np.float32).sum(dtype=np.float32), kind="sum", trials=9)
    assert other.arithmetic is None
    assert other.accumulation is other.rounding is other.operands is other.promote is None
    assert re.search(r"first \d+ .* no\s+groups and equal parts", str(other))
    with pytest.raises(ValueError, match="no arithmetic was found: the first"):
        other.order(3)


def test_a_buffer_that_is_given_again_and_again_is_no_trap() -> None:
    buffers: dict[tuple[int, int], Any] = {}

    def f(a: Any, b: Any) -> Any:
        shape = len(a), b.shape[1]
        buffer = buffers.setdefault(shape, np.empty(shape, np.float32))
        buffer[...] = BOXES[3](a, b)
        return buffer

    found = lp.identify(f, trials=1000)
    assert found.arithmetic is not None, found.reason
    assert same(BOXES[3], found)
    calls = iter(range(10**6))

    def other(a: Any, b: Any) -> Any:
        buffer = buffers.setdefault((len(a), b.shape[1]), np.empty((len(a), b.shape[1]), np.float32))
        buffer[...] = next(calls)
        return buffer

    with pytest.raises(ValueError, match="not deterministic"):
        lp.identify(other)


def _scaled(a: Any, b: Any) -> Any:
    return BOXES[0](a, b) * np.float32(1.5)


def _mixed(a: Any, b: Any) -> Any:
    return BOXES[0](lp.round(a, "bfloat16"), b)


def _late(a: Any, b: Any) -> Any:
    result = BOXES[0](a, b)
    return np.where(np.abs(a).max(1)[:, None] > 2**30, result * 2, result)


@pytest.mark.parametrize(
    ("f", "says"),
    [(_scaled, "of no format and rounding"), (_mixed, "cast differently"), (_late, "very large and very small")],
)
def test_what_is_no_known_arithmetic_is_refused(f: Any, says: str) -> None:
    found = lp.identify(f, trials=100)
    assert found.arithmetic is None
    assert says in found.reason


def test_what_fits_chosen_inputs_alone_is_refuted_by_random_ones() -> None:
    def f(a: Any, b: Any) -> Any:
        # Random elements come in blocks of 1024 rows, which no chosen inputs have.
        return BOXES[0](a, b) + (len(a) == 1024) * np.float32(1)

    found = lp.identify(f, trials=10**5, terms=128)
    assert found.arithmetic is None
    assert found.nearest == BOXES[0]
    assert found.counterexample is not None
    assert "the black box gives" in found.reason


def test_wrong_calls() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(ValueError, match="not deterministic"):
        lp.identify(lambda a, b: generator.random((len(a), b.shape[1])).astype("f4"))
    with pytest.raises(TypeError, match="f must be a function of two matrices"):
        lp.identify("matmul")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="f must give an array"):
        lp.identify(lambda a, b: None)
    assert "is zero, infinite or NaN" in lp.identify(lambda a, b: np.zeros((len(a), b.shape[1]), np.float32)).reason
    with pytest.raises(ValueError, match="terms must be an integer of at least 64"):
        lp.identify(BOXES[0], terms=3)
    with pytest.raises(ValueError, match="unknown kind"):
        lp.identify(BOXES[0], kind="dot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float32 or narrower"):
        lp.identify(lambda a, b: a.astype(float) @ b)


@pytest.mark.parametrize("box", [BOXES[0], BOXES[1], TENSOR_CORE], ids=Arithmetic.words)
def test_what_is_named_is_a_precision_with_the_same_products(box: Arithmetic) -> None:
    found = known(box)
    precision = Precision.parse(found)
    assert Precision.parse(str(precision)).changed() == precision.changed()
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 1024), (1024, 16)))
    block = precision.apply(trace(lambda x, y: x @ y, a, b))
    result = np.asarray(execute(block, a, b, key=0), np.float32)
    assert not differing(result, np.asarray(box(a, b), np.float32)).any()


def test_what_no_precision_says_is_refused() -> None:
    one_stage = Arithmetic(Accumulation(8, 20, 1, "bfloat16"))
    flushed = Arithmetic(Accumulation(16), Rounding(flush=True))
    cast = Arithmetic(Accumulation(16), operands=Operands(rounding=Rounding(flush=True)))
    cases = [
        (BOXES[5], "all of a part"),
        (one_stage, "1 stages"),
        (flushed, "flush are nothing"),
        (cast, "operands that"),
    ]
    for box, says in cases:
        with pytest.raises(ValueError, match=says):
            Precision.parse(lp.identify(box, trials=100, terms=128))


def test_golden_vectors_hold_the_results_of_their_codes(tmp_path: Path) -> None:
    written = lp.golden_vectors(tmp_path / "a", BOXES[1].accumulation, operands="float16", terms=48, rows=20)
    read = np.load(tmp_path / "a.npz")
    assert set(read) == set(written)
    assert str(read["words"]) == BOXES[1].words()
    for name in ("sizes", "four", "long"):
        a, b = (lp.decode(read[f"{name}_{side}_codes"], "float16") for side in "ab")
        result = lp.matmul(a.astype(np.float16), b.astype(np.float16), accumulate="float16", group=16)
        assert (result.view(np.uint16) == read[f"{name}_result_codes"])[~np.isnan(result)].all()
    again = lp.golden_vectors(tmp_path / "b.npz", BOXES[1].accumulation, operands="float16", terms=48, rows=20)
    assert all((written[name] == again[name]).all() for name in written)
    with pytest.raises(TypeError, match="what identify found"):
        lp.golden_vectors(tmp_path / "c", "fp16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="random bits"):
        lp.golden_vectors(tmp_path / "c", Accumulation(), rounding=Rounding("stochastic"))
