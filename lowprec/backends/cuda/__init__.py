"""The cuda backend: what CuPy arrays are computed with, on their device, by the CPU's own headers and NVRTC.

Arrays choose it: `round`, `astype`, `encode`, `decode`, exact arithmetic, `float32_op` and the functions, `sum` and its
kin, `reduce_sum`, `reduce_max`, `scatter_add`, `matmul`, `conv2d` and its gradients, `to_blocks`, `to_scaled`, `pack`,
`unpack` and `hadamard` of CuPy arrays run on their device, on CuPy's current stream, and return C-contiguous CuPy
arrays (0-d ones for 0-d) with the bits that the CPU gives. CuPy is imported when it is first needed; a kernel is
compiled when it is first used (about 0.2 s) and kept in CuPy's folder.

- `astype` returns the format's dtype, ml_dtypes' included, so that `decode(y, y.dtype)`, `y.get()` and `y.view("u1")`
  work. CuPy (14 or later) stores such arrays and computes with none of them but bfloat16: it raises, where a plain
  uint8 would be added up as integers. Older versions hold float16, float32 and float64 only: there `astype` names
  `encode`, whose codes are uint8, uint16 or uint32.
- Launches are asynchronous. Some checks wait for the result: for NaN where the format has none, for codes wider than
  the format (4- and 6-bit ones come in bytes), for indices outside the rows, and, in exact arithmetic of float64
  operands and of laws that a double cannot carry, for elements that the reference makes on the host. None of it is
  possible inside a captured graph.
- Copied, on the device, is what the CPU copies too: an array whose summed axes do not lie at one stride, and a sum that
  goes into `out`. Where kept axes cannot be joined, their numbers go to the device, one for each vertex.
- One thread makes one sum: a long one alone is slow, and `splits` gives the parts of `reduce_sum` to threads of their
  own. Sums there are made by the sequential adder only.
- `out=` may have any strides but must be the input itself or other memory; `random_bits="exact"` is refused where it
  would have to look at the elements.
"""

from typing import Any

from lowprec.backends.cpu import changes, fold_in, random_words, split, underflows
from lowprec.backends.cuda.blocks import dequantize, largest_magnitude, quantize, scale_and_round, spread_power
from lowprec.backends.cuda.columns import broadcast, column_sums, joined, new_array, values
from lowprec.backends.cuda.convolution import correlate, correlate_gradient, correlate_windows, weight_sums
from lowprec.backends.cuda.device import check, copied, from_dlpack, output_apart, output_array, output_of_any, overlap
from lowprec.backends.cuda.elementwise import arithmetic, elementwise
from lowprec.backends.cuda.layouts import pack, rotated, unpack
from lowprec.backends.cuda.magnitudes import magnitudes
from lowprec.backends.cuda.measures import counts, distances
from lowprec.backends.cuda.products import product
from lowprec.backends.cuda.rounding import as_codes, convert, decode
from lowprec.backends.cuda.sums import folded, maximum, reduce, scatter, shaped, sum_parts
from lowprec.backends.owner import is_cupy

__all__ = [
    "arithmetic",
    "as_codes",
    "broadcast",
    "changes",
    "check",
    "column_sums",
    "convert",
    "copied",
    "correlate",
    "correlate_gradient",
    "correlate_windows",
    "counts",
    "decode",
    "dequantize",
    "distances",
    "elementwise",
    "fold_in",
    "folded",
    "from_dlpack",
    "is_cupy",
    "joined",
    "largest_magnitude",
    "magnitudes",
    "maximum",
    "new_array",
    "output_apart",
    "output_array",
    "output_of_any",
    "overlap",
    "pack",
    "product",
    "quantize",
    "random_words",
    "reduce",
    "rotated",
    "scale_and_round",
    "scatter",
    "shaped",
    "split",
    "spread_power",
    "sum_parts",
    "underflows",
    "unpack",
    "values",
    "weight_sums",
]


def __getattr__(name: str) -> Any:
    # Python itself asks modules for such names (`__path__`, `__wrapped__`); the sentence below is for people.
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"the cuda backend has rounding, arithmetic and sums, but no {name}; use the cpu backend")
