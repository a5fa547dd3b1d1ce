"""Optimizers against plain float64 formulas and optax, their options and refusals."""

from dataclasses import replace

import numpy as np
import pytest

from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.train.digests import described
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adagrad, Adam, AdamW, Group, Lamb, Lion, RmsProp, Sgd, nothing, vectors
from ipu_core.train.optim.common import rate_of, rates_of
from ipu_core.train.schedules import Constant
from ipu_core.train.step import initial_state, step_block

RNG = np.random.default_rng(8)
PARAMS = {"w": RNG.normal(size=(5, 3)), "b": RNG.normal(size=3), "zero": np.zeros((2, 2))}
SLOPES = [{name: RNG.normal(size=p.shape) for name, p in PARAMS.items()} for _ in range(8)]
LR = 0.05


def loss(params, slopes):
    """A loss whose gradient is what it is given."""
    return sum((params[name] * slopes[name]).sum() for name in params)


def run(optimizer, slopes=SLOPES, runner=evaluate, dtype=np.float64):
    block = step_block(loss, optimizer, PARAMS, slopes[0])
    state, tree = flatten(initial_state(PARAMS, optimizer))
    state = [np.asarray(x, dtype) for x in state]
    for slope in slopes:
        batch = [np.asarray(x, dtype) for x in flatten(slope)[0]]
        *state, _ = runner(block, [*state, *batch, np.asarray(LR, dtype)])
    return unflatten(tree, state)["params"]


def plain(direction):
    """w -= LR * direction(name, w, g, memory, t) in float64; memory is a dict per parameter."""
    params = {name: p.copy() for name, p in PARAMS.items()}
    memories = {name: {"m": np.zeros_like(p), "v": np.zeros_like(p)} for name, p in PARAMS.items()}
    for t, slopes in enumerate(SLOPES, 1):
        for name, w in params.items():
            w -= LR * direction(name, w, slopes[name], memories[name], t)
    return params


def assert_close(got, want, rtol=1e-10, atol=1e-12):
    for name in PARAMS:
        np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol)


def test_sgd():
    assert_close(run(Sgd()), plain(lambda name, w, g, memory, t: g))


def test_sgd_with_decay_leaves_out_vectors():
    decay = {"w": 0.1, "b": 0.0, "zero": 0.1}
    assert_close(run(Sgd(weight_decay=0.1)), plain(lambda name, w, g, memory, t: g + decay[name] * w))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum(nesterov):
    def direction(name, w, g, memory, t):
        memory["m"] = 0.9 * memory["m"] + g
        return g + 0.9 * memory["m"] if nesterov else memory["m"]

    assert_close(run(Sgd(momentum=0.9, nesterov=nesterov)), plain(direction))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.8, False), (0.8, True)])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(inside, momentum, nesterov, centered):
    decay = {"w": 0.1, "b": 0.0, "zero": 0.1}

    def direction(name, w, g, memory, t):
        g = g + decay[name] * w
        memory["v"] = 0.9 * (memory["v"] if t > 1 else 0.5) + 0.1 * g**2
        memory["mean"] = 0.9 * memory.get("mean", 0) + 0.1 * g
        spread = memory["v"] - memory["mean"] ** 2 if centered else memory["v"]
        x = g / np.sqrt(spread + 1e-3) if inside else g / (np.sqrt(spread) + 1e-3)
        memory["m"] = momentum * memory["m"] + x
        return x + momentum * memory["m"] if nesterov else memory["m"] if momentum else x

    made = RmsProp(eps=1e-3, eps_in_root=inside, initial=0.5, momentum=momentum, nesterov=nesterov, centered=centered,
                   weight_decay=0.1)  # fmt: skip
    assert_close(run(made), plain(direction))


def test_a_variance_of_rounded_moments_is_not_below_zero():
    """In float16 the mean square of small gradients is 0 where the square of their mean is not."""
    params, batch = {"w": np.ones((4, 3), np.float32)}, np.full((4, 3), 3e-4, np.float32)
    loop = TrainLoop(lambda p, b: (p["w"] * b).sum(), params, batch, optimizer=RmsProp(1e-5, centered=True),
                     precision="fp16.16/nearest/moments=float16")  # fmt: skip
    assert np.isfinite([loop.train(batch) for _ in range(3)]).all()
    assert np.isfinite(loop.params["w"].astype(np.float32)).all()


@pytest.mark.parametrize("inside", [False, True])
def test_adagrad(inside):
    def direction(name, w, g, memory, t):
        memory["v"] = (memory["v"] if t > 1 else 0.125) + g**2
        return g / np.sqrt(memory["v"] + 1e-3) if inside else g / (np.sqrt(memory["v"]) + 1e-3)

    assert_close(run(Adagrad(eps=1e-3, eps_in_root=inside, initial=0.125)), plain(direction))


