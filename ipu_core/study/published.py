"""The published recipes on the command line: --recipe mlperf-bert-v2/chips=16 in the words of its other options."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_core.train.optim import Lamb
from ipu_core.train.recipes import recipe
from lowprec.checks import shown

NUMBERS = ("beta1", "weight_decay")


@dataclass(frozen=True)
class Words:
    """A recipe as options.

    Attributes:
        optimizer, precision: as they are typed.
        loss_scale, stash: None: none.
        micro_batches: how many it adds up.
    """

    optimizer: str
    precision: str
    loss_scale: float | None
    stash: str | None
    micro_batches: int


def words_of(text: str) -> Words:
    """A recipe by its name, the number of chips and what is not known of it.

    Raises:
        ValueError: no such recipe, or what is missing of it, by its name.
    """
    name, *options = text.split("/")
    said: dict[str, str] = {}
    for option in options:
        key, mark, value = option.partition("=")
        if not mark or key not in ("chips", "gradient_sum", *NUMBERS):
            raise ValueError(f"--recipe {text}: {shown(option)} is no option; there are chips, gradient_sum, "
                             f"{', '.join(NUMBERS)}")  # fmt: skip
        said[key] = value
    chips = said.pop("chips", "")
    if not chips.isdecimal():
        raise ValueError(f"--recipe {text}: say how many chips it ran on, as in {name}/chips=16")
    numbers = {key: _number(key, said.pop(key)) for key in NUMBERS if key in said}
    # The rate is --lr's: any does to read the rest.
    made = recipe(name, chips=int(chips), learning_rate=1.0, **numbers, **said)  # type: ignore[arg-type]
    optimizer = made.optimizer
    assert isinstance(optimizer, Lamb)
    fields = {"b1": optimizer.b1, "b2": optimizer.b2, "weight_decay": optimizer.weight_decay}
    if optimizer.clip_norm is not None:
        fields["clip_norm"] = optimizer.clip_norm
    typed = "/".join(f"{key}={value:g}" for key, value in fields.items())
    scale = made.loss_scale
    return Words(
        # The betas are those that ran, and rows were packed.
        f"lamb/{typed}/bias_correction=false/packing=1", made.precision.name, None if scale is None else float(scale),  # type: ignore[arg-type]
        None if made.stash is None else made.stash.name, made.micro_batches,
    )  # fmt: skip


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--recipe: {key} must be a number, not {text!r}") from None
