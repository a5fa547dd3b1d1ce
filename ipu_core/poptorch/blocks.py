"""Words within a module: `identity_loss`, and blocks, which all lie on one chip."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from ipu_core.frontends.torch.export import MARK
from ipu_core.poptorch.words import PIPELINES, ReductionType
from lowprec.checks import shown


def identity_loss(x: Any, reduction: str | ReductionType) -> Any:
    """Marks a tensor as the loss that is trained.

    Args:
        x: a tensor, which the module gives back.
        reduction: "mean" or "sum" over it, or "none" where it is one number.

    Raises:
        ValueError: another reduction.
    """
    names = {ReductionType.Mean: "mean", ReductionType.Sum: "sum", ReductionType.NoReduction: "none"}
    word = names[reduction] if isinstance(reduction, ReductionType) else reduction
    if word not in names.values():
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {shown(reduction)}")
    # a tensor of its own to be marked: the mark of x itself would say that other outputs are the loss
    loss = x * 1.0 if word == "none" else getattr(x, word)()
    setattr(loss, MARK, True)
    return loss


class Block(contextlib.AbstractContextManager[None]):
    """A part of a module that has a name, on the one chip that there is.

    Raises:
        NotImplementedError: another chip than the first.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        if ipu_id not in (None, 0):
            raise NotImplementedError(f"ipu_id={ipu_id} is not here: {PIPELINES}")
        if not isinstance(user_id, str | None):
            raise TypeError(f"user_id must be a text, not {shown(user_id)}")

    def __exit__(self, *error: object) -> None:
        pass

    @staticmethod
    def useAutoId() -> None:
        """Blocks without a name are numbered: none needs one here."""


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """The layer, with which a block begins; see `Block`."""
    Block(user_id, ipu_id)
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Any], Any]:
    """A decorator for a function that is a block; see `Block`."""
    block = Block(user_id, ipu_id)

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with block:
                return function(*args, **kwargs)

        return called

    return decorated


def removeBlocks(module: Any) -> None:
    """Blocks leave nothing in a module: there is nothing to remove."""
