"""Overlap: a step of the recipe takes as long as the slower of tiles and streaming memory; memory is bounded."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine.profile import Profile
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.layout import linear_layout
from ipu_core.report.html import to_html
from ipu_core.study.models import catalogue as models
from ipu_core.study.models.size import Size
from ipu_core.study.settings import USUAL, Settings
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import LossScale
from ipu_core.train.optim import AdamW, Lamb, Optimizer
from tests.examples import first

PRECISIONS = "mlperf-bert", "mlperf-bert-pod16"
SIZE = Size(width=32, layers=1, heads=2, context=32)
LM = Settings(model="lm", **{**USUAL["lm"], "batch": 4}, language_model=SIZE)
TASK, DIGITS = models.load(LM), models.load(Settings())
STEPS = 12
SLOW = Target("gc200", streaming_share=1e9)  # so that transfers take longer than the tiles


def loop(settings: Settings, precision: Precision | str, optimizer: Optimizer | None = None, **more: Any) -> TrainLoop:
    task = DIGITS if settings.model == "mlp" else TASK
    problem = models.problem(settings, task)
    optimizer = settings.training().optimizer if optimizer is None else optimizer
    given = {"optimizer": optimizer, "loss_scale": settings.loss_scale, "key": 3, "precision": precision, **more}
    return TrainLoop(problem.loss, problem.params(0), problem.batches(0)(0), **given)


def profile(made: TrainLoop) -> Profile:
    assert made.profile is not None
    return made.profile


@cache
def unstreamed(case: str, precision: str) -> int:
    """The cycles of a step with nothing in streaming memory, whose speed is nothing to it."""
    settings, optimizer, _, _ = CASES[case]
    return profile(loop(settings, f"{precision}/unstreamed", optimizer, parallel=False)).cycles


def moments(made: TrainLoop) -> dict[str, np.ndarray]:
    """The moments, by name."""
    return {f"state.{name}": array for name, array in made.arrays().items() if "moment" in name}


def channel(made: TrainLoop, target: Target) -> int:
    """Cycles of a load and a store of every moment by their bytes; of small ones the exchange takes longer."""
    total = 0
    for array in moments(made).values():
        chunk = linear_layout(target, array.shape).chunk * array.itemsize
        exchange = target.exchange_fixed_cycles + math.ceil(chunk / target.exchange_bytes_per_cycle)
        total += max(math.ceil(array.nbytes * target.clock / target.streaming_bandwidth), exchange)
        total += target.sync_cycles
    return 2 * total


def held(made: TrainLoop) -> Iterator[int]:
    """The bytes of moments on the tiles after each load."""
    sizes, here = {name: array.nbytes for name, array in moments(made).items()}, set[str]()
    for point in profile(made).memory.lifetimes:
        verb, _, name = point.step.partition(" ")
        if name in sizes and verb == "load":
            assert name not in here
            here.add(name)
            yield sum(sizes[one] for one in here)
        elif name in sizes and verb == "store":
            here.remove(name)
    assert not here


CASES = {
    "lm": (LM, None, Target("gc200"), "tiles"),
    "lm, slow memory": (LM, None, SLOW, "transfers"),
    "digits, Lamb": (Settings(), Lamb(0.01), Target("gc200"), ""),
    "digits, AdamW": (Settings(), AdamW(0.001), Target("gc200"), "transfers"),
}


@pytest.mark.parametrize("precision", first(1, PRECISIONS))
@pytest.mark.parametrize("case", CASES)
def test_a_step_takes_as_long_as_the_slower_of_tiles_and_streaming_memory(case: str, precision: str) -> None:
    settings, optimizer, target, slower = CASES[case]
    over = loop(settings, precision, optimizer, target=target, overlap=True, parallel=False)
    own, transfers = unstreamed(case.removesuffix(", slow memory"), precision), channel(over, target)
    found = profile(over)
    assert found.streaming_cycles == transfers
    bound = max(own, transfers)
    if slower:
        assert bound == {"tiles": own, "transfers": transfers}[slower]
    if slower == "tiles":
        # What is streamed is to need less memory, so fewer of its updates share compute sets than of what stays: its
        # tiles work longer. Beside the transfers they work no longer than between them.
        work = profile(loop(settings, precision, optimizer, target=target, parallel=False)).cycles - transfers
        assert found.cycles <= 1.04 * work <= 1.04 * 1.15 * own, (found.cycles, work, own)
    else:
        assert found.cycles <= 1.06 * bound, (found.cycles, own, transfers)
    assert found.cycles == found.tiles_cycles + transfers - found.hidden_cycles
    assert max(found.tiles_cycles, transfers) <= found.overlap_bound <= found.cycles
    words = f"{found.cycles:,} cycles for {found.tiles_cycles:,} on the tiles and {transfers:,} of transfers, "
    assert f"{words}{found.overlap_bound:,} or more" in str(found)
    assert words in to_html(found)

    names = sorted(step.name for step in found.steps if step.kind == "remote")
    assert names == sorted(f"{verb} {name}" for name in moments(over) for verb in ("load", "store"))
    assert all(step.count == 1 for step in found.steps if step.kind == "remote")
    sizes = {name: array.nbytes for name, array in moments(over).items()}
    both = [size + sizes[name.replace("first_", "second_")] for name, size in sizes.items() if "first_" in name]
    assert max(both) < max(held(over)) <= 2 * max(both)
    assert found.memory.peak_bytes <= found.memory.unstreamed.max()


@pytest.mark.parametrize("precision", first(1, PRECISIONS))
def test_no_bit_of_the_language_model_depends_on_overlap(precision: str) -> None:
    """With steps that are skipped before and after good ones, where the moments from before them are what counts."""
    scale = LossScale(init_scale=2.0**22, backoff_factor=0.125, growth_factor=8.0, growth_interval=2)
    batches = models.problem(LM, TASK).batches(0)
    over = loop(LM, precision, overlap=True, loss_scale=scale)
    losses = over.run(batches, STEPS)
    skipped = {one.step for one in over.skipped}
    assert 0 in skipped
    assert any(step not in skipped and step + 1 in skipped for step in range(STEPS - 1))
    for name, more in {
        precision: {},
        f"{precision}/unstreamed": {},
        f"{precision}/streamed": {"engine": "direct"},
    }.items():
        other = loop(LM, name, loss_scale=scale, accumulations=over.accumulations, **more)
        assert other.run(batches, STEPS).tobytes() == losses.tobytes()
        assert other.skipped == over.skipped
        ours, theirs = over.arrays(), other.arrays()
        assert [part for part in ours if ours[part].tobytes() != theirs[part].tobytes()] == []
    again = loop(LM, precision, overlap=True, loss_scale=scale)
    again.restore(over.arrays(), over.step)
    assert over.run(batches, 2).tobytes() == again.run(batches, 2).tobytes()
