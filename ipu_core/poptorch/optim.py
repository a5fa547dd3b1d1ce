"""`poptorch.optim`: torch's optimizers with a loss scale and formats of what is accumulated, and LAMB.

Each is one of torch.optim, so that its schedulers take it. Defaults are torch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from lowprec.checks import number, shown
from lowprec.extras import optional

FORMATS: Mapping[str, str] = {"torch.float32": "float32", "torch.float16": "float16"}
ATTRIBUTE = "ipu"  # on torch's own objects, so that its schedulers and checkpoints take them unchanged


class Extra(NamedTuple):
    """What PopTorch's optimizers have beside torch's.

    Attributes:
        loss_scaling: what the loss is multiplied by for its gradients; None: nothing.
        formats: fields of a `Precision` that are said, with what they are.
        clip_norm: the norm that gradients are scaled down to; None: none.
        bias_correction: of AdamW and LAMB.
        max_weight_norm: of LAMB.
    """

    loss_scaling: float | None = None
    formats: Mapping[str, str] = MappingProxyType({})
    clip_norm: float | None = None
    bias_correction: bool = True
    max_weight_norm: float | None = None


def extra_of(optimizer: Any) -> Extra:
    """What an optimizer has beside torch's; the defaults for torch's own."""
    found = getattr(optimizer, ATTRIBUTE, Extra())
    return found if isinstance(found, Extra) else Extra()


def SGD(
    params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, *, loss_scaling: float | None = None, use_combined_accum: bool = False,
    accum_type: Any = None, velocity_accum_type: Any = None, max_grad_norm: float | None = None,
) -> Any:  # fmt: skip
    """`torch.optim.SGD`; see the module. With `use_combined_accum` gradients and velocity would share a tensor.

    Raises:
        NotImplementedError: use_combined_accum.
        ValueError: formats other than torch.float and torch.half.
    """
    if use_combined_accum:
        raise NotImplementedError("SGD(use_combined_accum=True) is not here: gradients and velocity are apart")
    optimizer = optional("torch.optim", extra="torch").SGD(params, lr, momentum, dampening, weight_decay, nesterov)
    return _with(optimizer, loss_scaling, accum_type, velocity_accum_type, None, max_grad_norm)


def Adam(
    params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 0.0, amsgrad: bool = False, *, loss_scaling: float | None = None, accum_type: Any = None,
    first_order_momentum_accum_type: Any = None, second_order_momentum_accum_type: Any = None,
    max_grad_norm: float | None = None,
) -> Any:  # fmt: skip
    """`torch.optim.Adam`; see the module."""
    optimizer = optional("torch.optim", extra="torch").Adam(params, lr, betas, eps, weight_decay, amsgrad)
    moments = first_order_momentum_accum_type, second_order_momentum_accum_type
    return _with(optimizer, loss_scaling, accum_type, *moments, max_grad_norm)


def AdamW(
    params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2, amsgrad: bool = False, *, loss_scaling: float | None = None,
    bias_correction: bool = True, accum_type: Any = None, first_order_momentum_accum_type: Any = None,
    second_order_momentum_accum_type: Any = None, max_grad_norm: float | None = None,
) -> Any:  # fmt: skip
    """`torch.optim.AdamW`; see the module."""
    optimizer = optional("torch.optim", extra="torch").AdamW(params, lr, betas, eps, weight_decay, amsgrad)
    moments = first_order_momentum_accum_type, second_order_momentum_accum_type
    return _with(optimizer, loss_scaling, accum_type, *moments, max_grad_norm, bias_correction=bias_correction)


def LAMB(
    params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2, bias_correction: bool = True, *, loss_scaling: float | None = None,
    max_weight_norm: float | None = None, accum_type: Any = None, first_order_momentum_accum_type: Any = None,
    second_order_momentum_accum_type: Any = None,
) -> Any:  # fmt: skip
    """LAMB as `ipu_core.Lamb` has it, with PopTorch's arguments; torch has none: it trains wrapped modules alone."""
    defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    moments = first_order_momentum_accum_type, second_order_momentum_accum_type
    norm = None if max_weight_norm is None else number("max_weight_norm", max_weight_norm)
    return _with(_lamb()(params, defaults), loss_scaling, accum_type, *moments, None,
                 bias_correction=bias_correction, max_weight_norm=norm)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("RMSprop", "VariableAttributes"):
        raise AttributeError(f"poptorch.optim.{name} is not here: SGD, Adam, AdamW and LAMB are")
    if name == "Optimizer":
        return optional("torch.optim", extra="torch").Optimizer
    raise AttributeError(f"poptorch.optim has no {name}")


# one class, made when it is first asked for: torch may not be installed
@lru_cache(maxsize=1)
def _lamb() -> Any:
    torch = optional("torch", extra="torch")

    class LAMB(torch.optim.Optimizer):  # type: ignore[misc, name-defined]  # torch is not there when types are checked
        def step(self, closure: Any = None) -> None:
            raise NotImplementedError("LAMB trains a module that poptorch.trainingModel wraps, not torch's own")

    return LAMB


def _with(
    optimizer: Any, loss_scaling: float | None, gradient: Any, first: Any, second: Any, clip: float | None,
    *, bias_correction: bool = True, max_weight_norm: float | None = None,
) -> Any:  # fmt: skip
    """The optimizer, with what PopTorch adds."""
    formats = {}
    for field, dtype in (("gradient_sum", gradient), ("first_moment", first), ("second_moment", second)):
        if dtype is not None and str(dtype) not in FORMATS:
            raise ValueError(f"what is accumulated is of torch.float or torch.half, not {shown(dtype)}")
        if dtype is not None:
            formats[field] = FORMATS[str(dtype)]
    scale = None if loss_scaling is None else number("loss_scaling", loss_scaling)
    norm = None if clip is None else number("max_grad_norm", clip)
    setattr(optimizer, ATTRIBUTE, Extra(scale, formats, norm, bias_correction, max_weight_norm))
    return optimizer
