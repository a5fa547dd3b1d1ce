"""NAdam, RAdam, Adamax, Adadelta, Adafactor, Asgd and Rprop against float64 formulas, their state, refusals."""

from typing import Any

import numpy as np
import pytest

from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adadelta, Adafactor, Adam, Adamax, Asgd, Group, NAdam, RAdam, Rprop, nothing
from ipu_core.train.step import step_block
from tests.ipu_core.train.test_optim import (
    LR,
    PARAMS,
    SLOPES,
    assert_close,
    check_checkpoint_and_tiles,
    loss,
    plain,
    run,
)

KINDS = (Adadelta, Adafactor, Adamax, Asgd, NAdam, RAdam, Rprop)


def moments(memory: Any, g: Any, b1: float, b2: float) -> Any:
    memory["m"] = b1 * memory["m"] + (1 - b1) * g
    memory["v"] = b2 * memory["v"] + (1 - b2) * g**2
    return memory["m"], memory["v"]


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("store_root", [False, True])
@pytest.mark.parametrize("fading", [None, 0.0, 0.3])
def test_nadam(fading: float | None, store_root: bool, amsgrad: bool) -> None:
    def momentum(t: int) -> float:
        return 0.8 if fading is None else 0.8 * (1 - 0.5 * 0.96 ** (t * fading))

    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        m, v = moments(memory, g, 0.8, 0.9)
        v = memory["largest"] = np.maximum(memory.get("largest", 0), v) if amsgrad else v
        root = np.sqrt(v / (1 - 0.9**t)) + 1e-3
        product = np.prod([momentum(n) for n in range(1, t + 1)])
        ahead = momentum(t + 1)
        return ((1 - momentum(t)) / (1 - product) * g + ahead / (1 - product * ahead) * m) / root

    made = NAdam(b1=0.8, b2=0.9, eps=1e-3, momentum_decay=fading, store_root=store_root, amsgrad=amsgrad)
    assert_close(run(made), plain(direction))


