"""Copies: a training loop goes on by itself in each, to the same bits; what holds a machine says what to do instead."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Engine, Graph, Machine, Sgd, Target, TrainLoop, nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.graph.program import Sequence
from lowprec import Accumulation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 16, 8)).astype(np.float32)
PARAMS = {"a": RNG.normal(size=(8, 12)).astype(np.float32) / 3, "b": (np.zeros((12, 1), np.float32),)}
WAYS = [copy.copy, copy.deepcopy, lambda loop: pickle.loads(pickle.dumps(loop))]


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    return X[step % 20], np.sin(X[step % 20][:, :1])


def made(engine: str = "direct", **more: Any) -> TrainLoop:
    def loss(params: Any, given: Any) -> Any:  # a function that pickle would refuse: it is traced and not kept
        return np.mean((nn.tanh(given[0] @ params["a"]) @ params["b"][0] - given[1]) ** 2)

    settings: dict[str, Any] = {"optimizer": Adam(0.01), "precision": "fp16.16/stochastic", "key": 5, **more}
    return TrainLoop(loss, PARAMS, batch(0), engine=engine, target=Target("gc200", tiles=8), **settings)


@pytest.mark.parametrize("again", WAYS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_copied_loop_goes_on_to_the_same_bits_and_alone(engine: str, again: Callable[[Any], Any]) -> None:
    loop, whole = made(engine), made(engine).run(batch, 12)
    np.testing.assert_array_equal(loop.run(batch, 5), whole[:5])
    copied = again(loop)
    assert (copied.step, copied.words()) == (5, loop.words())
    np.testing.assert_array_equal(copied.run(batch, 7), whole[5:])
    assert loop.step == 5  # the original was not moved ...
    np.testing.assert_array_equal(loop.run(batch, 7), whole[5:])
    assert copied.step == 12  # ... and moves alone
    for one, other in zip(copied.arrays().values(), loop.arrays().values(), strict=True):
        np.testing.assert_array_equal(one, other)
    if engine == "tiles":
        assert copied.profile.cycles == loop.profile.cycles
    assert copied.count_updates(batch(12)) == loop.count_updates(batch(12))


def test_all_that_decides_the_bits_is_copied() -> None:
    more: dict[str, Any] = {
        "accumulations": {0: Accumulation(group=1)},
        "control": FloatingPointControl(nanoo=True),
        "micro_batches": 2,
        "optimizer": Sgd(0.3, momentum=0.5),
    }
    loop = made(**more)
    copied = copy.deepcopy(loop)
    np.testing.assert_array_equal(copied.run(batch, 4), made(**more).run(batch, 4))
    assert (copied.accumulations, copied.precision, copied.target) == (loop.accumulations, loop.precision, loop.target)


def losses(loop: TrainLoop) -> list[float]:
    return loop.run(batch, 3).tolist()  # type: ignore[no-any-return]


def test_a_loop_goes_on_in_another_process() -> None:
    loop = made()
    loop.run(batch, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(losses, (loop,)) == losses(loop)


def test_what_runs_a_block_directly_is_copied_with_buffers_of_its_own() -> None:
    loop = made()
    inputs = [*loop.arrays().values(), *batch(0), np.float32(0.1)]
    executable = loop._stepper.runner.executable
    wanted = executable.run(inputs, 3)
    copied = copy.deepcopy(executable)
    copied.run([array + array.dtype.type(1) for array in inputs], 3)
    for again in (executable, copied, pickle.loads(pickle.dumps(executable))):
        for one, other in zip(again.run(inputs, 3), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_and_a_machine_say_what_to_do_instead(again: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="make another one of the same graph and programs"):
        again(Engine(Graph("gc200"), Sequence()))
    with pytest.raises(TypeError, match=r"build another, Machine.build\(block, target\)"):
        again(Machine.build(made().block, Target("gc200", tiles=8)))
