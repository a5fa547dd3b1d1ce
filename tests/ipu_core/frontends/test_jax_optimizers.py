"""Optimizers of optax as settings of the ones here: 20 steps are optax's own; what has no counterpart is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lamb,
    Lion,
    NAdam,
    RAdam,
    RmsProp,
    Sgd,
    TrainLoop,
    from_jax,
    from_optax,
)
from ipu_core.frontends.jax import optimizers
from tests.ipu_core.frontends.jax_peer import compiled, jax

optax = pytest.importorskip("optax")
jnp = jax.numpy


def normal(*shape: int) -> Any:
    return (0.4 * np.random.default_rng(shape).normal(size=shape)).astype(np.float32)


PARAMS = {"in": {"w": normal(4, 8), "b": np.zeros(8, np.float32)}, "out": [normal(8, 3), normal(3)]}
SLOPES = [jax.tree.map(lambda x, n=n: 10.0 ** (n % 3 - 1) * normal(n + 1, *x.shape)[n], PARAMS) for n in range(20)]
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 30, 0.001)


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def loss(params: Any, batch: Any) -> Any:
    """One whose gradient is the batch: both optimizers get the same bits."""
    return sum(jnp.sum(x * g) for x, g in zip(jax.tree.leaves(params), jax.tree.leaves(batch), strict=True))


def decayed(mask: Any = None) -> Any:
    return optax.add_decayed_weights(0.1, mask)


MADE: dict[str, tuple[Any, type]] = {
    "sgd": (optax.sgd(0.1), Sgd), "scheduled": (optax.sgd(SCHEDULE), Sgd),
    "momentum": (optax.sgd(0.1, 0.9), Sgd), "nesterov": (optax.sgd(SCHEDULE, 0.9, nesterov=True), Sgd),
    "decayed": (optax.chain(decayed(matrices), optax.sgd(0.1, 0.9)), Sgd),
    "adam": (optax.adam(1e-2, b1=0.8, b2=0.95, eps=1e-6), Adam), "adamw": (optax.adamw(SCHEDULE), AdamW),
    "amsgrad": (optax.amsgrad(1e-2, bias_correction_mu=False, bias_correction_nu=False), Adam),
    "coupled": (optax.chain(optax.clip(0.3), decayed(matrices), optax.adam(1e-3)), Adam),
    "coupled whole": (optax.chain(decayed(), optax.adam(1e-2)), Adam),
    "masked": (optax.adamw(1e-2, weight_decay=0.1, mask=matrices), AdamW),
    "by branch": (optax.adamw(1e-2, weight_decay=0.1, mask={"in": False, "out": True}), AdamW),
    "lamb": (optax.lamb(SCHEDULE, weight_decay=0.01), Lamb), "lion": (optax.lion(1e-3, weight_decay=0.1), Lion),
    "rmsprop": (optax.rmsprop(1e-2), RmsProp),
    "rmsprop outside": (optax.rmsprop(SCHEDULE, 0.95, eps_in_sqrt=False, initial_scale=0.5), RmsProp),
    "rmsprop centered": (optax.rmsprop(1e-2, centered=True), RmsProp),
    "rmsprop momentum": (optax.rmsprop(1e-2, momentum=0.9, nesterov=True), RmsProp),
    "adagrad": (optax.adagrad(0.1), Adagrad),
    "nadam": (optax.nadam(SCHEDULE, b2=0.9), NAdam), "nadamw": (optax.nadamw(1e-2, weight_decay=0.1), NAdam),
    "radam": (optax.radam(SCHEDULE, b2=0.8, eps=1e-2), RAdam), "adamax": (optax.adamax(SCHEDULE), Adamax),
    "radam decayed": (optax.chain(decayed(matrices), optax.radam(1e-2, b2=0.8, threshold=4.5)), RAdam),
    "adamaxw": (optax.adamaxw(1e-2, weight_decay=0.1, mask=matrices), Adamax),
    "adadelta": (optax.adadelta(SCHEDULE, weight_decay=0.1), Adadelta),
    "chain": (optax.chain(optax.clip(0.3), optax.clip_by_global_norm(0.2), optax.scale_by_adam(), decayed(matrices),
                          optax.scale(0.5), optax.scale_by_learning_rate(SCHEDULE)), AdamW),
    "chain of chains": (optax.chain(optax.clip_by_global_norm(1.0),
                                    optax.chain(optax.adam(1e-2), optax.scale(0.5))), Adam),
    "bare": (optax.scale(-0.1), Sgd),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_twenty_steps_are_those_of_optax(name: str) -> None:
    theirs, kind = MADE[name]
    model = from_jax(loss, PARAMS, SLOPES[0])
    mine = from_optax(theirs, model.params)
    assert type(mine) is kind
    loop = TrainLoop(model, model.params, SLOPES[0], optimizer=mine, precision="fp32.32", engine="direct")
    params, state = PARAMS, theirs.init(PARAMS)

    @compiled
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = theirs.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for slopes in SLOPES:
        loop.train(slopes)
        params, state = step(params, state, slopes)
    for a, b in zip(jax.tree.leaves(loop.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (optax.radam(1e-3, nesterov=True), "scale_by_radam with nesterov=True has no counterpart, only False"),
        (optax.radam(1e-3, eps_root=1e-8), "scale_by_radam with eps_root=1e-08 has no counterpart"),
        (optax.rprop(1e-3), "scale_by_rprop has no counterpart .optax takes each step one late; ipu_core.Rprop"),
        (optax.chain(optax.scale_by_adadelta(), decayed(), optax.scale(-1.0)), "Adadelta adds its decay to the"),
        (optax.adam(1e-3, eps_root=1e-8), "scale_by_adam with eps_root=1e-08"),
        (optax.adam(1e-3, mu_dtype="bfloat16"), "scale_by_adam with mu_dtype="),
        (optax.amsgrad(1e-3), r"scale_by_amsgrad has no counterpart .its largest second moment is of corrected ones"),
        (optax.amsgrad(1e-3, bias_correction_nu=False), "with bias_correction_mu=False and bias_correction_nu=False"),
        (optax.novograd(1e-3), "scale_by_novograd"),
        (optax.scale_by_adam(), "no learning rate behind the direction; there are sgd"),
        (optax.chain(decayed(), optax.lion(1e-3, weight_decay=0.0)), "Lion's decay is decoupled: put it behind"),
        (
            optax.chain(optax.trace(0.9), decayed(), optax.scale(-0.1)),
            "Sgd adds its decay to the gradient: put it first",
        ),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.clip(0.1), optax.sgd(0.1)), "clip has no counterpart"),
        (
            optax.chain(optax.adam(1e-3), optax.adam(1e-3)),
            "scale_by_adam has no counterpart .in this place of the chain",
        ),
        (
            optax.chain(optax.scale_by_lion(), optax.scale_by_trust_ratio(), optax.scale(-1.0)),
            "ratios of norms are Lamb",
        ),
        (optax.rmsprop(SCHEDULE, momentum=0.9), "RmsProp's momentum has the rate outside"),
        (optax.masked(optax.adam(1e-3), matrices), "it may stand around add_decayed_weights alone"),
        (optax.MultiSteps(optax.adam(1e-3), 4), "micro_batches=n of the loop"),
        (optax.apply_if_finite(optax.adam(1e-3), 3), "loss_scale= of the loop skips"),
        (optax.inject_hyperparams(optax.adam)(1e-3), "its learning rate a schedule"),
        (optax.stateless(lambda u, p: u), "stateless has no counterpart"),
        (optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s)), "a transformation of one's own"),
    ],
)
def test_what_has_no_counterpart_is_refused(optimizer: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_optax(optimizer, PARAMS)


def test_numbers_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read wrongly is seen in optax's own numbers."""
    monkeypatch.setitem(
        optimizers.DIRECTIONS, "scale_by_adam", lambda part: (Adam, {"b1": 0.9, "b2": 0.999, "eps": 1e-3})
    )
    with pytest.raises(ValueError, match=r"whose numbers differ from optax's in step \d+ of in\.b"):
        from_optax(optax.adam(1e-3), PARAMS)


