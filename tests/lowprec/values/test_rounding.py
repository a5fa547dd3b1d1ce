"""Rounding as a value, and the keywords that stand for it and for an Accumulation."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import Accumulation, Rounding
from lowprec.values.rounding import MODES

X = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) * 100


def test_digest_is_pinned_and_every_field_changes_it() -> None:
    how = Rounding("stochastic", 8, "saturate", "nan", True)
    assert how.words() == "stochastic, random bits 8, overflow saturate, infinite input nan, flush"
    assert how.digest() == "91a8ef1db2ecc5117eb94ae533b10166edfa41af9ff240d9aeefb5ed182fb5a6"
    changes: tuple[dict[str, Any], ...] = (
        {"mode": "stochastic_half"},
        {"random_bits": 9},
        {"overflow": "infinity"},
        {"infinite_input": "max"},
        {"flush": False},
    )
    assert len({how.digest(), *(replace(how, **change).digest() for change in changes)}) == 6


def test_random_bits_play_no_part_in_the_words_of_other_modes() -> None:
    assert Rounding("up", 3).words() == Rounding("up").words() == "up"
    assert Rounding().words() == "nearest_even"


def test_equal_values_hash_and_pickle_alike() -> None:
    how = Rounding("stochastic", 8, overflow="nan")
    assert how == Rounding("stochastic", 8, "nan")
    assert hash(how) == hash(Rounding("stochastic", 8, "nan"))
    again = pickle.loads(pickle.dumps(how))
    assert again == how
    assert again.digest() == how.digest()


@pytest.mark.parametrize(
    "given, error, message",
    [
        (dict(mode="closest"), ValueError, "unknown rounding 'closest'; allowed are nearest_even"),
        (dict(mode="stochastic", random_bits=33), ValueError, "random_bits must be an integer of 1 to 32"),
        (dict(overflow="clip"), ValueError, "unknown overflow 'clip'"),
        (dict(infinite_input="inf"), ValueError, "unknown infinite_input 'inf'"),
        (dict(flush=1), TypeError, "flush must be True or False, not 1"),
    ],
)
def test_bad_fields_are_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Rounding(**given)


@pytest.mark.parametrize("mode", MODES)
def test_a_value_is_what_its_keywords_are(mode: Any, host_backend: str) -> None:
    policies: dict[str, Any] = dict(random_bits=7, overflow="saturate", infinite_input="max")
    how, key = Rounding(mode, **policies), {"key": 5}
    same = lp.testing.assert_same_bits
    for call in (lp.round, lp.astype, lp.encode):
        same(call(X, "float8_e5m2", how, **key), call(X, "float8_e5m2", mode, **policies, **key))
    same(lp.add(X, X, "float8_e5m2", how, **key), lp.add(X, X, "float8_e5m2", mode, **policies, **key))
    same(lp.sum(X, "float16", how, **key), lp.sum(X, "float16", mode, **policies, **key))
    same(lp.exp(X, "float16", how, **key), lp.exp(X, "float16", mode, **policies, **key))
    scaled = (lp.to_scaled(X, "float8_e5m2", rounding=r, **key, **p) for r, p in ((how, {}), (mode, policies)))  # type: ignore[arg-type]
    same(*(s.elements for s in scaled))
    order = Accumulation(4, 2, None, "float16", "float32")
    words: dict[str, Any] = dict(accumulate="float16", group=4, splits=2, out_format="float32")
    for function in (lp.matmul, lambda a, _, **k: lp.reduce_sum(a, **k)):
        same(
            function(X, X, accumulation=order, rounding=how, **key),
            function(X, X, **words, rounding=mode, **policies, **key),
        )


def test_a_part_takes_the_accumulation_of_the_whole(host_backend: str) -> None:
    order = Accumulation(2, 3, None, "float16", "float32")
    parts = np.stack([lp.matmul_part(X[:, s:e], X[s:e], accumulation=order) for s, e in order.parts(6)])
    whole = lp.sum_parts(parts, fmt=order.out, tag="output")
    lp.testing.assert_same_bits(whole, lp.matmul(X, X, accumulation=order))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: lp.matmul(X, X, accumulation=Accumulation(), group=4, splits=2), TypeError, "without group, splits"),
        (lambda: lp.reduce_sum(X, accumulation="float16"), TypeError, "accumulation must be a lowprec.Accumulation"),
        (lambda: lp.round(X, "float16", Rounding(), overflow="nan"), TypeError, "rounding= .* without overflow"),
        (lambda: lp.matmul(X, X, rounding=Rounding(), random_bits=4), TypeError, "rounding= .* without random_bits"),
        (lambda: lp.matmul(X, X, rounding=Rounding(flush=True)), ValueError, "sums do not flush"),
        (lambda: lp.matmul(X, X, rounding=Rounding("stochastic_half"), key=1), ValueError, "stochastic_half is for"),
        (lambda: lp.reduce_sum(X, rounding=Rounding("stochastic", "exact"), key=1), ValueError, "not 'exact'"),
        (lambda: lp.exp(X, rounding=Rounding(flush=True)), ValueError, "float32_op do not flush"),
        (lambda: lp.to_blocks(X, "nvfp4", rounding=Rounding(flush=True)), ValueError, "to_blocks does not flush"),
        (lambda: lp.to_blocks(X, "nvfp4", rounding=Rounding(infinite_input="nan")), ValueError, "block format says"),
        (lambda: lp.scatter_add([0], X[:1], 1, accumulation=Accumulation(splits=2)), ValueError, "one part"),
        (lambda: lp.scatter_add([0], X[:1], 1, splits=2), TypeError, r"unknown keywords \['splits'\]"),
        (lambda: lp.matmul(X, X, flush=True), TypeError, r"unknown keywords \['flush'\]"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_nearest_is_nearest_even_as_precisions_call_it() -> None:
    assert Rounding("nearest") == Rounding("nearest_even")  # type: ignore[arg-type]
    assert Rounding("nearest").mode == "nearest_even"  # type: ignore[arg-type]
    assert lp.round(0.1, "float16", "nearest") == lp.round(0.1, "float16")
