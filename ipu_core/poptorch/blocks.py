"""Words within a module: `identity_loss`, and blocks, which begin the stages of a pipeline."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from ipu_core.frontends.torch.export import MARK
from ipu_core.poptorch.stages import MARK as PLACE
from ipu_core.poptorch.stages import Place
from ipu_core.poptorch.words import ReductionType
from ipu_core.train.arguments import check_integer
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
    """A part of what a module computes that has a name.

    Raises:
        NotImplementedError: another chip than the first, on which a layer begins by `BeginBlock`.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        if ipu_id not in (None, 0):
            raise NotImplementedError(
                f"ipu_id={ipu_id} of a Block within forward is not here: BeginBlock(layer, ipu_id=) begins a stage"
            )
        if not isinstance(user_id, str | None):
            raise TypeError(f"user_id must be a text, not {shown(user_id)}")

    def __exit__(self, *error: object) -> None:
        pass

    @staticmethod
    def useAutoId() -> None:
        """Blocks without a name are numbered: none needs one here."""


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """The layer, with which a block begins: what is computed from there on is on that chip, up to the next such layer.

    A trainingModel lays its layers out so, see `stages=` of an `Execution`; no bit depends on it.

    Args:
        layer_to_call: a `torch.nn.Module`.
        user_id: the block's name, by which a `Stage` calls it.
        ipu_id: the chip, from 0, in the model's order.

    Raises:
        TypeError, ValueError: a name that is no text, a chip below 0.
    """
    if ipu_id is not None:
        check_integer("ipu_id", ipu_id)
    Block(user_id)
    # an attribute of its own: torch's registers take tensors and modules alone
    object.__setattr__(layer_to_call, PLACE, Place(user_id, ipu_id))
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
    """Takes away what `BeginBlock` said of a module's layers."""
    for each in module.modules():
        vars(each).pop(PLACE, None)
