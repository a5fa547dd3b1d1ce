"""Low-precision number formats, rounding and arithmetic for NumPy arrays, exact in every format and mode."""

try:
    from lowprec import _kernels as _kernels
except ImportError as error:
    raise ImportError(
        "lowprec's compiled module is missing: in a checkout run `make setup` (or `pip install -e .`), since a plain "
        f"install is shadowed by the source folder ({error})"
    ) from None

from lowprec import testing
from lowprec.elementwise import float32_op
from lowprec.explain import explain
from lowprec.finfo import finfo
from lowprec.float_format import FloatFormat
from lowprec.formats import (
    aliases,
    as_format,
    bfloat16,
    float4_e2m1fn,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e3m4,
    float8_e4m3,
    float8_e4m3b11fnuz,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    formats,
    p3109,
    tfloat32,
)
from lowprec.functions import cos, erf, exp, gelu, log, rsqrt, sigmoid, sin, tanh
from lowprec.matmul import matmul, matmul_part
from lowprec.random import Key, as_key, random_bits
from lowprec.reduction import reduce_max, reduce_part, reduce_sum, sum_parts
from lowprec.rounding import astype, decode, encode, round
from lowprec.threads import num_threads
from lowprec.xoroshiro import Xoroshiro128aox

__all__ = [
    "FloatFormat",
    "Key",
    "Xoroshiro128aox",
    "aliases",
    "as_format",
    "as_key",
    "astype",
    "bfloat16",
    "cos",
    "decode",
    "encode",
    "erf",
    "exp",
    "explain",
    "finfo",
    "float16",
    "float32",
    "float32_op",
    "float4_e2m1fn",
    "float64",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "formats",
    "gelu",
    "log",
    "matmul",
    "matmul_part",
    "num_threads",
    "p3109",
    "random_bits",
    "reduce_max",
    "reduce_part",
    "reduce_sum",
    "round",
    "rsqrt",
    "sigmoid",
    "sin",
    "sum_parts",
    "tanh",
    "testing",
    "tfloat32",
]
