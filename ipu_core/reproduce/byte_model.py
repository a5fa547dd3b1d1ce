"""The transformer over bytes on which published results about training are made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from ipu_core.reproduce.finding import Progress, spread
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point
from ipu_core.train.data import text
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Optimizer

Result = TypeVar("Result")

BATCH = 16
SIZE = Size(width=64, layers=2, heads=4, context=64)
ALONE = "operands=float32/gradients=float32/output=float32"
"""Of a precision that casts the operands of products: nothing else is narrower than float32."""


class Finished(NamedTuple):
    """A training at its end.

    Attributes:
        loop: with what was trained.
        validation: its validation loss, in nats a byte.
        training: the loss of every step.
        batch: what the next step would have.
    """

    loop: TrainLoop
    validation: float
    training: list[float]
    batch: Any


def train(
    precision: str, size: Size, seed: int, *, steps: int, optimizer: Optimizer, loss_scale: float | str | None = None,
    after: Callable[[TrainLoop], None] | None = None,
) -> Finished:  # fmt: skip
    """Trains a model on the direct engine; `after`, if given, is called with the loop after each step."""
    problem = lm.problem(size, text.load(), BATCH)
    # the direct engine: the bits of the tiles without their account, and formats that no chip has
    recipe = Recipe.of(steps, optimizer=optimizer, loss_scale=loss_scale, engine="direct")
    loop = make_loop(problem, recipe, Point(precision, seed))
    batches = problem.batches(seed)
    losses = []
    for step in range(steps):
        losses.append(loop.train(batches(step)))
        if after is not None:
            after(loop)
    assert problem.evaluate is not None
    # in the precision of the training: a model is judged as it would be used
    loss = problem.evaluate(loop.params, loop.precision)["test_loss"]
    return Finished(loop, loss, losses, batches(steps))


def of_rows(
    rows: Iterable[str], train: Callable[[str, int], Result], seeds: Sequence[int], progress: Progress,
    words: Callable[[list[Result]], str],
) -> dict[str, list[Result]]:  # fmt: skip
    """The results of a training by row, a list over seeds; after each row `progress` is told of them in words."""
    found = dict[str, list[Result]]()
    for row in rows:
        found[row] = [train(row, seed) for seed in seeds]
        progress(f"{row}: {words(found[row])}")
    return found


def in_nats(losses: Sequence[float]) -> str:
    """Losses of some seeds in words."""
    return f"{spread(losses)} nats a byte"
