"""Products in 4 bits (Tseng, Yu and Park, arXiv 2502.20586, 2025; NVIDIA, arXiv 2509.25149, 2025; Cim et al., arXiv
2605.09825, 2026).

Their settings, smaller: a transformer over bytes, everything in float32 but for the operands of products. Tseng casts
those of both gradient products to MXFP4, stochastically and behind a random Hadamard rotation. NVIDIA casts those of
all three to NVFP4, cotangents stochastically, and rotates those of the weights' gradients at random. Cim says of MXFP4
in all three that it is the weights' gradients that suffer, and that there only a rotation without random signs helps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ipu_core.reproduce import byte_model
from ipu_core.reproduce.byte_model import ALONE, SIZE, in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.study.models.size import Size
from ipu_core.train.optim import AdamW

STEPS, RATE = 200, 2e-3
NOISE = 0.015
"""Nats a byte: the least standard deviation over seeds that differences between two rows are taken to have."""

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


def above(losses: dict[str, list[float]], row: str, other: str = "float32") -> list[float]:
    """By how much a row ends above another, seed by seed."""
    return [one - two for one, two in zip(losses[row], losses[other], strict=True)]


def judged(losses: dict[str, list[float]]) -> list[Finding]:
    """The findings in the losses of every row."""
    return [*_backward(losses), *_nvfp4(losses), *_dispute(losses)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _shown(values: Sequence[float]) -> str:
    return f"{'+' if _mean(values) >= 0 else ''}{spread(values)}"


def _backward(losses: dict[str, list[float]]) -> list[Finding]:
    names = ("nearest", "stochastic", "rotated", "both")
    worse = {name: above(losses, f"backward {name}") for name in names}
    nearest, stochastic, rotated, both = (_mean(worse[name]) for name in names)
    return [
        Finding(
            "MXFP4 in both gradient products, rounded to nearest, degrades training (0.05 above float32)",
            f"{_shown(worse['nearest'])} above {spread(losses['float32'])}",
            nearest > 0.05,
        ),
        Finding(
            "stochastic rounding helps, and so does a random Hadamard rotation (half of it or less is left)",
            f"{_shown(worse['stochastic'])}, {_shown(worse['rotated'])}",
            max(stochastic, rotated) <= nearest / 2,
        ),
        Finding(
            "both together are best, and nearly lossless (within 0.03)",
            _shown(worse["both"]),
            both < 0.03 and both <= min(stochastic, rotated),
        ),
    ]


def _nvfp4(losses: dict[str, list[float]]) -> list[Finding]:
    names = ("forward MXFP4", "forward NVFP4", "all", "all NVFP4", "NVIDIA's recipe")
    worse = {name: above(losses, name) for name in names}
    mx, nv, mx_all, nv_all, recipe = (_mean(worse[name]) for name in names)
    return [
        Finding(
            "NVFP4 loses less than MXFP4, forward alone and in all three products",
            f"{_shown(worse['forward NVFP4'])} against {_shown(worse['forward MXFP4'])}; "
            f"{_shown(worse['all NVFP4'])} against {_shown(worse['all'])}",
            nv < mx and nv_all < mx_all,
        ),
        Finding(
            "NVIDIA's recipe ends within 1.5 % of the loss in more bits",
            f"{_shown(worse[names[-1]])}, {100 * recipe / _mean(losses['float32']):.1f} %",
            recipe < 0.015 * _mean(losses["float32"]),
        ),
    ]


def _dispute(losses: dict[str, list[float]]) -> list[Finding]:
    # by how much the loss falls when one of the two gradient products is exact
    weights, inputs = (above(losses, "all", f"all, {name} exact") for name in ("weights'", "inputs'"))
    found = {
        name: above(losses, "all", f"all, weights' {name}")
        for name in ("fixed rotation", "random rotation", "stochastic")
    }
    fixed, random, stochastic = found.values()
    return [
        Finding(
            "with MXFP4 in all three products it is that of the weights' gradients that costs most",
            f"exact it brings {_shown(weights)}, that of the activations' {_shown(inputs)}",
            _beyond_noise(weights, inputs),
        ),
        Finding(
            "there a fixed rotation helps, and more than a random one does",
            f"brings {_shown(found['fixed rotation'])}, random {_shown(found['random rotation'])}",
            _beyond_noise(fixed, random),
        ),
        Finding(
            "there stochastic rounding does not help as a fixed rotation does",
            f"brings {_shown(found['stochastic'])}",
            _beyond_noise(fixed, stochastic),
        ),
    ]


def _beyond_noise(more: Sequence[float], less: Sequence[float]) -> bool | None:
    """Whether one of two means over seeds is the larger; None: they differ by less than chance makes them."""
    each = [one - other for one, other in zip(more, less, strict=True)]
    # three seeds can come out alike by chance: their deviation counts from NOISE on only
    deviation = max(NOISE, statistics.stdev(each) if len(each) > 1 else 0.0)
    # two standard errors of the mean
    return None if abs(_mean(each)) <= 2 * deviation / math.sqrt(len(each)) else _mean(each) > 0


FOUR_BITS = Reproduction(
    "four-bits",
    "products in 4 bits",
    "Tseng et al. 2025, arXiv 2502.20586; NVIDIA 2025, 2509.25149; Cim et al. 2026, 2605.09825",
    run,
)
