"""Arguments of a training loop from options, an optimizer and the formats of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ipu_core.frontends.torch.model import TorchModel
from ipu_core.frontends.torch.optimizers import Taken, from_torch_optimizer
from ipu_core.ir.precision.precision import Precision
from ipu_core.poptorch.optim import extra_of
from ipu_core.poptorch.options import Options
from ipu_core.poptorch.words import MeanReductionStrategy
from ipu_core.train.optim import Adam, Lamb
from lowprec import as_format

SUMS = ("gradient_sum", "first_moment", "second_moment")


def precision_of(options: Options, module: Any, optimizer: Any = None) -> Precision:
    """The precision of a model.

    Raises:
        ValueError: a module of several formats, or of one that the machine has not; half sums of float32.
    """
    said, half = options.Precision, _is_half(module)
    formats = {name: as_format(fmt) for name, fmt in extra_of(optimizer).formats.items()}
    if options.precision is not None:
        base = options.precision
    else:
        base = Precision.parse("fp16.32/nearest/weights=float16" if half else "fp32.32")
        # PopTorch's default: sums and moments are float unless the optimizer says otherwise
        formats = {name: as_format("float32") for name in SUMS} | formats
    if said.partials is not None:
        # no chip has a unit that multiplies float32 into half partials
        if said.partials == "float16" and base.operands == as_format("float32"):
            raise ValueError("setPartialsType(torch.half) is for a module in half: module.half(), or "
                             "Options(precision='fp16.16')")  # fmt: skip
        formats["partials"] = as_format(said.partials)
    changes: dict[str, Any] = dict(formats)
    if said.stochastic is not None:
        changes["rounding"] = Precision.parse(f"fp16.16/{'stochastic' if said.stochastic else 'nearest'}").rounding
    strategy = options.Training.strategy
    # PopTorch's rule: a sum in half is a running mean, which does not grow with the number of micro-batches
    narrow = formats.get("gradient_sum", base.gradient_sum) == as_format("float16")
    if strategy is not None or (optimizer is not None and "gradient_sum" in extra_of(optimizer).formats):
        changes["running_mean"] = strategy == MeanReductionStrategy.Running if strategy is not None else narrow
    # what is so already is left out: a precision that is not changed keeps its name
    own = {name: value for name, value in changes.items() if getattr(base, name) != value}
    return base.changed(**own) if own else base


def _is_half(module: Any) -> bool:
    kinds = {str(x.dtype) for x in module.parameters() if x.is_floating_point()}
    if not kinds <= {"torch.float32"} and kinds != {"torch.float16"}:
        raise ValueError(f"a module is of torch.float or all of torch.half, not of {', '.join(sorted(kinds))}")
    return kinds == {"torch.float16"}


@contextlib.contextmanager
def in_float32(module: Any) -> Iterator[None]:
    """A module in half with the same numbers in float32, as it is captured; its parameters stay the same tensors."""
    half = _is_half(module)
    if half:
        # example inputs are captured in float32, which layers in half would not take; halves are exact in it
        module.float()
    try:
        yield
    finally:
        if half:
            module.half()


def scale_of(options: Options, optimizer: Any) -> float | str | None:
    """The loss scale."""
    return "automatic" if options.Training.automatic_loss_scaling else extra_of(optimizer).loss_scaling


def settings_of(model: TorchModel, optimizer: Any, lr: Any) -> Taken:
    """The settings of an optimizer, with what PopTorch's have beside torch's."""
    made, extra = from_torch_optimizer(model, optimizer, lr=lr), extra_of(optimizer)
    if extra.clip_norm is not None:
        made = replace(made, clip_norm=extra.clip_norm)
    if isinstance(made, Adam) and not extra.bias_correction:
        made = replace(made, bias_correction=False)
    return replace(made, max_weight_norm=extra.max_weight_norm) if isinstance(made, Lamb) else made
