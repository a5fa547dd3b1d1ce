"""`diverge`: two loops of one model part where they were made to, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Divergence, Sgd, TrainLoop, Unvalidated, diverge, nn
from lowprec import matmul

RNG = np.random.default_rng(0)
PARAMS = {
    "first": RNG.normal(size=(48, 24)).astype(np.float32) / 7,
    "second": RNG.normal(size=(24, 4)).astype(np.float32) / 5,
}
BATCHES = [
    (RNG.normal(size=(8, 48)).astype(np.float32), RNG.integers(0, 4, 8).astype(np.int32)) for _ in range(5)
]  # fmt: skip


def loss(params: Any, batch: Any) -> Any:
    x, labels = batch
    h = nn.gelu(nn.matmul(x, params["first"]))
    return nn.cross_entropy(nn.matmul(h, params["second"]), labels)


def loop(precision: str = "fp32.32", **options: Any) -> TrainLoop:
    given = {"optimizer": Adam(0.01), "engine": "direct"} | options
    return TrainLoop(loss, PARAMS, BATCHES[0], precision=precision, **given)


def found(a: TrainLoop, b: TrainLoop, batches: Any = BATCHES) -> Divergence:
    answer = diverge(a, b, batches)
    assert answer is not None
    return answer


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "fp8"])
def test_loops_alike_do_not_part(precision: str) -> None:
    assert diverge(loop(precision), loop(precision), BATCHES) is None


def test_engines_do_not_part() -> None:
    assert diverge(loop("fp16.16/stochastic"), loop("fp16.16/stochastic", engine="tiles"), BATCHES) is None


def test_another_order_parts_in_the_first_product() -> None:
    a, b = loop(), loop("fp32.32/adder=pairwise")
    answer = found(a, b)
    assert answer.step == 0
    assert answer.name == "first.forward.dot.0"
    assert answer.line is not None
    assert answer.line.startswith("test_diverge.py:")
    assert answer.casts == ()
    x, w = answer.operands[0]
    assert x.tobytes() == BATCHES[0][0].tobytes()
    assert w.tobytes() == PARAMS["first"].tobytes()
    both = matmul(x, w, group=16), matmul(x, w, adder="pairwise")
    differ = both[0] != both[1]
    assert answer.element == tuple(np.argwhere(differ)[0])
    assert answer.values == tuple(float(each[answer.element]) for each in both)
    assert (answer.count, answer.size) == (differ.sum(), differ.size)
    assert len(answer.growth) == len(BATCHES)
    assert 0 < answer.growth[0] < 1e-5
    # The loops themselves did nothing.
    assert a.step == b.step == 0


def test_growth_is_the_distance_of_the_weights() -> None:
    a, b = loop(), loop("fp32.32/adder=pairwise")
    answer = found(a, b)
    a.run(BATCHES, 5), b.run(BATCHES, 5)
    x, y = (np.concatenate([v.ravel() for v in each.params.values()]).astype(float) for each in (a, b))
    assert answer.growth[-1] == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x))


def test_casts_that_one_makes_alone_are_told_and_not_compared() -> None:
    answer = found(loop(), loop("fp16.32"))
    assert answer.name == "first.forward.dot.0"
    assert len(answer.casts) == 2
    assert all(each.startswith("b: ") and each.endswith(" to float16") for each in answer.casts)
    assert found(loop("fp16.32"), loop()).casts[0].startswith("a: ")
    assert "casts that one of them alone makes: b: " in str(answer)


def test_a_state_that_differs_comes_before_any_equation() -> None:
    answer = found(loop(), loop("fp16.32/weights=bfloat16"))
    assert answer.name == "state params.first"
    assert answer.operands == ((), ())
    a = loop()
    b = loop()
    changed = b.arrays()
    changed["optimizer.first_moment.second"][3, 1] = 1e-20
    b.restore(changed, 0)
    answer = found(a, b)
    assert (answer.name, answer.element) == ("state optimizer.first_moment.second", (3, 1))
    assert answer.values == (0.0, float(np.float32(1e-20)))
    assert answer.count == 1


def test_a_later_step_is_found() -> None:
    """Loss scales are the same until one of the loops doubles its own."""
    a, b = loop("fp16.32", loss_scale=1024.0), loop("fp16.32", loss_scale=1024.0)
    b.train(BATCHES[0])
    a.train(BATCHES[0])
    assert diverge(a, b, BATCHES[1:]) is None
    c = loop("fp16.32/stochastic", key=1)
    d = loop("fp16.32/stochastic", key=2)
    answer = found(c, d)
    assert answer.step == 0


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="loop_b must be a TrainLoop"):
        diverge(loop(), None, BATCHES)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="batches"):
        diverge(loop(), loop(), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two models or optimizers"):
        diverge(loop(), loop(optimizer=Sgd(0.1)), BATCHES)
    with pytest.warns(Unvalidated):
        hardware = loop("fp16.16/stochastic", engine="tiles", random="hardware")
    other = TrainLoop(
        lambda params, batch: loss(params, batch) * 1.0 + nn.relu(params["first"]).sum(), PARAMS, BATCHES[0],
        optimizer=Adam(0.01), precision="fp32.32", engine="direct",
    )  # fmt: skip
    with pytest.raises(ValueError, match="their forward passes are not of the same"):
        diverge(loop(), other, BATCHES)
    with pytest.raises(ValueError, match="no second time"):
        diverge(hardware, hardware, BATCHES)
    assert diverge(loop(), loop(), []) is None
