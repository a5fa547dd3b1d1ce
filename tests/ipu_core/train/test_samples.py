"""Batches drawn from a data set by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Samples
from ipu_core.train.data.batches import Feed


class Squares:
    """Sample i is the pair of i, as an array, and its square."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, number: int) -> Any:
        return {"x": np.full(2, number, np.float32), "y": number * number}


def test_a_pass_shows_each_sample_once_in_an_order_of_its_own() -> None:
    batches = Samples(Squares(), 5).seeded(3)
    passes = [np.concatenate([batches(2 * number + step)["x"][:, 0] for step in range(2)]) for number in range(2)]
    assert all(len(set(one)) == 10 for one in passes)
    assert list(passes[0]) != list(passes[1])
    batch = batches(0)
    assert batch["x"].shape == (5, 2)
    assert batch["x"].dtype == np.float32
    np.testing.assert_array_equal(batch["y"], batch["x"][:, 0] ** 2)


def test_seed_and_step_say_the_batch() -> None:
    samples = Samples(Squares(), 4)
    np.testing.assert_array_equal(samples(7, 5)["y"], samples.seeded(7)(5)["y"])
    assert not np.array_equal(samples(7, 5)["y"], samples(8, 5)["y"])


def test_a_run_takes_them_of_seed_0() -> None:
    samples = Samples(Squares(), 4)
    for number, batch in enumerate(Feed(samples, 3).take(5)):
        np.testing.assert_array_equal(batch["y"], samples(0, 3 + number)["y"])


def test_refusals() -> None:
    with pytest.raises(ValueError, match="a batch of 12 cannot be drawn from 11 rows"):
        Samples(Squares(), 12)
    with pytest.raises(TypeError, match="a data set that has a length"):
        Samples(iter([1]), 1)  # type: ignore[arg-type]
