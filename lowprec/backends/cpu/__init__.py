"""The compiled backend: thin calls into lowprec._kernels."""

from typing import TYPE_CHECKING

from lowprec.backends.cpu.random import fold_in, random_words, split
from lowprec.backends.cpu.rounding import (
    convert,
    decode,
    whole_conversion,
    whole_decoding,
)
from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from lowprec.backends.cpu.blocks import (
        dequantize,
        largest_magnitude,
        quantize,
        scale_and_round,
        spread_power,
    )
    from lowprec.backends.cpu.columns import column_sums
    from lowprec.backends.cpu.convolution import correlate, correlate_windows
    from lowprec.backends.cpu.counting import changes, magnitudes, underflows
    from lowprec.backends.cpu.exact import arithmetic, exact_call
    from lowprec.backends.cpu.operands import plain_dtypes, ready_output
    from lowprec.backends.cpu.operation import elementwise, has_pipelines, new_pipeline
    from lowprec.backends.cpu.packing import pack, unpack
    from lowprec.backends.cpu.products import maximum, product, reduce, scatter, sum_parts
    from lowprec.backends.cpu.weight_gradient import correlate_gradient, weight_sums

__all__ = [
    "arithmetic",
    "changes",
    "column_sums",
    "convert",
    "correlate",
    "correlate_gradient",
    "correlate_windows",
    "decode",
    "dequantize",
    "elementwise",
    "exact_call",
    "fold_in",
    "has_pipelines",
    "largest_magnitude",
    "magnitudes",
    "maximum",
    "new_pipeline",
    "pack",
    "plain_dtypes",
    "product",
    "quantize",
    "random_words",
    "ready_output",
    "reduce",
    "scale_and_round",
    "scatter",
    "split",
    "spread_power",
    "sum_parts",
    "underflows",
    "unpack",
    "weight_sums",
    "whole_conversion",
    "whole_decoding",
]

# Rounding is all that a plain `import lowprec` needs (see lowprec/__init__.py); the rest would lengthen every import.
__getattr__ = lazy_names(
    __name__,
    {
        "blocks": "dequantize largest_magnitude quantize scale_and_round spread_power",
        "columns": "column_sums",
        "convolution": "correlate correlate_windows",
        "exact": "arithmetic exact_call",
        "counting": "changes magnitudes underflows",
        "operands": "plain_dtypes ready_output",
        "operation": "elementwise has_pipelines new_pipeline",
        "packing": "pack unpack",
        "products": "maximum product reduce scatter sum_parts",
        "weight_gradient": "correlate_gradient weight_sums",
    },
)
