"""The recipes of MLPerf's BERT as they ran on IPUs, each a whole `Training`; what was published, and nothing else.

Precision, betas, decay, clipping, scales and accumulation are those of the public submissions (MLCommons, training
results v1.1 and v2.0). What is not known of them here is an argument without a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipu_core.ir.precision.precision import Precision
from ipu_core.train import optim
from ipu_core.train.schedules import Schedule
from ipu_core.train.training import Training
from lowprec import FloatFormat, stash143
from lowprec.checks import shown


@dataclass(frozen=True)
class _Published:
    """What one configuration says; None: it is not known.

    Attributes:
        precision: its name, without the sum of the gradients.
        gradient_sum: how gradients of micro-batches are added.
        micro_batches: their number, in an update of one replica.
        loss_scale, beta1, beta2, weight_decay, clip_norm: numbers.
        stash: the format of what is kept for the gradients.
    """

    precision: str
    gradient_sum: str | None
    micro_batches: int
    loss_scale: float
    beta1: float | None
    beta2: float
    weight_decay: float | None
    clip_norm: float | None
    stash: FloatFormat | None = None


SUMS = {"float32": "gradient_sum=float32", "running_mean": "gradient_sum=float16/running_mean=true"}
"""How gradients of micro-batches are added: in float32, as the talk says, or as a running mean in float16."""
_V1 = "fp16.16/stochastic/streamed"
RECIPES: Mapping[str, Mapping[int, _Published]] = {
    "mlperf-bert-v1.1": {
        16: _Published(f"{_V1}/first_moment=float16", "running_mean", 192, 1, None, 0.996, None, None),
        64: _Published("fp16.16/stochastic", None, 96, 1, None, 0.996, None, None),
        128: _Published("fp16.16/stochastic/first_moment=float16", None, 96, 1, None, 0.996, None, None),
    },
    "mlperf-bert-v2": {
        16: _Published("mlperf-bert-v2", None, 256, 10, 0.55, 0.885, 1e-3, 1000, stash143),
        64: _Published("mlperf-bert-v2", None, 96, 10, 0.51, 0.72, 1e-3, 1000),
        128: _Published("mlperf-bert-v2", None, 64, 10, 0.62, 0.885, 1e-3, 100),
    },
}
"""By name and number of chips."""


def recipe(
    name: str, *, chips: int, learning_rate: float | Schedule, beta1: float | None = None,
    weight_decay: float | None = None, gradient_sum: str | None = None,
) -> Training:  # fmt: skip
    """How MLPerf's BERT was trained on so many chips: ``TrainLoop(loss, params, batch, training=recipe(...))``.

    LAMB without bias correction, FP16 weights rounded stochastically, half partial sums. A batch is one replica's: as
    many micro-batches as `Training.micro_batches` says, which divide its rows. Attention's dropout, the warm-up and the
    decay of the rate are the model's and the schedule's; stashes are of the parts that it has under `nn.checkpoint`
    (without any, `replace(training, stash=None)`).

    Args:
        name: "mlperf-bert-v1.1" (GC200) or "mlperf-bert-v2" (Bow, v2.0).
        chips: 16, 64 or 128, each a configuration of its own.
        learning_rate: Not known here of any: it is yours to say, a number or a schedule.
        beta1, weight_decay: Of v1.1, where they are not known; v2's are its own.
        gradient_sum: "float32" or "running_mean" (in float16), where it is not known: but on 16 chips in v1.1.

    Raises:
        ValueError: no such recipe or number of chips; what is not known and not given, or known and given, by its name.
    """
    if not isinstance(name, str) or name not in RECIPES:
        raise ValueError(f"there is no recipe {shown(name)}; there are {', '.join(RECIPES)}")
    if not isinstance(chips, int) or chips not in RECIPES[name]:
        raise ValueError(f"{name} ran on {', '.join(map(str, RECIPES[name]))} chips, not on {shown(chips)}")
    known = RECIPES[name][chips]
    where = f"{name} on {chips} chips"
    said = {"beta1": beta1, "weight_decay": weight_decay, "gradient_sum": gradient_sum}
    found: dict[str, Any] = {field: _one(where, field, getattr(known, field), value) for field, value in said.items()}
    if found["gradient_sum"] not in SUMS:
        raise ValueError(f"gradient_sum is {' or '.join(SUMS)}, not {shown(gradient_sum)}")
    optimizer = optim.Lamb(
        learning_rate, b1=found["beta1"], b2=known.beta2, weight_decay=found["weight_decay"],
        clip_norm=known.clip_norm, bias_correction=False,
    )  # fmt: skip
    precision = Precision.parse(f"{known.precision}/{SUMS[found['gradient_sum']]}")
    return Training(
        optimizer=optimizer, precision=precision, micro_batches=known.micro_batches,
        loss_scale=None if known.loss_scale == 1 else float(known.loss_scale), stash=known.stash,
    )  # fmt: skip


def _one(where: str, field: str, published: Any, given: Any) -> Any:
    """What is published, or else what is given.

    Raises:
        ValueError: neither, or both.
    """
    if published is not None and given is not None:
        raise ValueError(f"{field} of {where} is published: {published}; replace(training, ...) makes another training")
    if published is None and given is None:
        raise ValueError(f"{field} of {where} is not known here: say {field}=")
    return given if published is None else published
