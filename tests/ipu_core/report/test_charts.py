"""Charts: what is not finite is a gap, and no scale is made of it."""

import re

import numpy as np
import pytest

from ipu_core.report.charts import Curve, line_chart

STEPS = np.arange(6)


def curve(*mean: float, low: float = -0.5, high: float = 0.5) -> Curve:
    middle = np.array(mean)
    return Curve("loss", STEPS[: middle.size], middle, middle + low, middle + high)


def places(chart: str) -> list[list[float]]:
    """The heights of each piece of a curve."""
    return [
        [float(place.split(",")[1]) for place in points.split()]
        for points in re.findall(r'polyline[^>]*points="([^"]*)"', chart)
    ]


def test_losses_are_drawn_on_a_logarithmic_scale_where_all_are_above_zero() -> None:
    (heights,) = places(line_chart([curve(1.0, 10.0, 100.0, low=0, high=0)]))
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    for low in (0.0, -1.0):  # a loss that reaches zero, or below
        (heights,) = places(line_chart([curve(1.0, 10.0, 100.0, low, low=0, high=0)]))
        assert 9 * (heights[0] - heights[1]) < heights[1] - heights[2] + 2


@pytest.mark.parametrize("wrong", ["mean", "low", "high"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gap_where_the_mean_or_an_end_of_the_band_is_not_finite(wrong: str, value: float) -> None:
    whole = curve(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    getattr(whole, wrong)[2] = value
    found = line_chart([whole])
    assert [len(piece) for piece in places(found)] == [2, 3]
    assert "nan" not in found
    assert "inf" not in found
