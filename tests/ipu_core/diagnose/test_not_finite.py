"""A loss that is infinite or NaN is said at once, with its step, and on request with the equation in which it began."""

import warnings
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, nn
from ipu_core.errors import NotFinite

X = np.float32([[1, 2], [3, 4], [-1, 0.5]])
BATCH = X, np.full((3, 1), 1e3, np.float32)


def exploding(params: Any, batch: Any) -> Any:
    x, y = batch
    return nn.mse(nn.exp(x @ params["w"]), y)


def loop(lr: float = 1e6, **more: Any) -> TrainLoop:
    settings = {"engine": "direct", "precision": "fp32.32", **more}
    return TrainLoop(exploding, {"w": np.ones((2, 1), np.float32)}, BATCH, optimizer=Sgd(lr), **settings)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_stop_ends_the_run_after_that_step_and_names_the_equation(engine: str) -> None:
    made = loop(engine=engine, on_nonfinite="stop")
    with pytest.warns(NotFinite, match=r"the loss of step 1 is inf: .*; it began in forward\.exp\.1"):
        losses = made.run([BATCH] * 9, 9)
    assert losses[1] == np.inf
    assert (len(losses), made.step) == (2, 2)


def test_a_step_that_stops_raises_and_is_done() -> None:
    made = loop(on_nonfinite="stop")
    made.train(BATCH)
    with pytest.raises(NotFinite, match="step 1 is inf"):
        made.train(BATCH)
    assert (made.step, made.not_finite) == (2, (1, np.inf))
    made.train(BATCH)  # it was said


def test_what_came_in_is_named_where_no_equation_made_it() -> None:
    made = loop(on_nonfinite="stop")
    with pytest.raises(NotFinite, match=r"step 0 is nan.*not finite before it: array 0 of the batch$"):
        made.train((np.full_like(X, np.nan), BATCH[1]))


@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_a_warning_comes_before_the_next_step(steps_per_call: int) -> None:
    made = loop(steps_per_call=steps_per_call)
    seen: list[tuple[int, int]] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made.run([BATCH] * 6, 6, callbacks=[lambda at, loss: seen.append((at.step, len(said)))])
    assert len(said) == 1
    assert dict(seen) == ({1: 0, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1} if steps_per_call == 1 else {3: 1, 6: 1})


def test_ignored_it_is_kept_and_not_said() -> None:
    made = loop(on_nonfinite="ignore")
    made.run([BATCH] * 3, 3)
    assert made.not_finite == (1, np.inf)


def test_another_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="on_nonfinite must be 'warn', 'stop' or 'ignore', not 'raise'"):
        loop(on_nonfinite="raise")


def test_the_equation_is_named_that_wrote_it_over_its_own_operand() -> None:
    """A new weight lies where the old one did: what was read there is gone when it is looked at."""
    made = loop(3e38, on_nonfinite="stop", steps_per_call=2)
    with pytest.warns(NotFinite, match=r"the loss of step 1 is (inf|nan): .*; it began in w\.update\.scaled_add\.\d+"):
        made.run([BATCH] * 4, 4)
