"""A function that is only called: its results checked, brought to float32 and compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from lowprec.checks import shown
from lowprec.foreign import library_of
from lowprec.identification.identified import Kind
from lowprec.identification.probes import Probe
from lowprec.types import Array
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, format_of_dtype

KINDS: tuple[str, ...] = get_args(Kind)


class BlackBox:
    """A product f(a, b), or a sum f(x) of a vector, asked as a product: a sum's rows are multiplied by ones.

    Raises:
        TypeError: no function.
        ValueError: an unknown kind.
    """

    def __init__(self, f: Callable[..., Any], kind: Kind) -> None:
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"unknown kind {shown(kind)}; allowed are {', '.join(KINDS)}")
        if not callable(f):
            raise TypeError(f"f must be a function of two matrices (of kind 'sum' of a vector), not {shown(f)}")
        self.f, self.kind = f, kind

    def __call__(self, a: Array, b: Array) -> Array:
        """The results (m, n), in the dtype that f gives.

        Raises:
            TypeError: results of no format that float32 holds.
            ValueError: results of another shape.
        """
        # Copies: a function that writes to its arguments must not change what it is compared with. What overflows in
        # it is asked for: NumPy need not say so.
        with np.errstate(all="ignore"):
            if self.kind == "product":
                result = _array(self.f(a.copy(), b.copy()))
            else:
                result = np.stack([_array(self.f(row.copy())) for row in a])[:, None]
        if result.dtype.kind == "O":
            raise TypeError("f must give an array of numbers")
        if result.shape != (a.shape[0], b.shape[1]):
            raise ValueError(
                f"the {self.kind} of {a.shape[1]} terms gave shape {result.shape}, not {(len(a), b.shape[1])}"
            )
        self.format(result)
        return result

    def twice(self, probe: Probe) -> Array:
        """The results of a probe, asked twice.

        Raises:
            ValueError: the second time they have other bits.
        """
        given = self(probe.a, probe.b)
        if differing(given, self(probe.a, probe.b)).any():
            raise ValueError("f is not deterministic: the same operands gave other bits the second time")
        return given

    @staticmethod
    def format(result: Array) -> FloatFormat:
        """The format of a result's dtype, checked."""
        fmt = format_of_dtype(result.dtype)
        if fmt is None or not float32.contains(fmt):
            raise TypeError(f"results must be float32 or narrower, not {result.dtype}")
        return fmt


def _array(result: Any) -> Array:
    library = library_of(result)
    # A copy: a function may give the same buffer each time, which its next call would fill anew.
    return np.array(result if library is None else library.input(result))


def differing(got: Array, wanted: Array) -> Array:
    """Where two arrays of values that float32 holds have different bits; any two NaNs are the same, +0 is not -0."""
    left, right = (np.asarray(x, np.float32) for x in (got, wanted))
    different: Array = (left.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(left) & np.isnan(right))
    return different
