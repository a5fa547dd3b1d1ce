"""As few forward values made again as lower the peak of temporaries to a share: what that costs, and the same bits."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from ipu_core import AdamW, Target, TrainLoop
from ipu_core.compile.schedule.recompute_share import cycles_again, recomputed_share, temporaries
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.ir.block import Block
from ipu_core.ir.passes.recompute import recompute
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from tests.examples import first
from tests.ipu_core.ir.test_schedule import step

TARGET = Target("gc200")
SMALL = Size(width=32, layers=2, heads=2, context=16)
SIZES = {"narrow": (Size(width=64, layers=2, heads=4, context=64), 8), "wide": (Size(), 16)}
ORDER = partial(scheduled, target=TARGET)


def loop(size: Size, rows: int, precision: str, **settings: Any) -> TrainLoop:
    rng = np.random.default_rng(0)
    text = rng.integers(0, 256, (rows, size.context)).astype(np.int32)
    params = lm.initial(lm.layout(size), 0)
    settings |= {"optimizer": AdamW(0.01), "precision": precision, "key": 3}
    return TrainLoop(partial(lm.loss, size.heads), params, (text, text), **settings)


def copies(block: Block) -> int:
    return sum(equation.drawn is not None for equation in block.equations)


def numbers(block: Block) -> list[int]:
    return [equation.number for equation in block.equations]


@pytest.mark.parametrize("name, precision", first(1, product(SIZES, ["fp16.16/stochastic", "fp32.32"])))
def test_a_language_model_s_temporaries_fall_by_a_fifth_for_few_cycles(name: str, precision: str) -> None:
    """Against the traced order by a fifth, for 2 % more cycles than the default order takes, and fewer than that."""
    size, rows = SIZES[name]
    traced, usual, again = (
        loop(
            size, rows, precision, parallel=False, **settings
        )  # which takes room for speed where nothing is made again
        for settings in ({"reorder": False}, {}, {"recompute": 0.8})
    )
    most = temporaries(traced.block, TARGET)
    assert 0.75 * most < temporaries(again.block, TARGET) <= 0.8 * most < temporaries(usual.block, TARGET)
    cycles = [one.profile.cycles for one in (traced, usual, again)]
    assert cycles[1] < cycles[2] <= 1.02 * cycles[1]
    assert cycles[2] < cycles[0]
    assert again.profile.memory.peak_bytes < usual.profile.memory.peak_bytes


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_the_same_bits() -> None:
    make = partial(loop, SMALL, 4, "fp16.16/stochastic")
    plain, *others = make(engine="direct", reorder=False), *(make(engine=e, recompute=0.8) for e in ("direct", "tiles"))
    assert all(copies(again.block) for again in others)
    rng = np.random.default_rng(1)
    for text in rng.integers(0, 256, (3, 4, SMALL.context)).astype(np.int32):
        assert {made.train((text, text)) for made in others} == {plain.train((text, text))}
    for again in others:
        for one, other in zip(plain.next_step((text, text))[0], again.next_step((text, text))[0], strict=True):
            np.testing.assert_array_equal(one, other)


def test_no_more_is_made_again_than_a_share_asks_for() -> None:
    block = step(AdamW(0.1), "fp16.16/stochastic", size=Size(width=48, layers=2, heads=2, context=32))
    before = temporaries(block, TARGET)
    found = {share: recomputed_share(block, TARGET, share, ORDER) for share in (0.9, 0.75)}
    assert all(temporaries(new, TARGET) <= share * before for share, new in found.items())
    made = [copies(new) for new in (*found.values(), recompute(block))]
    assert 0 < made[0] < made[1] < made[2]


def test_the_order_alone_is_enough_where_it_is() -> None:
    block = step(AdamW(0.1), "fp32.32")
    ordered = ORDER(block)
    share = temporaries(ordered, TARGET) / temporaries(block, TARGET)
    assert share < 1
    assert numbers(recomputed_share(block, TARGET, share, ORDER)) == numbers(ordered)


def test_all_is_made_again_where_no_price_is_low_enough() -> None:
    block = step(AdamW(0.1), "fp32.32")
    assert numbers(recomputed_share(block, TARGET, 0.01, ORDER)) == numbers(ORDER(recompute(block)))


@pytest.mark.parametrize("precision", first(1, ["fp16.16/stochastic", "fp32.32"]))
@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_cycles_are_those_that_the_machine_counts(precision: str) -> None:
    size, rows = SIZES["narrow"]
    one = loop(size, rows, precision, recompute=True, reorder=False)
    accounted = {step.name.rpartition(".")[2]: step.cycles for step in one.profile.steps}
    again = [e for e in one.block.equations if e.drawn is not None and str(e.number) in accounted]
    assert len(again) > 20
    for equation in again:
        counted = accounted[str(equation.number)]
        assert cycles_again(one.block, TARGET, equation) == pytest.approx(counted, rel=0.15), equation.op


@pytest.mark.parametrize("given", [0.0, 1.0, -0.5, 1, "", None, float("nan"), [], ["blocks.*", 1]])
def test_what_is_no_share_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"recompute must be True, False, a share between 0 and 1 .* or names"):
        loop(SMALL, 4, "fp32.32", recompute=given)


@pytest.mark.parametrize("share", [0.9, 0.8])
def test_of_layers_that_are_alike_no_more_are_made_again_than_it_takes(share: float) -> None:
    """They would all change at one price: a second one goes back through the forward part as far as is needed."""
    block = step(AdamW(0.1), "fp16.16/stochastic", size=Size(width=48, layers=4, heads=2, context=32))
    made = [e.layer or "" for e in recomputed_share(block, TARGET, share, ORDER).equations if e.drawn is not None]
    counts = [sum(name.startswith(f"blocks.{layer}.") for name in made) for layer in range(4)]
    assert counts == sorted(counts)
    assert counts[0] < counts[3]