def test_lion():
    decay = {"w": 0.1, "b": 0.0, "zero": 0.1}

    def direction(name, w, g, memory, t):
        x = np.sign(0.9 * memory["m"] + (1 - 0.9) * g) + decay[name] * w
        memory["m"] = 0.95 * memory["m"] + (1 - 0.95) * g
        return x

    assert_close(run(Lion(b2=0.95, weight_decay=0.1)), plain(direction))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: RmsProp(decay=1.0), "RmsProp: decay must lie in"),
        (lambda: RmsProp(nesterov=True), "RmsProp: nesterov needs a momentum"),
        (lambda: Adagrad(initial=-1.0), "Adagrad: initial must lie in"),
        (lambda: Adagrad(eps=float("nan")), "Adagrad: eps must lie in"),
        (lambda: Lion(b1=1.0), "Lion: b1 must lie in"),
        (lambda: Lion(weight_decay=-0.1), "Lion: weight_decay must lie in"),
    ],
)
def test_what_is_out_of_range_is_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()


def adam_direction(b1, b2, eps, decay, correction, exclude=vectors, packing=1):
    def direction(name, w, g, memory, t):
        memory["m"] = b1 * memory["m"] + (1 - b1) * g
        memory["v"] = b2 * memory["v"] + (1 - b2) * g**2
        m = memory["m"] / (1 - b1**t) if correction else memory["m"]
        v = memory["v"] / (1 - b2**t) if correction else memory["v"]
        return m / (np.sqrt(v) + eps) + (0 if exclude(name, w.shape) else decay * w)

    return direction


def with_ratio(direction, bound=np.inf, ones=("zero",)):
    def scaled(name, w, g, memory, t):
        x = direction(name, w, g, memory, t)
        size, length = np.linalg.norm(w), np.linalg.norm(x)
        return x if name in ones or bound == 0 or size == 0 or length == 0 else min(size, bound) / length * x

    return scaled


@pytest.mark.parametrize("correction", [True, False])
def test_adam(correction):
    optimizer = Adam(b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.1, bias_correction=correction)
    assert_close(run(optimizer), plain(adam_direction(0.8, 0.95, 1e-3, 0.1, correction)))


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("bound", [None, 1.5, 0])
def test_lamb(correction, bound):
    optimizer = Lamb(weight_decay=0.1, bias_correction=correction, max_weight_norm=bound)
    direction = with_ratio(adam_direction(0.9, 0.999, 1e-6, 0.1, correction), np.inf if bound is None else bound)
    assert_close(run(optimizer), plain(direction))


def test_packing_raises_the_decays_to_its_power():
    assert_close(run(Lamb(packing=2.0)), plain(with_ratio(adam_direction(0.81, 0.999**2, 1e-6, 0, True))))


def test_exclusion_is_by_name_and_shape():
    only_b = lambda name, shape: name == "b"  # noqa: E731
    assert_close(run(Adam(weight_decay=0.1, exclude=only_b)),
                 plain(adam_direction(0.9, 0.999, 1e-8, 0.1, True, only_b)))  # fmt: skip


@pytest.mark.parametrize("store_root", [False, True])
def test_amsgrad_divides_by_the_largest_second_moment(store_root):
    def direction(name, w, g, memory, t):
        memory["m"] = 0.9 * memory["m"] + 0.1 * g
        memory["v"] = 0.5 * memory["v"] + 0.5 * g * g
        memory["largest"] = np.maximum(memory.get("largest", 0.0), memory["v"])
        root = np.sqrt(memory["largest"] / (1 - 0.5**t))
        return memory["m"] / (1 - 0.9**t) / (root + 1e-8)

    optimizer = Adam(b2=0.5, amsgrad=True, store_root=store_root)
    assert_close(run(optimizer), plain(direction), rtol=1e-7)
    assert not np.allclose(run(optimizer)["w"], run(Adam(b2=0.5))["w"])
    assert "largest_second_moment" not in Adam().init(PARAMS)


def test_a_decay_that_is_not_decoupled_is_a_part_of_the_gradient():
    plainly = adam_direction(0.9, 0.999, 1e-8, 0, True)
    decay = {"w": 0.3, "b": 0.0, "zero": 0.3}
    wanted = plain(lambda name, w, g, memory, t: plainly(name, w, g + decay[name] * w, memory, t))
    assert_close(run(Adam(weight_decay=0.3, decoupled=False)), wanted)


