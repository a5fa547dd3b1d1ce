"""Options of the optimizers: groups, clipping, storage of moments, ratios of one; and 100 steps beside optax."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.run.execute import Executable
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, AdamW, Group, Lamb, Lars, Sgd, nothing
from ipu_core.train.schedules import Cosine, WarmUp
from ipu_core.train.step import initial_state, step_block
from tests.ipu_core.train.test_optim import (
    LR,
    PARAMS,
    SLOPES,
    adam_direction,
    assert_close,
    loss,
    plain,
    run,
    with_ratio,
)

STEPS = 100
SCHEDULE = WarmUp(Cosine(0.02, 80, end=0.001), 20)


def test_ratios_of_one_can_be_named_and_none_at_all():
    direction = adam_direction(0.9, 0.999, 1e-6, 0.1, True)
    assert_close(run(Lamb(weight_decay=0.1, ratio_one=nothing)), plain(with_ratio(direction, ones=())))
    named = Lamb(weight_decay=0.1, ratio_one=lambda name, shape: name == "w")
    assert_close(run(named), plain(with_ratio(direction, ones=("w",))))


def test_tensors_that_begin_at_zero_move_under_lamb():
    """The trust ratio of PopART's formula would hold them: their norm is far below their direction's."""
    moved = run(Lamb())["zero"]
    held = run(Lamb(ratio_one=nothing))["zero"]
    assert np.linalg.norm(moved) > 2 * np.linalg.norm(held)
    block = step_block(loss, Lamb(), PARAMS, SLOPES[0])
    norms = {e.parameter for e in block.equations if e.op == "reduce_sum" and e.role == "optimizer"}
    assert norms == {"w", "b"}


def test_groups_have_their_own_rate_and_decay_and_the_first_match_counts():
    groups = (Group("b", lr=0.5, decay=0.3), Group("*", lr=2.0))
    b = run(Sgd(LR, weight_decay=0.1, groups=groups))
    rate, decay = {"b": 0.5, "w": 2.0, "zero": 2.0}, {"b": 0.3, "w": 0.1, "zero": 0.1}
    assert_close(b, plain(lambda name, w, g, memory, t: rate[name] * (g + decay[name] * w)))


@pytest.mark.parametrize("optimizer", [Sgd(), Sgd(momentum=0.9), Adam(), Lamb(), Lars()])
def test_frozen_parameters_stay_and_have_neither_moments_nor_gradients(optimizer):
    made = replace(optimizer, groups=(Group("w", frozen=True),))
    np.testing.assert_array_equal(run(made)["w"], PARAMS["w"])
    block = step_block(loss, made, PARAMS, SLOPES[0])
    about = [e for e in block.equations if e.parameter == "w" and e.role not in ("forward", "update")]
    assert not about
    names = [var.name for var in block.inputs]
    assert not any("moment" in name and name.endswith(".w") for name in names)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_frozen_weight_is_stored_as_the_precision_says(engine):
    params = nn.mlp_parameters(1, [8, 8, 4])
    batch = (nn.uniform(2, (16, 8)), np.arange(16) % 4)
    made = TrainLoop(
        lambda params, batch: nn.softmax_cross_entropy(nn.mlp(params, batch[0]), batch[1]), params, batch,
        optimizer=Lamb(0.1, groups=(Group("0.*", frozen=True),)), precision="fp16.16/stochastic", engine=engine,
    )  # fmt: skip
    first = made.params[0]["weight"]
    made.run([batch] * 5, 5)
    assert first.dtype == np.float16
    np.testing.assert_array_equal(made.params[0]["weight"], first)
    np.testing.assert_array_equal(made.params[0]["bias"], np.zeros(8))
    assert (made.params[1]["bias"] != 0).all()


def test_clipping_by_value_then_by_norm_of_all_gradients():
    clipped = [{name: np.clip(s, -0.4, 0.4) for name, s in slopes.items()} for slopes in SLOPES]
    assert_close(run(Sgd(clip_value=0.4)), run(Sgd(), clipped))
    norms = [np.sqrt(sum((s**2).sum() for s in slopes.values())) for slopes in clipped]
    assert min(norms) < 1.7 < max(norms)
    scaled = [
        {name: s * min(1, 1.7 / norm) for name, s in slopes.items()}
        for slopes, norm in zip(clipped, norms, strict=True)
    ]
    assert_close(run(Adam(clip_value=0.4, clip_norm=1.7, eps=0.1)), run(Adam(eps=0.1), scaled))


def test_clipping_leaves_frozen_parameters_out():
    frozen = (Group("w", frozen=True),)
    without = [{**slopes, "w": 0 * slopes["w"]} for slopes in SLOPES]
    assert_close(run(Sgd(clip_norm=1.0, groups=frozen)), run(Sgd(clip_norm=1.0), without))


@pytest.mark.parametrize("correction", [True, False])
def test_the_root_of_the_second_moment_is_the_same_mathematics(correction):
    plainly, rooted = (run(Lamb(bias_correction=correction, store_root=root)) for root in (False, True))
    assert_close(plainly, rooted, rtol=1e-9)


@pytest.mark.parametrize("scale", [64.0, 0.25])
@pytest.mark.parametrize("root", [False, True])
def test_a_state_scaled_for_the_precision_is_the_same_bit_for_bit(scale, root):
    runner = lambda block, inputs: Executable(block).run(inputs, 0)  # noqa: E731
    optimizer = Lamb(weight_decay=0.1, store_root=root)
    got, want = (run(o, runner=runner, dtype=np.float32) for o in (optimizer.for_precision(scale), optimizer))
    for name in PARAMS:
        np.testing.assert_array_equal(got[name], want[name])


def test_an_optimizers_own_scale_goes_before_the_precisions():
    assert Adam(scaled_state=1.0).for_precision(64.0) == Adam(scaled_state=1.0)
    assert Sgd().for_precision(64.0) == Sgd()
    numbers = [
        [e.number for e in step_block(loss, Lamb().for_precision(s), PARAMS, SLOPES[0]).equations] for s in (1, 64)
    ]
    assert numbers[0] == numbers[1]  # the random bits and orders of sums, which go by number, are every precision's


def optax_run(transform, params):
    optax = pytest.importorskip("optax")
    from tests.ipu_core.frontends.jax_peer import compiled

    params = {name: np.asarray(p, np.float32) for name, p in params.items()}
    state = transform.init(params)

    @compiled
    def update(slopes, state, params):
        updates, state = transform.update(slopes, state, params)
        return optax.apply_updates(params, updates), state

    for step in range(STEPS):
        slopes = {name: np.asarray(s, np.float32) for name, s in SLOPES[step % len(SLOPES)].items()}
        params, state = update(slopes, state, params)
    return {name: np.asarray(p) for name, p in params.items()}


def our_run(optimizer, params):
    block = step_block(loss, optimizer, params, SLOPES[0])
    state, tree = flatten(initial_state(params, optimizer))
    state, program = [np.asarray(x, np.float32) for x in state], Executable(block)
    for step in range(STEPS):
        batch = [np.asarray(x, np.float32) for x in flatten(SLOPES[step % len(SLOPES)])[0]]
        *state, _ = program.run([*state, *batch, np.float32(optimizer.lr(step))], 0)
    return unflatten(tree, state)["params"]


@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("name", ["adamw", "lamb", "lars", "sgd"])
def test_a_hundred_scheduled_and_clipped_steps_are_optax(name, clip):
    optax = pytest.importorskip("optax")
    not_vectors = {name: np.ndim(p) > 1 for name, p in PARAMS.items()}
    ratio = {"w": True, "b": True, "zero": False}
    scheduled = optax.scale_by_learning_rate(optax_schedule(optax))
    theirs = {
        "adamw": [optax.scale_by_adam(0.9, 0.99, 1e-6), optax.add_decayed_weights(0.1, not_vectors), scheduled],
        "lamb": [
            optax.scale_by_adam(0.9, 0.99, 1e-6), optax.add_decayed_weights(0.1, not_vectors),
            optax.masked(optax.scale_by_trust_ratio(), ratio), scheduled,
        ],
        "lars": [optax.lars(optax_schedule(optax), 0.1, not_vectors, 0.01, 0.0, {**ratio, "b": False}, 0.9)],
        "sgd": [optax.add_decayed_weights(0.1, not_vectors), optax.trace(0.9, nesterov=True), scheduled],
    }[name]  # fmt: skip
    own, decay = {"clip_norm": 1.7} if clip == "norm" else {"clip_value": 0.4}, {"weight_decay": 0.1}
    ours = {
        "adamw": lambda: AdamW(SCHEDULE, 0.9, 0.99, 1e-6, **decay, **own),
        "lamb": lambda: Lamb(SCHEDULE, 0.9, 0.99, 1e-6, **decay, **own),
        "lars": lambda: Lars(SCHEDULE, trust=0.01, **decay, **own),
        "sgd": lambda: Sgd(SCHEDULE, 0.9, True, **decay, **own),
    }[name]()
    clipper = optax.clip_by_global_norm(1.7) if clip == "norm" else optax.clip(0.4)
    want, got = optax_run(optax.chain(clipper, *theirs), PARAMS), our_run(ours, PARAMS)
    for parameter in PARAMS:
        np.testing.assert_allclose(got[parameter], want[parameter], rtol=1e-6, atol=1e-6)


def optax_schedule(optax):
    return optax.warmup_cosine_decay_schedule(0.0, 0.02, 20, 100, 0.001)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: Sgd(groups=[Group("*")]), TypeError, "groups must be a tuple of Groups"),
        (lambda: Group(3), TypeError, "pattern must be a pattern of names"),
        (lambda: Group("*", lr=-1), ValueError, "Group: lr must lie in"),
        (lambda: Group("*", decay=float("nan")), ValueError, "Group: decay must lie in"),
        (lambda: Adam(clip_norm=0), ValueError, "Adam: clip_norm must lie in"),
        (lambda: Lamb(clip_value="1"), TypeError, "Lamb: clip_value must be a number"),
        (lambda: Lamb(ratio_one="bias"), TypeError, "ratio_one must be a function"),
        (lambda: Lars(trust=-1), ValueError, "Lars: trust"),
        (lambda: Adam(scaled_state=0), ValueError, "Adam: scaled_state must be positive"),
        (lambda: run(Adam(groups=(Group("v"),))), ValueError, "no parameter is called 'v'; there are b, w, zero"),
    ],
)
def test_wrong_options_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def digits_loop(precision, optimizer, engine="direct"):
    params = nn.mlp_parameters(1, [20, 24, 7])
    batch = (nn.uniform(2, (40, 20)), np.arange(40) % 7)
    return TrainLoop(
        lambda params, batch: nn.softmax_cross_entropy(nn.mlp(params, batch[0]), batch[1]), params, batch,
        optimizer=optimizer, precision=precision, engine=engine,
    ), batch  # fmt: skip


@pytest.mark.parametrize("spec", ["fp16.16/stochastic/moments=bfloat16", "mlperf-bert", "mlperf-bert-pod16"])
@pytest.mark.parametrize("root", [False, True])
def test_both_engines_train_with_the_same_moments(spec, root):
    ends = []
    for engine in ("direct", "tiles"):
        made, batch = digits_loop(spec, Lamb(0.01, clip_norm=1.0, store_root=root), engine)
        made.run([batch] * 4, 4)
        ends.append(made.arrays())
    moments = {name: a.dtype.name for name, a in ends[0].items() if "second_moment" in name}
    wanted = "float32" if spec.endswith("pod16") else "bfloat16" if "bfloat16" in spec else "float16"
    assert set(moments.values()) == {wanted}
    for name, array in ends[0].items():
        assert array.tobytes() == ends[1][name].tobytes(), name


def test_small_second_moments_survive_in_the_preset_and_not_without_its_scale():
    zeros = {}
    itself = "mlperf-bert/store_root=false"
    for spec in ("mlperf-bert", itself, f"{itself}/scaled_state=1"):
        made, batch = digits_loop(spec, Lamb(0.001))
        made.run([batch] * 5, 5)
        zeros[spec] = np.mean(made.arrays()["optimizer.second_moment.0.weight"] == 0)
    assert zeros["mlperf-bert"] <= zeros[itself] < 0.02 < 0.1 < zeros[f"{itself}/scaled_state=1"]


@pytest.mark.parametrize("optimizer", [Sgd(), Sgd(momentum=0.9), Adam(), Lars()])
def test_kahans_sum_is_the_same_mathematics(optimizer):
    assert_close(run(optimizer), run(replace(optimizer, kahan=True)), rtol=1e-12)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_kahans_sum_keeps_what_narrow_weights_lose(engine):
    """Updates of 2^-11 of a weight of bfloat16, whose step is 2^-7: all are lost, or none in the end."""
    ends = {}
    for kahan in (False, True):
        made = TrainLoop(
            lambda params, batch: nn.mean(params["w"] * batch), {"w": np.ones(8, np.float32)}, np.ones(8, np.float32),
            optimizer=Sgd(2.0**-8, kahan=kahan), precision="fp32.32/weights=bfloat16", engine=engine,
        )  # fmt: skip
        made.run([np.ones(8, np.float32)] * 64, 64)
        ends[kahan] = made.arrays()
    assert "optimizer.compensation.w" not in ends[False]
    np.testing.assert_array_equal(ends[False]["params.w"], np.ones(8))
    total = np.float32(ends[True]["params.w"]) + np.float32(ends[True]["optimizer.compensation.w"])
    np.testing.assert_array_equal(total, np.full(8, 1 - 64 * 2.0**-11))
    assert ends[True]["optimizer.compensation.w"].dtype.name == "bfloat16"


def test_a_group_may_have_no_decay_where_others_have_one():
    """Zero is a decay of its own, not none."""
    optimizer = AdamW(weight_decay=0.1, exclude=nothing, groups=(Group("w", decay=0.0), Group("b", decay=0)))
    usual, free = (adam_direction(0.9, 0.999, 1e-8, decay, True, nothing) for decay in (0.1, 0.0))
    choose = {"w": free, "b": free, "zero": usual}
    assert_close(run(optimizer), plain(lambda name, *rest: choose[name](name, *rest)))


@pytest.mark.parametrize("own", [True, False])
def test_eps_is_scaled_as_the_moments_are(own):
    """A large one, so that it counts."""
    made = Adam(eps=0.5, scaled_state=64.0) if own else Adam(eps=0.5).for_precision(64.0)
    assert_close(run(made), plain(adam_direction(0.9, 0.999, 0.5, 0, True)), rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_by_its_formula(nesterov):
    def direction(name, w, g, memory, t):
        g = g + (0 if w.ndim < 2 else 0.1 * w)
        size, length = np.linalg.norm(w), np.linalg.norm(g)
        ratio = 1 if w.ndim < 2 or not size or not length or name == "zero" else 0.02 * size / (length + 1e-3)
        memory["m"] = 0.8 * memory["m"] + ratio * g
        return ratio * g + 0.8 * memory["m"] if nesterov else memory["m"]

    made = Lars(momentum=0.8, trust=0.02, eps=1e-3, weight_decay=0.1, nesterov=nesterov)
    assert_close(run(made), plain(direction))


@pytest.mark.parametrize(
    ("option", "says"),
    [("betas", "b1=0.9, b2=0.999"), ("learning_rate", "it is lr"), ("foo", "there are groups, .* lr, ")],
)
def test_options_that_there_are_not_are_refused_in_words(option: str, says: str) -> None:
    with pytest.raises(TypeError, match=f"Adam has no option '{option}'.*{says}"):
        Adam(lr=0.1, **{option: (0.9, 0.99)})
    assert copy.deepcopy(Adam(0.1, b1=0.5)) == pickle.loads(pickle.dumps(Adam(0.1, b1=0.5))) == Adam(0.1, b1=0.5)
