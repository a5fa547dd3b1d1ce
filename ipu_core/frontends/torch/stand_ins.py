"""Operations that torch.export cannot capture, as operations of our own with the same values and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from lowprec.extras import optional


@contextlib.contextmanager
def standing_in(torch: Any) -> Iterator[None]:
    """A context in which `torch.ctc_loss`, and so the layer and the function of that name, can be captured."""
    own, real = _ctc_loss(), torch.ctc_loss

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        lengths = [n if isinstance(n, torch.Tensor) else torch.tensor(n) for n in (input_lengths, target_lengths)]
        single = log_probs.dim() == 2
        if single:
            log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
            lengths = [n.reshape(1) for n in lengths]
        found = own(log_probs, targets, *lengths, blank, reduction, zero_infinity)
        return found.squeeze(0) if single and found.dim() else found

    torch.ctc_loss = ctc_loss
    try:
        yield
    finally:
        torch.ctc_loss = real


# one operation, made when it is first asked for: torch may not be installed, and takes a name once
@lru_cache(maxsize=1)
def _ctc_loss() -> Callable[..., Any]:
    """Torch's own with its own gradient; the size of its result, and of nothing in it, is known before it runs."""
    torch = optional("torch", extra="torch")
    real = torch.ctc_loss

    def run(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int, reduction: int,
        zero_infinity: bool,
    ) -> Any:  # fmt: skip
        return real(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity).clone()

    def shape(log_probs: Any, targets: Any, *rest: Any) -> Any:
        reduction = rest[3]
        return log_probs.new_empty(() if reduction else log_probs.shape[1:2])

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.settings = inputs[4:]

    def backward(ctx: Any, gradient: Any) -> Any:
        log_probs, *others = ctx.saved_tensors
        with torch.enable_grad():
            own = log_probs.detach().requires_grad_()
            (found,) = torch.autograd.grad(real(own, *others, *ctx.settings), own, gradient)
        return found, *(None,) * 6

    schema = (
        "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, SymInt blank, "
        "SymInt reduction, bool zero_infinity) -> Tensor"
    )
    made = torch.library.custom_op("lowprec::ctc_loss", run, mutates_args=(), schema=schema)
    made.register_fake(shape)
    made.register_autograd(backward, setup_context=keep)
    return made  # type: ignore[no-any-return]
