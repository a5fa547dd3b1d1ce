"""Low-precision number formats, rounding and arithmetic for NumPy arrays, exact in every format and mode.

formats        FloatFormat, float16, bfloat16, float8_e4m3fn, ..., as_format, finfo, p3109,
               fixed_point, explain
rounding       round (values, in x's dtype), astype (the format's dtype), encode and decode (codes), pack, unpack
random bits    Key (fold_in, split), random_bits: every stochastic call takes a key
one operation  add, subtract, multiply, divide, sqrt, fma, scaled_add: the exact result, rounded once; exp, log,
               tanh, ... and float32_op: in float32, then rounded to the format
sums           sum, mean, dot, norm, cumulative_sum, kahan_sum: every addition is rounded to the format
accumulators   matmul, conv2d and its gradients, reduce_sum, scatter_add: as a matrix unit adds, in float32, rounded
               to the accumulator once per group; matmul_part, reduce_part and sum_parts are the pieces;
               Accumulation and Rounding say how as values
chips          all_reduce: the sum of several chips' arrays, in the order that a Collective says
scales         to_scaled (one per tensor or per axis), to_blocks (one per block: MX, NVFP4), scaled_matmul: their
               products; hadamard spreads outliers before
tools          statistics (what rounding did to an array), testing (backends, assertions, strategies), num_threads;

Where no format is named results and accumulators are float32; round, astype and encode are always told one. Arrays of
NumPy, torch, JAX (on the CPU) and CuPy go in, and results are of the same library.
"""

try:
    import lowprec._exit  # noqa: F401 - loads the compiled module, in an interpreter that was tested
except ModuleNotFoundError as error:
    raise ImportError(
        "lowprec's compiled module is missing: in a checkout run `make setup` (or `pip install -e .`), since a plain "
        f"install is shadowed by the source folder ({error})"
    ) from None

from typing import TYPE_CHECKING, Any

from lowprec.lazy import lazy_names
from lowprec.random import Key, as_key, random_bits
from lowprec.rounding import astype, decode, encode, round
from lowprec.sums.matmul import matmul, matmul_part
from lowprec.threads import num_threads
from lowprec.values.accumulation import Accumulation
from lowprec.values.collective import Collective
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import (
    aliases,
    as_format,
    bfloat16,
    fixed_point,
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
    stash143,
    tfloat32,
)
from lowprec.values.rounding import Rounding

if TYPE_CHECKING:
    from lowprec import statistics, testing
    from lowprec.arithmetic import add, divide, fma, multiply, scaled_add, sqrt, subtract
    from lowprec.convolution import conv2d, conv2d_input_gradient, conv2d_weight_gradient
    from lowprec.elementwise import float32_op
    from lowprec.explanation import Explanation, explain
    from lowprec.functions import cos, erf, exp, gelu, log, rsqrt, sigmoid, sin, tanh
    from lowprec.gradients import quantize
    from lowprec.identification.comparison import conformance
    from lowprec.identification.golden import golden_vectors
    from lowprec.identification.identified import Counterexample, Identified
    from lowprec.identification.identify import identify
    from lowprec.scaling.blocks import BlockArray, to_blocks
    from lowprec.scaling.packing import pack, unpack
    from lowprec.scaling.rotations import hadamard
    from lowprec.scaling.shared_scale_products import scaled_matmul
    from lowprec.scaling.tensor import ScaledArray, to_scaled
    from lowprec.sums.collectives import all_reduce
    from lowprec.sums.ordered import cumulative_sum, dot, kahan_sum, mean, norm, sum
    from lowprec.sums.reduce import reduce_max, reduce_part, reduce_sum, sum_parts
    from lowprec.sums.scatter import scatter_add
    from lowprec.values.block_format import BlockFormat, block_formats
    from lowprec.values.format_info import finfo
    from lowprec.version import __version__
    from lowprec.xoroshiro import Xoroshiro128aox

__all__ = [
    "Accumulation",
    "BlockArray",
    "BlockFormat",
    "Collective",
    "Counterexample",
    "Explanation",
    "FloatFormat",
    "Identified",
    "Key",
    "Rounding",
    "ScaledArray",
    "Xoroshiro128aox",
    "__version__",
    "add",
    "aliases",
    "all_reduce",
    "as_format",
    "as_key",
    "astype",
    "bfloat16",
    "block_formats",
    "conformance",
    "conv2d",
    "conv2d_input_gradient",
    "conv2d_weight_gradient",
    "cos",
    "cumulative_sum",
    "decode",
    "divide",
    "dot",
    "encode",
    "erf",
    "exp",
    "explain",
    "finfo",
    "fixed_point",
    "float4_e2m1fn",
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
    "float16",
    "float32",
    "float32_op",
    "float64",
    "fma",
    "formats",
    "gelu",
    "golden_vectors",
    "hadamard",
    "identify",
    "kahan_sum",
    "log",
    "matmul",
    "matmul_part",
    "mean",
    "multiply",
    "norm",
    "num_threads",
    "p3109",
    "pack",
    "quantize",
    "random_bits",
    "reduce_max",
    "reduce_part",
    "reduce_sum",
    "round",
    "rsqrt",
    "scaled_add",
    "scaled_matmul",
    "scatter_add",
    "sigmoid",
    "sin",
    "sqrt",
    "stash143",
    "statistics",
    "subtract",
    "sum",
    "sum_parts",
    "tanh",
    "testing",
    "tfloat32",
    "to_blocks",
    "to_scaled",
    "unpack",
]

# Formats and rounding come with the import. The rest is loaded when it is first asked for, so that the import stays
# short: this table and the one of backends/cpu are the only places that do so.
_find = lazy_names(
    __name__,
    {
        "arithmetic": "add divide fma multiply scaled_add sqrt subtract",
        "scaling.blocks": "BlockArray to_blocks",
        "convolution": "conv2d conv2d_input_gradient conv2d_weight_gradient",
        "elementwise": "float32_op",
        "identification.comparison": "conformance",
        "identification.identified": "Counterexample Identified",
        "identification.golden": "golden_vectors",
        "identification.identify": "identify",
        "explanation": "Explanation explain",
        "values.block_format": "BlockFormat block_formats",
        "values.format_info": "finfo",
        "gradients": "quantize",
        "functions": "cos erf exp gelu log rsqrt sigmoid sin tanh",
        "scaling.packing": "pack unpack",
        "scaling.shared_scale_products": "scaled_matmul",
        "scaling.rotations": "hadamard",
        "sums.reduce": "reduce_max reduce_part reduce_sum sum_parts",
        "scaling.tensor": "ScaledArray to_scaled",
        "sums.collectives": "all_reduce",
        "sums.scatter": "scatter_add",
        "statistics": "",
        "sums.ordered": "cumulative_sum dot kahan_sum mean norm sum",
        "testing": "",
        "version": "__version__",
        "xoroshiro": "Xoroshiro128aox",
    },
)


def __getattr__(name: str) -> Any:
    if name == "torch":  # had a name here once; nothing of lowprec looks up to what it opened
        raise AttributeError(
            "lowprec.torch is gone: `with ipu_core.emulate(...)` rounds what a script of PyTorch computes"
        )
    return _find(name)


def __dir__() -> list[str]:
    return sorted(__all__)
