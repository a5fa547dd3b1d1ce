"""Rounding with a gradient for torch and JAX: `quantize`, an autograd function there and a custom derivative here.

Both round on the CPU by `lowprec.round`, so that forward values have its bits; under jit JAX calls back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from lowprec.checks import shown
from lowprec.extras import optional
from lowprec.random import KeyLike, as_key
from lowprec.rounding import round as round_values
from lowprec.values.formats import FloatFormat, FormatLike, as_format
from lowprec.values.keywords import FewBitRoundingLike, RoundingKeywords, as_rounding, refuse_unhashable
from lowprec.values.rounding import Rounding

STRAIGHT_THROUGH, ROUNDED = "straight_through", "rounded"
Gradient = str | Callable[[Any, Any], Any]
_BACKWARD = 1  # folded into the key for the rounding of a gradient


def quantize(
    x: Any,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    gradient: Gradient = STRAIGHT_THROUGH,
    key: KeyLike | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Any:
    """`round` for models of torch and JAX: x rounded to a format, and a gradient that says how it goes through.

    A rounding is flat almost everywhere, so that its true gradient is zero. In a loss of this project, traced, there is
    `ipu_core.nn.quantize`.

    Args:
        x: a tensor of torch or an array of JAX, under grad, jit and vmap too; anything else is rounded by `round`.
        fmt, rounding, policies: as of `round`.
        gradient: "straight_through": the result's, as it comes. "rounded": the result's, rounded in the same way
            (under key.fold_in(1)). A function (x, dy) -> dx, in the library's own arrays.
        key: of stochastic modes; another in every step and for every tensor, or the same elements go up each time.

    Raises:
        TypeError, ValueError: as `round`; another gradient.
        ImportError: no torch or JAX beside such an array.
    """
    check_gradient(gradient)
    # At once: inside of jit, and in a backward pass, the message would come late and from elsewhere.
    wanted, how = format_and_rounding(fmt, rounding, **policies)
    how.rule(wanted)
    if how.stochastic and key is None:
        raise ValueError(f"{how.mode} rounding needs a key")
    seed = 0 if key is None else as_key(key).value
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        return _autograd_function().apply(x, wanted, how, gradient, seed)
    if library in ("jax", "jaxlib"):
        return _custom_vjp(wanted, how, gradient, seed)(x)
    return round_values(x, wanted, how, key=key)


def check_gradient(gradient: Any) -> None:
    """Refuses what says no gradient.

    Raises:
        ValueError: neither "straight_through" nor "rounded" nor a function.
    """
    if not callable(gradient) and not (isinstance(gradient, str) and gradient in (STRAIGHT_THROUGH, ROUNDED)):
        raise ValueError(
            f"gradient is {STRAIGHT_THROUGH!r}, {ROUNDED!r} or a function of (x, dy), not {shown(gradient)}"
        )


def format_and_rounding(
    fmt: FormatLike, rounding: FewBitRoundingLike, **policies: Unpack[RoundingKeywords]
) -> tuple[FloatFormat, Rounding]:
    """The two as values.

    Raises:
        TypeError, ValueError: as `round`.
    """
    try:
        return as_format(fmt), as_rounding(rounding, **policies)
    except TypeError:
        refuse_unhashable(fmt=fmt, rounding=rounding, **policies)
        raise


def _back(fmt: Any, how: Rounding, gradient: Gradient, seed: int, x: Any, dy: Any, again: Callable[..., Any]) -> Any:
    """The gradient that goes on."""
    if callable(gradient):
        return gradient(x, dy)
    return dy if gradient == STRAIGHT_THROUGH else again(dy, fmt, how, as_key(seed).fold_in(_BACKWARD).value)


@functools.lru_cache(maxsize=1)
def _autograd_function() -> Any:
    function: Any = optional("torch", extra="torch").autograd.Function

    def rounded(x: Any, fmt: Any, how: Rounding, seed: int) -> Any:
        return round_values(x.detach().contiguous(), fmt, how, key=seed)

    class Quantize(function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, fmt: Any, how: Rounding, gradient: Gradient, seed: int) -> Any:
            ctx.how = fmt, how, gradient, seed
            ctx.save_for_backward(*([x] if callable(gradient) else []))
            return rounded(x, fmt, how, seed)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x = ctx.saved_tensors[0] if ctx.saved_tensors else None
            fmt, how, gradient, seed = ctx.how
            return (_back(fmt, how, gradient, seed, x, dy, rounded), None, None, None, None)

    return Quantize


def _custom_vjp(fmt: Any, how: Rounding, gradient: Gradient, seed: int) -> Callable[[Any], Any]:
    jax = optional("jax", extra="jax")

    def rounded(x: Any, fmt: Any, how: Rounding, seed: int) -> Any:
        def call(array: Any) -> npt.NDArray[Any]:
            return np.asarray(round_values(np.asarray(array), fmt, how, key=seed))

        # One call for a whole batch: its elements are numbered through, as those of one array.
        return jax.pure_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def quantized(x: Any) -> Any:
        return rounded(x, fmt, how, seed)

    def forward(x: Any) -> tuple[Any, Any]:
        return quantized(x), x if callable(gradient) else None

    def backward(x: Any, dy: Any) -> tuple[Any]:
        return (_back(fmt, how, gradient, seed, x, dy, rounded),)

    quantized.defvjp(forward, backward)
    return quantized  # type: ignore[no-any-return]