def test_radam_is_compared_where_its_counts_do_not_cancel() -> None:
    """In float32 optax's r is off by a hundredth with the usual b2."""
    assert from_optax(optax.radam(1e-3), PARAMS) == RAdam(1e-3, exclude=from_optax(optax.radam(1e-3), PARAMS).exclude,
                                                         eps_corrected=False)  # fmt: skip


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="from_optax takes an optimizer of optax"):
        from_optax(3, PARAMS)
    with pytest.raises(TypeError, match=r"from_optax\(optimizer, params\) makes one"):
        TrainLoop(from_jax(loss, PARAMS, PARAMS), PARAMS, PARAMS, optimizer=optax.adam(1e-3), precision="fp32.32")


@pytest.mark.parametrize("params", [None, {}])
def test_an_optimizer_is_for_parameters(params: Any) -> None:
    with pytest.raises(ValueError, match="from_optax: params are those that it is for, arrays such as"):
        from_optax(optax.adam(1e-3), params)


def test_a_schedule_tells_itself_from_others() -> None:
    words = [from_optax(optax.sgd(optax.linear_schedule(0.1, end, 9)), PARAMS).lr.description() for end in (0.0, 0.01)]
    assert words[0] != words[1]
    assert words[0]["rates"][0] == pytest.approx(0.1)


def test_modules_of_equinox_have_masks_of_their_own() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    made = from_optax(optax.adamw(1e-2, weight_decay=0.1, mask=matrices), model)
    assert made.exclude("layers.0.bias", (8,))
    assert not made.exclude("layers.0.weight", (8, 4))
