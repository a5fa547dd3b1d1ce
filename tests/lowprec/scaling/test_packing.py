"""Packing of narrow codes into bytes, against the stream of bits written out."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec

NARROW = ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", lowprec.FloatFormat("e3m1", 3, 1)]


def stream(codes: list[int], bits: int) -> list[int]:
    """The bytes of a row, from one big number."""
    number = sum(code << bits * i for i, code in enumerate(codes))
    return list(number.to_bytes(-(-len(codes) * bits // 8), "little"))


@pytest.mark.parametrize("fmt", NARROW, ids=str)
@given(data=st.data(), n=st.integers(0, 40), rows=st.integers(0, 3))
def test_rows_are_streams_of_bits_and_come_back(fmt, data, n, rows):
    bits = lowprec.as_format(fmt).bits
    codes = np.array(
        data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=rows * n, max_size=rows * n)), np.uint8
    ).reshape(rows, n)
    packed = lowprec.pack(codes, fmt)
    assert packed.shape == (rows, -(-n * bits // 8))
    assert packed.tolist() == [stream(row, bits) for row in codes.tolist()]
    np.testing.assert_array_equal(lowprec.unpack(packed, fmt, n), codes)


def test_even_codes_lie_in_the_low_half():
    assert lowprec.pack([0x1, 0x2, 0x3], "float4_e2m1fn").tolist() == [0x21, 0x03]


def test_storage_arrays_are_codes():
    x = np.array([0.5, -6, 1.5], ml_dtypes.float4_e2m1fn)
    packed = lowprec.pack(x[::-1], x.dtype)
    np.testing.assert_array_equal(lowprec.unpack(packed, x.dtype, 3).view(x.dtype), x[::-1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lowprec.pack([16], "float4_e2m1fn"), r"codes of float4_e2m1fn must be in \[0, 16\)"),
        (lambda: lowprec.pack([-1], "float4_e2m1fn"), r"codes of float4_e2m1fn must be in \[0, 16\)"),
        (lambda: lowprec.pack(3, "float4_e2m1fn"), "at least one axis"),
        (lambda: lowprec.pack([1], "float16"), "at most 8 bits"),
        (lambda: lowprec.unpack(np.zeros(2, np.uint8), "float6_e2m3fn", 3), "take rows of 3 bytes"),
        (lambda: lowprec.unpack(np.zeros(0, np.uint8), "float6_e2m3fn", -1), "size must be at least 0"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_refuses_other_dtypes():
    with pytest.raises(TypeError, match="integer codes"):
        lowprec.pack([0.5], "float4_e2m1fn")
    with pytest.raises(TypeError, match="uint8"):
        lowprec.unpack(np.zeros(2, np.int32), "float4_e2m1fn", 4)


@pytest.mark.parametrize("isa", lowprec.testing.isa_names())
@pytest.mark.parametrize("bits", range(2, 9))
def test_long_rows_and_threads(isa, bits):
    """Whole vectors, their tails, and pieces of several threads, against the stream written bit by bit."""
    fmt = lowprec.FloatFormat(f"of {bits} bits", 1, bits - 2, infinities=False, nan="none")
    rng = np.random.default_rng(bits)
    for shape in [(3, 517), (1, 128), (2, 640), (600_001,)]:
        codes = rng.integers(0, 1 << bits, shape).astype(np.uint8)
        stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
        expected = np.packbits(stream.reshape(*shape[:-1], shape[-1] * bits), axis=-1, bitorder="little")
        with lowprec.testing.isa(isa), lowprec.num_threads(2):
            packed = lowprec.pack(codes, fmt)
            np.testing.assert_array_equal(packed, expected)
            np.testing.assert_array_equal(lowprec.unpack(packed, fmt, shape[-1]), codes)
            if bits < 8:
                codes.flat[-3] = 1 << bits
                with pytest.raises(ValueError, match="must be in"):
                    lowprec.pack(codes, fmt)
