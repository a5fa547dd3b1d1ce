"""The fullest tile against cycles as more parts of a model are made again: what a loop accounts, in a table."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, Target, TrainLoop, recompute_curve
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size

SIZE = Size(width=32, layers=4, heads=2, context=32)
TEXT = np.random.default_rng(0).integers(0, 256, (16, SIZE.context)).astype(np.int32)
GIVEN: tuple[Any, ...] = (partial(lm.loss, SIZE.heads), lm.initial(lm.layout(SIZE), 0), (TEXT, TEXT))
HOW: dict[str, Any] = {
    "optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "target": Target("gc200", tiles=64)
}  # fmt: skip


def test_a_curve_is_what_loops_account_and_falls() -> None:
    curve = recompute_curve(*GIVEN, counts=[0, 2, 4], **HOW)
    assert curve.names == tuple(f"blocks.{number}" for number in range(4))
    for point in curve.points:
        profile = TrainLoop(*GIVEN, recompute=list(curve.names[: point.parts]) or False, **HOW).profile
        assert profile is not None
        assert (point.bytes, point.cycles) == (profile.memory.peak_bytes, profile.cycles)
    sizes, cycles = [one.bytes for one in curve.points], [one.cycles for one in curve.points]
    assert sizes == sorted(sizes, reverse=True)
    assert cycles == sorted(cycles)
    assert sizes[-1] < 0.75 * sizes[0]
    lines = str(curve).splitlines()
    assert f"{sizes[1]:,}" in lines[4]
    assert curve.available == 638_976
    assert curve.plot()._repr_png_().startswith(b"\x89PNG")


def test_what_does_not_fit_is_on_the_curve_and_said() -> None:
    small = HOW | {"target": Target("gc200", tiles=64, tile_memory=60_000)}
    curve = recompute_curve(*GIVEN, counts=[0], **small)
    assert curve.points[0].bytes > 60_000
    assert curve.table.rows[0][-1] == "no"


@pytest.mark.parametrize(
    "given, says",
    [
        ({"regions": "block.*"}, "is the name of nothing in this model"),
        ({"regions": True}, "regions must be names of parts"),
        ({"counts": [5]}, "numbers from 0 to the 4 parts that there are"),
        ({"counts": []}, "numbers from 0 to the 4 parts"),
    ],
)
def test_what_is_no_curve_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recompute_curve(*GIVEN, **given, **HOW)
