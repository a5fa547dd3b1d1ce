"""Whether the backward of an autograd.Function is what torch would derive from its forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SIZES = ((1e-2, 1.0), (1.0, 1e-3), (1.0, 1e3), (30.0, 1.0))
"""Scales of random inputs and of the gradients from above: a backward that clips is right for small ones."""
SAME = 1e-5
"""Of the largest element: formulas are often written with constants of few digits, and are right all the same."""


class _Context:
    """Takes what a forward keeps for its backward."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def is_derivative(torch: Any, kind: Any, args: Sequence[Any]) -> bool:
    """Whether the two agree in float64, for random inputs and gradients of several sizes.

    Args:
        torch: the module torch.
        kind: the subclass of `torch.autograd.Function`.
        args: of a call; tensors may be without numbers.

    Returns:
        False also where it cannot be told: tensors of integers, or a forward that fails on random ones.
    """
    # random integers are mostly no valid indices
    if any(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in args):
        return False
    # a generator of its own: torch's stays where the user's script left it
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: Any, size: float) -> Any:
        return size * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)

    def agrees(size: float, above: float) -> bool:
        given = [drawn(x.shape, size).requires_grad_() if isinstance(x, torch.Tensor) else x for x in args]
        inputs = [x for x in given if isinstance(x, torch.Tensor)]
        # the forward twice: with its own backward, and as operations that autograd differentiates
        own, derived = kind.apply(*given), _forward(kind, given)
        pairs = list(zip(*(x if isinstance(x, tuple) else (x,) for x in (own, derived)), strict=True))
        weights = [drawn(one.shape, above) for one, _ in pairs]
        mine, wanted = (
            torch.autograd.grad([pair[at] for pair in pairs], inputs, weights, materialize_grads=True) for at in (0, 1)
        )
        far = [(one - other).abs().max() <= SAME * other.abs().max() for one, other in zip(mine, wanted, strict=True)]
        return all(map(bool, far))

    try:
        with torch.enable_grad():
            return all(agrees(*sizes) for sizes in SIZES)
    except Exception:  # whatever a forward does with random numbers
        return False


def _forward(kind: Any, given: Sequence[Any]) -> Any:
    """The forward as operations that torch differentiates; it has a context of its own, or is given one elsewhere."""
    # torch 2 lets a forward have no context, and a `setup_context` beside it
    separate = kind.setup_context is not _base(kind).setup_context
    return kind.forward(*given) if separate else kind.forward(_Context(), *given)


def _base(kind: Any) -> Any:
    return next(each for each in kind.__mro__ if each.__module__.startswith("torch."))
