"""The order of a step's equations: the same bits in either, on both engines; a checkpoint of one fits the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import in_place
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, AdamW, Lamb, Sgd
from tests.examples import first

SIZE = Size(width=16, layers=1, heads=2, context=8)
WIDE = Size(width=48, layers=2, heads=2, context=4)  # where weights and their gradients are most of what lives
TARGET = Target("gc200", tiles=24)
WAYS: dict[str, dict[str, Any]] = {
    "stochastic": {"precision": "fp16.16/stochastic", "optimizer": AdamW(0.01, clip_norm=1.0)},
    "rounds": {"precision": "fp16.32/stochastic", "optimizer": Sgd(0.1, momentum=0.9), "micro_batches": 2},
    "guarded": {"precision": "fp16.32", "optimizer": Lamb(0.01), "loss_scale": 64.0},
    "overflow": {"precision": "fp16.32", "optimizer": Lamb(0.01), "loss_scale": 2.0**24},
    "streamed": {"precision": "mlperf-bert", "optimizer": Lamb(0.01), "overlap": True},
    "all streamed": {
        "precision": "fp16.16/stochastic", "optimizer": Adam(0.01), "micro_batches": 2, "loss_scale": "automatic",
        "streamed": ["params.*", "optimizer.*"],
    },
}  # fmt: skip


def loss(params: Any, batch: Any) -> Any:
    return lm.loss(SIZE.heads, params, batch)


def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
    text = np.random.default_rng(step).integers(0, 256, (4, SIZE.context + 1)).astype(np.int32)
    return text[:, :-1], text[:, 1:]


def loop(engine: str, size: Size = SIZE, **more: Any) -> TrainLoop:
    params, (text, following) = lm.initial(lm.layout(size), 3), batches(0)
    batch = text[:, : size.context], following[:, : size.context]
    return TrainLoop(loss, params, batch, engine=engine, target=TARGET, key=9, **more)


def assert_same(a: TrainLoop, b: TrainLoop) -> None:
    ours, theirs = a.arrays(), b.arrays()
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name
    assert a.skipped == b.skipped


QUICK = [(way, False) for way in WAYS if way != "guarded"]  # an overflow is guarded against too


@pytest.mark.parametrize("way, twice", first(len(QUICK), [*QUICK, *((way, True) for way in WAYS)]))
def test_the_order_changes_no_bit(way: str, twice: bool) -> None:
    """Of whole arrays in the order of the trace, and in the one that is chosen as vertices too; or both in both."""
    kinds = [("direct", False), ("direct", True), ("tiles", True), *([("tiles", False)] if twice else [])]
    loops = [loop(engine, reorder=reorder, **WAYS[way]) for engine, reorder in kinds]
    losses = [made.run(batches, 3) for made in loops]
    traced, *ordered = [[e.number for e in equations_of(made.block)] for made in loops]
    assert not twice or ordered.pop() == traced
    assert traced != ordered[0] == ordered[1]
    for made, values in zip(loops, losses, strict=True):
        assert values.tobytes() == losses[0].tobytes()
        assert_same(made, loops[0])
    assert (way == "overflow") == bool(loops[0].skipped)


def test_less_lives_on_the_tiles_and_in_the_buffers_of_whole_arrays() -> None:
    more = {"precision": "fp32.32", "optimizer": Sgd(0.1)}
    (traced, ordered), (plain, direct) = (
        [loop(engine, WIDE, reorder=reorder, parallel=False, **more) for reorder in (False, True)]
        for engine in ("tiles", "direct")
    )
    memories = [made.profile.memory for made in (traced, ordered) if made.profile is not None]
    # Vertices of equations that share a compute set have states of their own: what lives is fewer values.
    of_values = [memory.peak_bytes - memory.categories["vertex state"] for memory in memories]
    assert of_values[1] < 0.96 * of_values[0]
    kept = [sum(int(v.sum()) for name, v in one.always.items() if name != "vertex state") for one in memories]
    assert kept[0] == kept[1]
    assert direct._stepper.runner.executable.bytes < plain._stepper.runner.executable.bytes
    assert len(in_place(ordered.block)) == len(in_place(traced.block))


def test_a_checkpoint_of_one_order_is_taken_up_in_the_other(tmp_path: Path) -> None:
    more = {"precision": "fp16.16/stochastic", "optimizer": Adam(0.01)}
    traced, second = loop("direct", reorder=False, **more), loop("direct", **more)
    traced.run(batches, 2)
    traced.save(tmp_path / "state.npz")
    second.load(tmp_path / "state.npz")
    traced.run(batches, 2)
    second.run(batches, 2)
    assert_same(traced, second)
