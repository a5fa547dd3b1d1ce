"""Products in 4 bits (Tseng, Yu and Park, arXiv 2502.20586, 2025; NVIDIA, arXiv 2509.25149, 2025; Cim et al., arXiv
2605.09825, 2026).

Their settings, smaller: a transformer over bytes, everything in float32 but for the operands of products. Tseng casts
those of both gradient products to MXFP4, stochastically and behind a random Hadamard rotation. NVIDIA casts those of
all three to NVFP4, cotangents stochastically, and rotates those of the weights' gradients at random. Cim says of MXFP4
in all three that it is the weights' gradients that suffer, and that there only a rotation without random signs helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipu_core.reproduce import byte_model
from ipu_core.reproduce.byte_model import ALONE, SIZE, in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above, below, beside, every
from ipu_core.study.models.size import Size
from ipu_core.train.optim import AdamW

STEPS, RATE = 200, 2e-3
NEAR = 0.015
"""Of the loss in more bits: how near NVIDIA's training in 4 bits stayed, and what counts as nearly lossless here."""

FORWARD = ":grad_input.scaling=none/:grad_weight.scaling=none"
BACKWARD = f"mxfp4/{ALONE}/:forward.scaling=none"
STOCHASTIC = "forward_rounding=stochastic/backward_rounding=stochastic/scale_rule=rceil"
"""Both operands rounded stochastically, scales rounded up: saturation or rounding to nearest would bias the mean."""

ALL, W = f"mxfp4/{ALONE}", ":grad_weight."
ROWS: dict[str, str] = {
    "float32": "fp32.32",
    "backward nearest": BACKWARD,
    "backward stochastic": f"{BACKWARD}/{STOCHASTIC}",
    "backward rotated": f"{BACKWARD}/rotation=random",
    "backward both": f"{BACKWARD}/{STOCHASTIC}/rotation=random",
    "forward MXFP4": f"{ALL}/{FORWARD}",
    "forward NVFP4": f"nvfp4/{ALONE}/{FORWARD}",
    "all": ALL,
    "all, weights' exact": f"{ALL}/{W}scaling=none",
    "all, inputs' exact": f"{ALL}/:grad_input.scaling=none",
    # each part of the rule for the gradients of weights alone, hence the prefix
    "all, weights' stochastic": "/".join([ALL, *(W + word for word in STOCHASTIC.split("/"))]),
    "all, weights' random rotation": f"{ALL}/{W}rotation=random",
    "all, weights' fixed rotation": f"{ALL}/{W}rotation=fixed",
    "all NVFP4": f"nvfp4/{ALONE}",
    "NVIDIA's recipe": f"nvfp4/{ALONE}/backward_rounding=stochastic/{W}rotation=random/{W}rotation_block=16",
}
"""Precisions: "weights'" and "inputs'" are the products that give gradients of weights and of activations."""


def train(row: str, size: Size, steps: int, seed: int) -> float:
    """The validation loss of a model in the precision of a row, in nats a byte."""
    return byte_model.train(ROWS[row], size, seed, steps=steps, optimizer=AdamW(RATE)).validation


