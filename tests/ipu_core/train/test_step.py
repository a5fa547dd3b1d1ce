"""The training step: micro-batches give the gradients of the whole batch."""

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Sgd
from ipu_core.train.step import initial_state, step_block

RNG = np.random.default_rng(3)
PARAMS = nn.mlp_parameters(1, [6, 5, 3])
BATCH = (RNG.normal(size=(8, 6)), RNG.integers(0, 3, 8))


def loss(params, batch):
    return nn.softmax_cross_entropy(nn.mlp(params, batch[0]), batch[1])


def step(**options):
    block = verify(step_block(loss, Sgd(), PARAMS, BATCH, **options))
    return block, evaluate(block, [*flatten((initial_state(PARAMS, Sgd()), BATCH))[0], 0.1])


@pytest.mark.parametrize("running_mean", [False, True])
def test_micro_batches_average_to_the_whole_batch(running_mean):
    _, whole = step()
    block, parts = step(micro_batches=4, running_mean=running_mean)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    sums = [e for e in equations_of(block) if e.family == "gradient_sum" and e.op in ("add", "scaled_add")]
    assert len(sums) == 4
    assert {e.role for e in sums} == {"grad_weight"}


def test_the_gradient_sum_has_its_own_format():
    block, _ = step(micro_batches=2)
    for spec, wanted in {"mlperf-bert": "float32", "mlperf-bert-pod16": "float16"}.items():
        typed = verify(Precision.parse(spec).apply(block))
        sums = [e for e in equations_of(typed) if e.family == "gradient_sum"]
        assert {e.output.type.format.name for e in sums} == {wanted}


def test_a_batch_that_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="8 rows cannot be cut into 3"):
        step(micro_batches=3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        step(micro_batches=0)


def test_a_batch_may_hold_numbers_without_axes_unless_it_is_cut():
    def scaled(params, batch):
        return loss(params, batch[:2]) * batch[2]

    batch = (*BATCH, np.float32(0.5))
    verify(step_block(scaled, Sgd(), PARAMS, batch))
    with pytest.raises(ValueError, match="a number without axes cannot be cut into 2 micro-batches"):
        step_block(scaled, Sgd(), PARAMS, batch, micro_batches=2)