@pytest.mark.parametrize("b2", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("corrected", [False, True])
def test_radam(b2: float, corrected: bool) -> None:
    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        m, v = moments(memory, g, 0.8, b2)
        m, q, most = m / (1 - 0.8**t), 1 - b2**t, 2 / (1 - b2) - 1
        known = most - 2 * t * b2**t / q
        if known <= 5:
            return m
        rectified = np.sqrt((known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known))
        return m * rectified / ((np.sqrt(v) + 1e-2) / np.sqrt(q) if corrected else np.sqrt(v / q) + 1e-2)

    assert_close(run(RAdam(b1=0.8, b2=b2, eps=1e-2, eps_corrected=corrected)), plain(direction))


@pytest.mark.parametrize("correction", [False, True])
def test_adamax(correction: bool) -> None:
    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        memory["m"] = 0.8 * memory["m"] + (1 - 0.8) * g
        memory["v"] = np.maximum(0.7 * memory["v"], np.abs(g) + 1e-2)
        return memory["m"] / (1 - 0.8**t if correction else 1) / memory["v"]

    assert_close(run(Adamax(b1=0.8, b2=0.7, eps=1e-2, bias_correction=correction)), plain(direction))


def test_adadelta() -> None:
    decay = {"w": 0.1, "b": 0.0, "zero": 0.1}

    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        g = g + decay[name] * w
        memory["v"] = 0.8 * memory["v"] + 0.2 * g**2
        x = np.sqrt((memory["m"] + 1e-3) / (memory["v"] + 1e-3)) * g
        memory["m"] = 0.8 * memory["m"] + 0.2 * x**2
        return x

    assert_close(run(Adadelta(decay=0.8, eps=1e-3, weight_decay=0.1)), plain(direction))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adafactor(decay: float) -> None:
    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        share, size = t**-0.5, max(0.2, np.sqrt((w**2).mean())) * min(LR, t**-0.5)
        squares = g * g
        if g.ndim == 1:
            v = memory["v"] = memory["v"] + share * (squares - memory["v"])
        else:
            for axis in (-1, -2):
                old = memory.get(axis, 0)
                memory[axis] = old + share * (squares.mean(axis, keepdims=True) - old)
            v = memory[-1] * memory[-2] / memory[-1].mean(-2, keepdims=True)
        x = g / np.sqrt(v)
        return size * x / max(1, np.sqrt((x**2).mean()) / 0.7) / LR + decay * w

    made = Adafactor(beta2_decay=-0.5, eps2=0.2, d=0.7, weight_decay=decay, exclude=nothing)
    assert_close(run(made), plain(direction))


@pytest.mark.parametrize("alpha", [0.0, 0.75])
def test_asgd(alpha: float) -> None:
    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        return (g + 0.3 * w) / (1 + 0.3 * LR * (t - 1)) ** alpha

    assert_close(run(Asgd(lambd=0.3, alpha=alpha)), plain(direction))


def test_asgd_keeps_the_mean_of_its_last_weights() -> None:
    optimizer = Asgd(LR, lambd=0.0, t0=3, groups=(Group("b", frozen=True),))
    loop = TrainLoop(loss, PARAMS, SLOPES[0], optimizer=optimizer, precision="fp32.32", engine="direct")
    passed, averages = list[Any](), list[Any]()
    for slopes in SLOPES:
        loop.train(slopes)
        passed.append(loop.params["w"])
        averages.append(loop.arrays()["optimizer.average.w"])
    for step, average in enumerate(averages):
        np.testing.assert_allclose(average, np.mean(passed[min(step, 4) : step + 1], axis=0), rtol=1e-6)
    assert "optimizer.average.b" not in loop.arrays()


def test_rprop() -> None:
    def direction(name: str, w: Any, g: Any, memory: Any, t: int) -> Any:
        size = memory.get("size", np.full(g.shape, LR))
        sign = np.sign(g * memory["m"])
        memory["size"] = np.clip(size * np.where(sign > 0, 1.3, np.where(sign < 0, 0.4, 1)), 0.02, 0.1)
        memory["m"] = np.where(sign < 0, 0, g)
        return np.sign(memory["m"]) * memory["size"] / LR

    made = Rprop(LR, shrink=0.4, grow=1.3, least=0.02, most=0.1)
    assert_close(run(made), plain(direction), rtol=1e-6)


def test_rprop_begins_with_the_rate_of_a_group() -> None:
    optimizer = Rprop(0.5, groups=(Group("w", lr=0.2), Group("b", frozen=True)))
    loop = TrainLoop(loss, PARAMS, SLOPES[0], optimizer=optimizer, precision="fp32.32", engine="direct")
    loop.train(SLOPES[0])
    moved = {name: np.abs(loop.params[name] - p.astype(np.float32)) for name, p in PARAMS.items()}
    np.testing.assert_allclose(moved["w"], 0.1, rtol=1e-5)
    np.testing.assert_allclose(moved["zero"], 0.5, rtol=1e-5)
    assert not moved["b"].any()


@pytest.mark.filterwarnings("ignore")
def test_a_nan_has_no_sign_and_moves_nothing_in_rprop() -> None:
    loop = TrainLoop(loss, PARAMS, SLOPES[0], optimizer=Rprop(0.5), precision="fp32.32", engine="direct")
    broken = {name: np.array(slope, np.float32) for name, slope in SLOPES[0].items()}
    broken["w"].flat[0] = np.nan
    loop.train(broken)
    before, after = (np.asarray(x, np.float32).ravel() for x in (PARAMS["w"], loop.params["w"]))
    assert after[0] == before[0]
    assert (after[1:] != before[1:]).all()
    loop.train(SLOPES[0])
    assert loop.params["w"].flat[0] == before[0] - np.float32(0.5) * np.sign(SLOPES[0]["w"].flat[0])


@pytest.mark.parametrize("kind", [NAdam, RAdam, Adamax])
def test_scaled_states_are_the_same_mathematics(kind: Any) -> None:
    whole = run(kind(b2=0.9, eps=1e-3))
    assert_close(run(kind(b2=0.9, eps=1e-3, scaled_state=64.0)), whole)
    assert_close(run(kind(b2=0.9, eps=1e-3).for_precision(64.0, store_root=True)), whole, rtol=1e-7)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic/moments=float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_goes_on_from_a_checkpoint_and_has_the_same_bits_on_tiles(
    kind: Any, precision: str, tmp_path: Any
) -> None:
    groups = (Group("b", lr=0.5),) if kind is Rprop else (Group("b", lr=0.5, decay=0.2),)
    if kind is Asgd:
        precision = precision.removesuffix("/moments=float16")  # it has none
    for name, array in check_checkpoint_and_tiles(kind(0.1, groups=groups), precision, tmp_path).items():
        assert np.isfinite(array.astype(np.float32)).all(), name


STORED = {
    Adadelta: {"second_moment", "squared_steps"}, Adafactor: {"second_moment", "columns"},
    Adamax: {"first_moment", "second_moment"}, NAdam: {"first_moment", "second_moment"},
    RAdam: {"first_moment", "second_moment"}, Rprop: {"last_gradient", "step_size"},
}  # fmt: skip


@pytest.mark.parametrize("kind", STORED)
def test_moments_are_stored_as_the_precision_says(kind: Any) -> None:
    loop = TrainLoop(loss, PARAMS, SLOPES[0], optimizer=kind(0.1), precision="fp16.16/nearest/moments=float16",
                     engine="direct")  # fmt: skip
    loop.train(SLOPES[0])
    found = {name.split(".")[1] for name, x in loop.arrays().items()
             if name.startswith("optimizer.") and x.dtype == np.float16}  # fmt: skip
    assert found == STORED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_one_update_equation(kind: Any) -> None:
    block = step_block(loss, kind(), PARAMS, SLOPES[0])
    updates = [(e.op, e.parameter) for e in block.equations if e.role == "update"]
    assert updates == [("scaled_add", name) for name in sorted(PARAMS)]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: NAdam(momentum_decay=-1.0), "NAdam: momentum_decay must lie in"),
        (lambda: RAdam(bias_correction=False), "RAdam: it is its bias correction"),
        (lambda: RAdam(threshold=3), r"RAdam: threshold must lie in \[4, inf\), not 3"),
        (lambda: Adamax(amsgrad=True), "Adamax: amsgrad is of second moments that are mean squares"),
        (lambda: Adadelta(decay=1.0), "Adadelta: decay must lie in"),
        (lambda: Adafactor(beta2_decay=0.1), r"Adafactor: beta2_decay must lie in \(-inf, 0\], not 0.1"),
        (lambda: Adafactor(d=0), "Adafactor: d must be positive, not 0"),
        (lambda: Asgd(alpha=1.5), r"Asgd: alpha must lie in \[0, 1\], not 1.5"),
        (lambda: Rprop(lambda step: 0.1), "lr is where its steps begin and a schedule would change nothing"),
        (lambda: Rprop(groups=(Group("w", lr=lambda step: 0.1),)), "a schedule would change nothing"),
        (lambda: Rprop(groups=(Group("w", decay=0.1),)), "Rprop: it has no weight decay"),
        (lambda: Rprop(shrink=0.0), r"Rprop: shrink must lie in \(0, 1\), not 0.0"),
        (lambda: Rprop(least=60.0), r"Rprop: least must lie in \[0, 50\], not 60"),
    ],
)
def test_what_is_out_of_range_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_a_checkpoint_of_another_optimizer_is_refused_by_the_setting_that_differs(tmp_path: Any) -> None:
    loops = [
        TrainLoop(loss, PARAMS, SLOPES[0], optimizer=made, precision="fp32.32", engine="direct")
        for made in (
            Adam(0.1, amsgrad=True),
            Adam(0.1),
            NAdam(0.1),
            Adam(0.3, amsgrad=True),
            Adam(0.1, groups=(Group("b", lr=2.0),)),
        )
    ]
    loops[0].save(tmp_path / "saved")
    with pytest.raises(
        ValueError, match=r"of a run with the optimizer Adam\(amsgrad=True\), this one has Adam\(amsgrad=False\)"
    ):
        loops[1].load(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"with the optimizer Adam, this one has NAdam"):
        loops[2].load(tmp_path / "saved")
    loops[3].load(tmp_path / "saved")  # the learning rate may be another
    loops[1].save(tmp_path / "plain")
    with pytest.raises(ValueError, match="another traced step"):
        loops[4].load(tmp_path / "plain")