def measure(
    seeds: Sequence[int], share: float, progress: Progress, rows: Iterable[str] = tuple(ROWS)
) -> dict[str, list[float]]:
    """What `train` gives for every row and seed."""
    steps = max(1, round(share * STEPS))
    return of_rows(rows, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, in_nats)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(losses: dict[str, list[float]]) -> list[Finding]:
    """The findings in the losses of every row."""
    return [*_backward(losses), *_nvfp4(losses), *_dispute(losses)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _shown(values: Sequence[float]) -> str:
    return f"{'+' if _mean(values) >= 0 else ''}{spread(values)}"


def _backward(losses: dict[str, list[float]]) -> list[Finding]:
    names, seeds = ("nearest", "stochastic", "rotated", "both"), len(losses["float32"])
    worse = {name: beside(losses, f"backward {name}", "float32") for name in names}
    near = NEAR * _mean(losses["float32"])

    def better(row: str, other: str) -> bool | None:
        return above(beside(losses, f"backward {other}", f"backward {row}"))

    return [
        Finding(
            "MXFP4 in both gradient products, rounded to nearest, degrades training (by more than nearly lossless, "
            f"{100 * NEAR:.1f} % of the loss)",
            f"{_shown(worse['nearest'])} above {spread(losses['float32'])}",
            above(worse["nearest"], near),
            seeds,
        ),
        Finding(
            "stochastic rounding helps, and so does a random Hadamard rotation",
            f"{_shown(worse['stochastic'])}, {_shown(worse['rotated'])} above it",
            every(better("stochastic", "nearest"), better("rotated", "nearest")),
            seeds,
        ),
        Finding(
            f"both together are nearly lossless ({100 * NEAR:.1f} %)",
            f"{_shown(worse['both'])} above it",
            below(worse["both"], near),
            seeds,
        ),
        Finding(
            "and better than either alone",
            f"{_shown(worse['both'])} beside {_shown(worse['stochastic'])} and {_shown(worse['rotated'])}",
            every(better("both", "stochastic"), better("both", "rotated")),
            seeds,
        ),
    ]


def _nvfp4(losses: dict[str, list[float]]) -> list[Finding]:
    names, seeds = ("forward MXFP4", "forward NVFP4", "all", "all NVFP4", "NVIDIA's recipe"), len(losses["float32"])
    worse = {name: beside(losses, name, "float32") for name in names}
    exact, recipe = _mean(losses["float32"]), worse["NVIDIA's recipe"]
    return [
        *(
            Finding(
                f"NVFP4 loses less than MXFP4 in {where}",
                f"{_shown(worse[nv])} against {_shown(worse[mx])}",
                above(beside(losses, mx, nv)),
                seeds,
            )
            for where, mx, nv in (
                ("the forward product alone", "forward MXFP4", "forward NVFP4"),
                ("all three products", "all", "all NVFP4"),
            )
        ),
        Finding(
            f"NVIDIA's recipe ends within {100 * NEAR:.1f} % of the loss in more bits",
            f"{_shown(recipe)}, {_mean(recipe) / exact:.1%}",
            below(recipe, NEAR * exact),
            seeds,
        ),
    ]


def _dispute(losses: dict[str, list[float]]) -> list[Finding]:
    # by how much the loss falls when one of the two gradient products is exact
    weights, inputs = (beside(losses, "all", f"all, {name} exact") for name in ("weights'", "inputs'"))
    found = {
        name: beside(losses, "all", f"all, weights' {name}")
        for name in ("fixed rotation", "random rotation", "stochastic")
    }

    def more(one: str, other: str) -> bool | None:
        return above(beside(found, one, other))

    return [
        Finding(
            "with MXFP4 in all three products it is that of the weights' gradients that costs most",
            f"exact it brings {_shown(weights)}, that of the activations' {_shown(inputs)}",
            above([one - other for one, other in zip(weights, inputs, strict=True)]),
            len(weights),
        ),
        Finding(
            "there a fixed rotation helps, and more than a random one does",
            f"brings {_shown(found['fixed rotation'])}, random {_shown(found['random rotation'])}",
            every(above(found["fixed rotation"]), more("fixed rotation", "random rotation")),
            len(weights),
        ),
        Finding(
            "there stochastic rounding does not help as a fixed rotation does",
            f"brings {_shown(found['stochastic'])}",
            more("fixed rotation", "stochastic"),
            len(weights),
        ),
    ]


FOUR_BITS = Reproduction(
    "four-bits",
    "products in 4 bits",
    "Tseng et al. 2025, arXiv 2502.20586; NVIDIA 2025, 2509.25149; Cim et al. 2026, 2605.09825",
    run,
)
