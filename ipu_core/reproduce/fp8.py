"""Gradients in 8 bits (Micikevicius et al., arXiv 2209.05433, 2022; Noune et al., arXiv 2206.02915, 2022).

Their settings, smaller: a transformer over bytes, everything in float32 but for the operands of products, which are
E4M3 and for cotangents E5M2. Without a scale most cotangents are too small for the format; a loss scale, or one for
each tensor from its largest magnitude (Perez et al., arXiv 2309.17224, 2023), brings them back. Under unit scaling
(Blake, Orr and Luschi, arXiv 2303.11257, 2023) neither is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.block import Equation
from ipu_core.ir.bodies import closed, equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, paths
from ipu_core.ir.run.execute import Executable
from ipu_core.reproduce import byte_model
from ipu_core.reproduce.byte_model import ALONE, SIZE, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above, below, beside, every, recovered
from ipu_core.study.models.size import Size
from ipu_core.study.settings import UNIT_RATES
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import AdamW
from lowprec.statistics import underflow

STEPS, RATE = 200, 2e-3
LEFT = 0.05
"""Of what is lost without a scale, what one may leave: a twentieth."""
ROWS: dict[str, tuple[str, float | None]] = {
    "float32": ("fp32.32", None),
    "unscaled": (f"fp8/unscaled/{ALONE}", None),
    # E4M3's smallest number is 2^-9, E5M2's 2^-16: without a scale range decides
    "E4M3 cotangents": (f"fp8/unscaled/backward=float8_e4m3fn/{ALONE}", None),
    "loss scale": (f"fp8/unscaled/{ALONE}", 4096.0),
    "current": (f"fp8/{ALONE}", None),
    "delayed": (f"fp8/delayed/{ALONE}", None),
    "float32, unit-scaled": ("fp32.32/unit_scaled=true", None),
    "unit-scaled": (f"unit-fp8/{ALONE}", None),
}
"""Precision and loss scale."""


class Fp8Result(NamedTuple):
    """The validation loss at the end, in nats a byte, and the share of cotangents that casts made zero then."""

    loss: float
    flushed: float


def train(row: str, size: Size, steps: int, seed: int) -> Fp8Result:
    """A model in the precision of a row."""
    precision, scale = ROWS[row]
    rate = UNIT_RATES["unit"] if Precision.parse(precision).unit_scaled else RATE
    made = byte_model.train(precision, size, seed, steps=steps, optimizer=AdamW(rate), loss_scale=scale)
    return Fp8Result(made.validation, flushed(made.loop, made.batch))


def flushed(loop: TrainLoop, batch: Any) -> float:
    """The share of a step's cotangents that are not zero until they are cast for a product."""
    block = loop.block
    casts = [e for e in equations_of(block) if e.role == "grad_input" and _is_cast(e)]
    if not casts:
        return 0.0
    # operand and result of each cast, side by side, as further outputs of the step
    shown = tuple(var for cast in casts for var in (cast.operands[0], cast.output))
    # a step of its own, run once after the training: the trained loop watches nothing
    step = closed(replace(block, outputs=(*block.outputs[: block.carried], *shown), result=None))
    arrays = loop.arrays()
    state = [arrays[name] for name in paths(block.arguments[0])]
    # inputs of a step in their order: state, batch, learning rate (0: nothing is updated), loss scale
    scale = [] if loop.loss_scale is None else [np.float32(loop.loss_scale)]
    values = Executable(step, loop.accumulations).run([*state, *flatten(batch)[0], np.float32(0), *scale], 0)
    # values follow the carried state, in pairs
    counts = [underflow(*pair) for pair in zip(values[block.carried :: 2], values[block.carried + 1 :: 2], strict=True)]
    return sum(count.zeroed for count in counts) / max(1, sum(count.nonzero for count in counts))


def _is_cast(equation: Equation) -> bool:
    fmt = equation.output.type.format
    return equation.family in ("cast", "scaled_cast") and not isinstance(fmt, str) and fmt.bits == 8


def measure(seeds: Sequence[int], share: float, progress: Progress) -> dict[str, list[Fp8Result]]:
    """What `train` gives for every row and seed."""
    steps = max(1, round(share * STEPS))

    def words(runs: list[Fp8Result]) -> str:
        return f"{_loss(runs)} nats a byte, {_flushed(runs)} of cotangents flushed to zero"

    return of_rows(ROWS, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, words)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(found: dict[str, list[Fp8Result]]) -> list[Finding]:
    """The findings in the losses and shares of every row."""
    losses = {row: [each.loss for each in runs] for row, runs in found.items()}
    lost = {row: [each.flushed for each in runs] for row, runs in found.items()}
    seeds, shown = (
        len(losses["float32"]),
        {row: f"{_loss(runs)}, {_flushed(runs)} flushed" for row, runs in found.items()},
    )
    # unit scaling trains better than float32 without it (2.26 against 2.40 nats): against the better of the two
    better = min("float32", "float32, unit-scaled", key=lambda row: float(np.mean(losses[row])))

    def brought_back(row: str, whole: str = "float32") -> bool | None:
        """Whether next to no cotangents are lost, and next to nothing of what is lost without a scale."""
        return every(below(lost[row], LEFT), recovered(losses, row, "unscaled", whole, LEFT))

    return [
        Finding(
            "E5M2 cotangents without a scale: most are flushed to zero, and the loss is worse",
            f"{shown['unscaled']}; float32 {_loss(found['float32'])}",
            every(above(lost["unscaled"], 0.5), above(beside(losses, "unscaled", "float32"))),
            seeds,
        ),
        Finding(
            "E4M3 cotangents without a scale are worse still",
            shown["E4M3 cotangents"],
            above(beside(losses, "E4M3 cotangents", "unscaled")),
            seeds,
        ),
        Finding(
            f"a loss scale of 4096 brings them back ({100 * LEFT:.0f} % at most are flushed, and as much "
            "of the damage is left)",
            shown["loss scale"],
            brought_back("loss scale"),
            seeds,
        ),
        Finding(
            "so do scales for each tensor, from its amax now or of steps before, without a loss scale",
            f"{shown['current']}; delayed {shown['delayed']}",
            every(brought_back("current"), brought_back("delayed")),
            seeds,
        ),
        Finding(
            "under unit scaling neither is needed (beside float32 under it or without, whichever is better)",
            f"{shown['unit-scaled']}; float32 under it {_loss(found['float32, unit-scaled'])}",
            brought_back("unit-scaled", better),
            seeds,
        ),
    ]


def _loss(runs: Sequence[Fp8Result]) -> str:
    return spread([each.loss for each in runs])


def _flushed(runs: Sequence[Fp8Result]) -> str:
    return f"{np.mean([each.flushed for each in runs]):.1%}"


FP8 = Reproduction("fp8", "gradients in 8 bits", "Micikevicius et al. 2022, arXiv 2209.05433", run)