def test_groups_may_have_schedules_of_their_own():
    groups = (Group("w", lr=lambda step: 0.5 / (1 + step)), Group("zero", lr=0.25), Group("b", lr=Constant(0.2)))
    optimizer = Sgd(lambda step: 0.1 * step, groups=groups)
    assert [list(rate_of(rates_of(optimizer), step)) for step in (0, 1)] == [
        list(np.float32([0, 0.5, 0.2])), list(np.float32([0.1, 0.25, 0.2])),
    ]  # fmt: skip
    loop = TrainLoop(loss, PARAMS, SLOPES[0], optimizer=optimizer, precision="fp32.32", engine="direct")
    wanted = {name: p.copy() for name, p in PARAMS.items()}
    for step, slopes in enumerate(SLOPES):
        loop.train(slopes)
        for name, rate in {"w": 0.5 / (1 + step), "zero": 0.25 * 0.1 * step, "b": 0.2}.items():
            wanted[name] -= rate * slopes[name]
    assert_close(loop.params, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"of the shape \(\), not \(3,\): its groups have schedules"):
        optimizer.update(PARAMS, PARAMS, optimizer.init(PARAMS), np.float32(0.1))
    refused = replace(optimizer, groups=(Group("w", lr=lambda step: -1.0),))
    with pytest.raises(ValueError, match=r"the schedule gives the learning rate -1\.0 for step 0"):
        TrainLoop(loss, PARAMS, SLOPES[0], optimizer=refused, precision="fp32.32")


def test_what_is_younger_is_said_in_digests_only_where_it_is_asked_for():
    assert {"amsgrad", "decoupled"}.isdisjoint(described(Adam()))
    told = [described(each) for each in (Adam(), Adam(amsgrad=True), Adam(decoupled=False), Adam(weight_decay=0.1))]
    assert all(a != b for n, a in enumerate(told) for b in told[:n])


def check_checkpoint_and_tiles(optimizer, precision, folder):
    """A run that is cut in the middle goes on with the same bits, and so does one on tiles; the arrays of all three."""
    loops = [
        TrainLoop(loss, PARAMS, SLOPES[0], optimizer=optimizer, precision=precision, engine=engine)
        for engine in ("direct", "tiles", "direct")
    ]
    for slopes in SLOPES[:4]:
        assert loops[0].train(slopes) == loops[1].train(slopes)
    loops[0].save(folder / "half")
    loops[2].load(folder / "half")
    for slopes in SLOPES[4:]:
        for loop in loops:
            loop.train(slopes)
    arrays = loops[0].arrays()
    for name, array in arrays.items():
        for other in loops[1:]:
            assert other.arrays()[name].tobytes() == array.tobytes(), name
    return arrays


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic/moments=float16"])
def test_amsgrad_goes_on_from_a_checkpoint_and_has_the_same_bits_on_tiles(precision, tmp_path):
    arrays = check_checkpoint_and_tiles(Adam(0.1, b2=0.5, amsgrad=True), precision, tmp_path)
    largest, second = (arrays[f"optimizer.{name}.w"] for name in ("largest_second_moment", "second_moment"))
    assert largest.dtype == second.dtype
    assert (largest > second).any()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: AdamW(decoupled=False), r"Adam\(decoupled=False\) adds it to the gradient"),
        (lambda: Sgd(-0.1), r"Sgd: lr must lie in \[0, 3.40282e\+38\), not -0.1"),
        (lambda: Adam(float("nan")), "Adam: lr"),
        (lambda: Sgd(momentum=1.0), r"Sgd: momentum must lie in \[0, 1\), not 1.0"),
        (lambda: Sgd(weight_decay=-1), "weight_decay"),
        (lambda: Sgd(nesterov=True), "nesterov needs a momentum"),
        (lambda: Adam(b2=1.0), "Adam: b2"),
        (lambda: Lamb(packing=0), "Lamb: packing must be positive"),
        (lambda: Lamb(max_weight_norm=-1), "max_weight_norm"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rate_must_be_a_number():
    for make in (Sgd, Adam, Lamb):
        with pytest.raises(TypeError, match=r"exclude must be a function \(name, shape\) -> bool, not 'bias'"):
            make(exclude="bias")
    with pytest.raises(ValueError, match=r"Lamb: lr must lie in \[0, 3.40282e\+38\), not 1e\+39"):
        Lamb(1e39)
    with pytest.raises(TypeError, match="Adam: packing must be a number, not '2'"):
        Adam(packing="2")
    with pytest.raises(TypeError, match="Sgd: lr must be a number"):
        Sgd("0.1")
    with pytest.raises(TypeError, match="Sgd: lr must be a number, not True"):
        Sgd(True)


def test_every_parameter_has_one_update_equation():
    block = step_block(loss, Lamb(weight_decay=0.1, exclude=nothing), PARAMS, SLOPES[0])
    updates = [(e.op, e.parameter) for e in block.equations if e.role == "update"]
    assert updates == [("scaled_add", name) for name in sorted(PARAMS)]
    moments = {(e.family, e.parameter) for e in block.equations if e.family.endswith("moment")}
    assert moments == {(f, name) for f in ("first_moment", "second_moment") for name in PARAMS}
