"""A part of a model that is made again for its gradients instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ipu_core.ir.block import RecomputedPart, check_stash
from ipu_core.ir.pytree import flatten
from ipu_core.ir.trace.values import builder_of
from lowprec import FloatFormat, as_format
from lowprec.checks import shown

FORWARD = ("exact", "stashed")


def checkpoint(
    f: Callable[..., Any], stash: FloatFormat | str | None = None, forward: str = "exact"
) -> Callable[..., Any]:
    """The function, of whose values none is kept for the gradients: just before these all is made again.

        h = nn.checkpoint(block)(params["blocks"][0], h)

    What it reads of outside is kept (its arguments, and arrays that it holds), products and sums are made again with
    the same random bits and orders, so that no bit of a training differs. Every call is a part of its own; of one in
    another the outer one is meant. On arrays, and where nothing is differentiated, it does nothing. See
    ``Execution(recompute="blocks.*")`` for parts by their names.

    Args:
        f: of any arguments, nested arrays.
        stash: a format in which activations that it reads are kept, rounded to nearest, until they are widened again
            for what is made again: fewer bytes, and other gradients. None: as they are.
        forward: with a stash, "exact": the forward pass goes on from the values as they are, only what is made again
            does from the stash; "stashed": both do. A gradient passes the rounding as it is.

    Raises:
        TypeError: no function.
        ValueError: a stash with values that float32 lacks, or without a sign or a zero; another way forward; "stashed"
            without a stash.
    """
    if not callable(f):
        raise TypeError(f"checkpoint takes a function, not {shown(f)}")
    kept = None if stash is None else as_format(stash)
    if kept is not None:
        check_stash(kept)
    if forward not in FORWARD:
        raise ValueError(f"forward must be {' or '.join(map(repr, FORWARD))}, not {forward!r}")
    if kept is None and forward != "exact":
        raise ValueError("forward='stashed' goes on from a stash: say its format, stash='float8_e4m3'")
    own = getattr(f, "__name__", "function")

    @wraps(f)
    def again(*arguments: Any, **keywords: Any) -> Any:
        builder = builder_of(flatten((arguments, [*keywords.values()]))[0])
        if builder is None:
            return f(*arguments, **keywords)
        name = builder.scope.layer or f"{own}.{builder.number}"
        with builder.scoped(checkpoint=RecomputedPart(name, kept, forward == "stashed")):
            return f(*arguments, **keywords)

    return again
