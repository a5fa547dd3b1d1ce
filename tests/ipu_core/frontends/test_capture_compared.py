"""What rounding explains of a captured module's results, and what may be written to: without torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ipu_core.frontends.torch.comparing import NEAR, near
from ipu_core.frontends.torch.fidelity import ROUNDING, SHARE, TIMES, Fidelity, Found, beside
from ipu_core.frontends.torch.kept import same_number
from ipu_core.frontends.torch.operations.elementwise import log_of_1_and_exp
from ipu_core.frontends.torch.outside import same_state
from ipu_core.frontends.torch.slots import Slot, TensorView
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.trace.values import reduce_sum
from ipu_core.nn import softplus

ONE = np.float32([1.0, -2.0, 0.5])


def found(gradient: Any = ONE, loss: float = 1.0, buffer: Any = ONE) -> Found:
    return Found({}, {"w": np.asarray(gradient)}, [np.asarray(loss)], {"mean": np.asarray(buffer)})


def wrong(own: Found, singles: list[Found], unit: float = ROUNDING) -> set[tuple[str, str]]:
    return {(row.operation, row.name) for row in beside(own, singles, found(), unit) if not row.explained}


def test_rounding_explains_a_few_units_and_several_times_torch_s_own() -> None:
    far = 2 * (ROUNDING + SHARE)
    assert wrong(found(), [found()]) == set()
    assert wrong(found(ONE + 0.9 * far), [found()]) == set()
    assert wrong(found(ONE + 1.1 * far), [found()]) == {("gradient", "w")}
    assert wrong(found(ONE + TIMES * 0.01), [found(ONE + np.float32(0.01))]) == set()
    assert wrong(found(ONE + 1.1 * far), [found()], unit=2 * ROUNDING) == set()
    assert wrong(found(loss=1 + 2 * ROUNDING, buffer=ONE + 4 * ROUNDING), [found()]) == {
        ("loss", ""),
        ("buffer", "mean"),
    }


def test_runs_that_are_moved_explain_their_own_distance_and_jumps_of_gradients() -> None:
    jumped, further = found(ONE + 0.1, 1.1, ONE + 0.1), found(ONE + 0.2, 1.2, ONE + 0.2)
    assert wrong(jumped, [found(), jumped]) == set()
    assert wrong(further, [found(), jumped]) == {("loss", ""), ("buffer", "mean")}
    assert wrong(jumped, [found()]) == {("loss", ""), ("buffer", "mean"), ("gradient", "w")}


def test_what_torch_has_no_gradient_for_is_0() -> None:
    rows = beside(Found({}, {}, [np.asarray(1.0)]), [found()], found())
    assert [(row.name, row.explained, row.ours) for row in rows] == [("", True, 0.0), ("w", False, 2.0)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_infinities_and_nan_are_explained_by_themselves_alone(bad: float) -> None:
    broken = np.float32([1.0, bad, 0.5])
    assert wrong(found(broken), [found()]) == {("gradient", "w")}
    assert wrong(found(), [found(broken)]) == set()
    assert not near(found(), found(broken), 1.0)
    assert not near(found(broken), found(), 1.0)
    assert near(found(broken), found(broken), 1.0)
    both = [Found({}, {"w": broken, "v": v}, [np.asarray(1.0)]) for v in (ONE, -ONE)]
    assert not near(*both, 1.0)  # the largest of all gradients is a number
    rows = beside(both[1], [both[0]], both[0])
    assert [row.explained for row in rows] == [True, False, True]


def test_near_looks_at_loss_gradients_and_buffers() -> None:
    step = np.float32(4 * NEAR)
    assert near(found(), found(ONE * (1 + NEAR / 2)), 1.0)
    for other in (found(ONE + step), found(loss=1 + step), found(buffer=ONE + step), found(-ONE), found(0 * ONE)):
        assert not near(found(), other, 1.0)
    assert not near(Found({}, {}, [np.asarray(1.0)]), found(), 1.0)  # torch has no gradient where there is one here


def test_a_report_says_what_it_did_not_see() -> None:
    rows = tuple(beside(found(), [found()], found()))
    assert str(Fidelity((), (), rows, ("masks",))).endswith(", and 3 of the module itself are as near to float64 as "
                                                           "float32 rounding explains; not seen: masks")  # fmt: skip
    worse = tuple(beside(found(-ONE), [found()], found()))
    report = Fidelity((), (), worse)
    assert report.first is worse[1]
    assert str(report).startswith("1 of 3 (0 results and 0 gradients) are farther from torch")


def test_what_is_fixed_is_not_written_to_through_views_either() -> None:
    fixed, free = Slot(1.0, fixed="it is a parameter"), Slot(1.0)
    view = Slot(1.0, TensorView(fixed, lambda x: x, lambda old, new: new))
    for slot in (fixed, view):
        with pytest.raises(NotImplementedError, match="it is a parameter"):
            slot.write(2.0)
        with pytest.raises(NotImplementedError, match="it is a parameter"):
            slot.touch()
    assert (fixed.read(), view.read(), fixed.written) == (1.0, 1.0, False)
    free.write(2.0)
    assert (free.read(), free.written) == (2.0, True)


def test_states_of_generators_are_told_apart() -> None:
    states = []
    for _ in range(2):
        bits = np.random.default_rng(1).bit_generator
        states.append([random.Random(1).getstate(), np.random.RandomState(1).get_state(legacy=False), bits.state])
    assert same_state(*states)
    bits.random_raw()
    assert not same_state(states[0], [*states[1][:2], bits.state])
    assert not same_state(states[0], [random.Random(2).getstate(), *states[1][1:]])
    assert not same_state(states[0][1], np.random.RandomState(2).get_state(legacy=False))
    assert same_number(float("nan"), float("nan"))
    assert not same_number(1, 2)


@pytest.mark.parametrize("function", [softplus, log_of_1_and_exp])
def test_the_gradient_of_softplus_is_the_sigmoid_at_0_too(function: Any) -> None:
    x = np.float32([-30.0, -1.0, -0.0, 0.0, 1.0, 30.0])
    value, slopes = value_and_grad(lambda x: reduce_sum(function(x)))(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(value, np.logaddexp(0, exact).sum(), rtol=1e-6)
    tail, _ = value_and_grad(lambda x: reduce_sum(function(x)))(x[:1])
    np.testing.assert_allclose(tail, np.logaddexp(0, exact[0]), rtol=1e-6)
    np.testing.assert_allclose(slopes, 1 / (1 + np.exp(-exact)), rtol=1e-6)
