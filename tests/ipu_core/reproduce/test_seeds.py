"""What seeds can tell: Student's test decides, in both directions, and is wrong as often as it says."""

import math

import numpy as np
import pytest

from ipu_core.reproduce.seeds import STUDENT, above, below, beside, every, recovered, room


def test_the_quantiles_are_students() -> None:
    stats = pytest.importorskip("scipy.stats")
    np.testing.assert_allclose(STUDENT, stats.t.ppf(0.95, np.arange(1, len(STUDENT) + 1)), atol=5e-4)


def test_room_is_the_error_of_the_mean_times_the_quantile() -> None:
    assert room([1.0, 2.0, 3.0]) == pytest.approx(2.92 / math.sqrt(3))
    assert room([1.0]) == math.inf
    assert room([0.0, 1.0] * 10) == pytest.approx(1.833 * np.std([0.0, 1.0] * 10, ddof=1) / math.sqrt(20))


def test_a_mean_is_above_below_or_not_told() -> None:
    assert above([1.0, 1.1, 0.9])
    assert above([1.0, 1.1, 0.9], 1.5) is False
    assert above([1.0, 1.1, 0.9], 1.05) is None
    assert above([1.0]) is None
    assert above([1.0, 1.0, 1.0]), "no spread at all tells"
    assert below([1.0, 1.1, 0.9], 1.5)
    assert below([1.0, 1.1, 0.9], 0.5) is False
    assert below([1.0, 1.1, 0.9], 1.05) is None


def test_chance_is_taken_for_an_effect_in_one_case_of_twenty() -> None:
    draws = np.random.Generator(np.random.Philox(0)).standard_normal((4000, 3))
    wrong = sum(above(list(each)) is True for each in draws)
    # a binomial deviation of 4,000 with a chance of 0.05 is 13.8
    assert abs(wrong - 200) < 4 * 13.8


def test_one_that_fails_decides_and_then_one_that_is_not_told() -> None:
    assert every(True, True)
    assert every(True, None, False) is False
    assert every(True, None) is None


def test_rows_are_set_beside_one_another_seed_by_seed() -> None:
    found = {"whole": [1.0, 2.0, 3.0], "hurt": [2.0, 3.0, 4.01], "cured": [1.01, 2.0, 3.02], "half": [1.5, 2.51, 3.5]}
    assert beside(found, "hurt", "whole") == pytest.approx([1.0, 1.0, 1.01])
    assert recovered(found, "cured", "hurt", "whole", 0.05)
    assert recovered(found, "half", "hurt", "whole", 0.05) is False
    assert recovered(found, "half", "hurt", "whole", 0.6)
