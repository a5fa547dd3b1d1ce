"""Keys and random words: known answers, the map from index to bits, chunks, threads, backends."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.backends.reference.random import half_word, philox, whole_word

FULL = 0xFFFFFFFF
# Random123's kat_vectors file: rounds, counter, key, words.
KNOWN = [
    (7, (0, 0, 0, 0), 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, (FULL,) * 4, 2**64 - 1, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (
        7,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
    (10, (0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, (FULL,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        10,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("rounds, counter, key, words", KNOWN)
def test_random123_known_answers(
    rounds: int, counter: tuple[int, int, int, int], key: int, words: tuple[int, ...]
) -> None:
    assert philox(counter, key, rounds) == words
    assert _kernels.philox(*counter, key, rounds) == words


def test_the_maps_visit_every_word_once() -> None:
    halves = [half_word(p) for p in range(64)]
    assert sorted(halves) == sorted(itertools.product(range(8), range(4), range(2)))
    wholes = [whole_word(p) for p in range(32)]
    assert sorted(wholes) == sorted(itertools.product(range(8), range(4)))


@pytest.mark.parametrize("bits", [1, 3, 16, 17, 32])
@pytest.mark.parametrize("offset", [0, 5, 2**32 - 3, 2**63, 2**64 - 70])
def test_words_are_the_same_on_every_backend(bits: int, offset: int, backend: str) -> None:
    with lp.testing.backend("cpu"):
        want = lp.random_bits(9, 70, bits, offset=offset)
    got = lp.random_bits(9, 70, bits, offset=offset)
    lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_words_are_the_same_on_every_instruction_set_and_in_any_chunks(isa: str) -> None:
    want = lp.random_bits(1, 200_000, 16)
    wide = lp.random_bits(1, 3000, 32, use="dropout")
    with lp.testing.isa(isa):
        for threads in (1, 2):
            with lp.num_threads(threads):
                lp.testing.assert_same_bits(lp.random_bits(1, (400, 500), 16).ravel(), want)
        for size in (1, 37, 64, 999):
            parts = [lp.random_bits(1, size, 32, use="dropout", offset=i) for i in range(0, 2997, size)]
            lp.testing.assert_same_bits(np.concatenate(parts)[:2997], wide[:2997])


def test_fewer_bits_are_the_top_ones() -> None:
    whole = lp.random_bits(4, 100, 16)
    wide = lp.random_bits(4, 100, 32)
    assert whole.dtype == np.uint16
    assert wide.dtype == np.uint32
    np.testing.assert_array_equal(lp.random_bits(4, 100, 5), whole >> 11)
    np.testing.assert_array_equal(lp.random_bits(4, 100, 20), wide >> 12)


def test_uses_do_not_share_words() -> None:
    assert not np.array_equal(lp.random_bits(4, 10, use="user"), lp.random_bits(4, 10, use="dropout"))


def test_words_look_uniform() -> None:
    """Chi-square over the 256 values of the top byte of a million draws (fixed key; 99.9999 % point of 255 degrees)."""
    counts = np.bincount(lp.random_bits(0, 1 << 20, 8), minlength=256)
    assert ((counts - 4096.0) ** 2 / 4096).sum() < 377


def test_keys_are_values() -> None:
    key = lp.Key(2**64 - 1)
    assert key == lp.Key(np.uint64(2**64 - 1))
    assert key != lp.Key(0)
    assert len({lp.Key(1), lp.Key(1), lp.Key(2)}) == 2
    assert pickle.loads(pickle.dumps(key)) == key
    assert repr(lp.Key(255)) == "Key(0xff)"
    with pytest.raises(AttributeError, match="cannot be changed"):
        key.value = 3


def test_derived_keys() -> None:
    """fold_in and split are Philox of tagged counters, and depend on nothing else."""
    key, n = lp.Key(0x0123456789ABCDEF), 2**40 + 7
    words = philox((11 << 24, n & FULL, n >> 32, 0), key.value)
    assert key.fold_in(n).value == words[0] | words[1] << 32
    words = philox((12 << 24, 2, 0, 0), key.value)
    assert key.split(5)[2].value == words[0] | words[1] << 32
    assert key.split(5)[:2] == key.split(2)
    assert key.fold_in(np.int64(3)) == key.fold_in(3)
    derived = [key.fold_in(i) for i in range(1000)] + list(key.split(1000))
    assert len(set(derived)) == 2000


@pytest.mark.parametrize("bad, error", [(-1, ValueError), (2**64, ValueError), (1.5, TypeError), ("a", TypeError)])
def test_bad_keys(bad: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"integer in \[0, 2\^64\)"):
        lp.Key(bad)  # type: ignore[arg-type]
    with pytest.raises(error):
        lp.Key(0).fold_in(bad)  # type: ignore[arg-type]
    with pytest.raises(error):
        lp.random_bits(bad, 3)  # type: ignore[arg-type]


def test_bad_draws() -> None:
    with pytest.raises(ValueError, match="bits must be 1 to 32"):
        lp.random_bits(0, 3, 33)
    with pytest.raises(ValueError, match="allowed are user, dropout"):
        lp.random_bits(0, 3, use="rounding")
