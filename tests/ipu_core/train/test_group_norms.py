"""Batch norm over neighbouring replicas: programs beside each other that meet in each pass, bit for bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, NotFinite, Sgd, System, Target, TrainLoop, diverge, nn
from ipu_core.ir.block import Array, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import GROUP_SUM
from ipu_core.ir.regions import Branch, Loop
from ipu_core.ir.run.evaluate import _Walk
from lowprec import Key
from tests.ipu_core.train.test_replicas import MEET, _before, _met, _replica

SMALL = Target("gc200", tiles=8)


def params() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in {"w": (6, 8), "v": (8, 3)}.items()}
    return {**drawn, "scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}


STATE = {"mean": np.zeros(8, np.float32), "variance": np.ones(8, np.float32)}


def loss_of(group: int, share: float = 0.25) -> Any:
    """A perceptron whose norm counts a group's rows together."""

    def loss(p: Any, state: Any, batch: Any) -> Any:
        x, labels = batch
        hidden = nn.dropout(x @ p["w"], share) if share else x @ p["w"]
        normal, new = nn.batch_norm(hidden, p["scale"], p["bias"], state, training=True, replicas=group)
        return nn.cross_entropy(nn.relu(normal) @ p["v"], labels), new

    return loss


def batch(rows: int, step: int = 0) -> Any:
    rng = np.random.default_rng([3, step])
    return rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(0, 3, rows).astype(np.int32)


def loop_of(group: int, replicas: int, rows: int = 24, share: float = 0.25, **options: Any) -> TrainLoop:
    usual: dict[str, Any] = {"optimizer": Adam(0.02), "precision": "fp32.32", "key": 5, "target": SMALL}
    return TrainLoop(
        loss_of(group, share), params(), batch(rows), model_state=STATE, replicas=replicas, **{**usual, **options}
    )


class ByHand:
    """Replicas as walks over the Block, equation by equation, in all of them before the next."""

    def __init__(self, loop: TrainLoop, inputs: Sequence[Any], key: Key) -> None:
        block, count = loop.block, loop.training.replicas
        own = _before(block)
        self.loop, self.key = loop, key
        self.walks = [
            _replica(block, inputs, number, count, own, loop.accumulations, loop.control, key)
            for number in range(count)
        ]
        self.run(block.equations, ())
        self.outputs = [[walk.values[var] for var in block.outputs] for walk in self.walks]

    def run(self, equations: Sequence[Equation], path: tuple[int, ...]) -> None:
        for equation in equations:
            match equation.region:
                case Loop() as loop:
                    self.loops(loop, path)
                case Branch() as branch:
                    for walk in self.walks:
                        walk.compute([equation], path)
                    assert branch.results
                case _:
                    self.one(equation, path)

    def loops(self, loop: Loop, path: tuple[int, ...]) -> None:
        for walk in self.walks:
            walk.values.update({old: walk.lift(np.zeros(old.type.shape, np.float32), old.type.format)
                                for old, _ in loop.carries})  # fmt: skip
        for one in range(loop.count):
            for walk in self.walks:
                walk.values.update({part: loop.part(part, walk.values[whole], one) for whole, part in loop.fed})
            self.run(loop.body.equations, (*path, one))
            for walk in self.walks:
                walk.values.update({old: walk.values[new] for old, new in loop.carries})

    def one(self, equation: Equation, path: tuple[int, ...]) -> None:
        if equation.op not in (GROUP_SUM, *MEET):
            for walk in self.walks:
                walk.compute([equation], path)
            return
        size = equation.params["replicas"]
        for group in _groups(self.walks, size):
            every = np.stack([walk.values[equation.operands[0]] for walk in group])
            drawn = None if equation.draws is None else self.key.fold_in(equation.draws)
            for walk in group:
                walk.values[equation.output] = _met(equation, every, self.loop.control, drawn)


def _groups(walks: Sequence[_Walk], size: int) -> list[Sequence[_Walk]]:
    return [walks[first : first + size] for first in range(0, len(walks), size)]


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
@pytest.mark.parametrize("scale", [None, 64.0])
@pytest.mark.parametrize(("group", "replicas", "micro_batches"), [(2, 2, 1), (2, 4, 3), (4, 4, 2), (2, 8, 1)])
def test_it_is_what_programs_do_that_meet_in_their_passes(
    group: int, replicas: int, micro_batches: int, scale: float | None, precision: str
) -> None:
    """Both engines, as replicas by hand: sums over groups in every micro-batch, forward and for the gradient."""
    rows = 3 * replicas * micro_batches
    made = {
        engine: loop_of(group, replicas, rows, precision=precision, loss_scale=scale, micro_batches=micro_batches,
                        engine=engine)
        for engine in ("direct", "tiles")
    }  # fmt: skip
    loop = made["direct"]
    sums = [e for e in equations_of(loop.block) if e.op == GROUP_SUM]
    assert len(sums) == 4  # mean and variance, and the gradient of both
    for step in range(2):
        inputs, key = loop.next_step(batch(rows, step))
        byhand = ByHand(loop, inputs, key).outputs
        losses = [each.train(batch(rows, step)) for each in made.values()]
        for engine in made.values():
            for position, got in enumerate(engine._stepper.runner.read()):
                for replica in byhand:
                    assert np.asarray(replica[position]).tobytes() == got.tobytes()
        assert losses[0] == losses[1] == float(byhand[0][loop.block.carried])


def test_two_replicas_of_twenty_rows_are_a_batch_of_forty() -> None:
    """Statistics and gradients, to float32's accuracy: an update is that of one program with all rows."""
    options: dict[str, Any] = {"optimizer": Sgd(0.5), "rows": 40, "share": 0.0}
    one, two, apart = loop_of(1, 1, **options), loop_of(2, 2, **options), loop_of(1, 2, **options)
    for loop in (one, two, apart):
        loop.train(batch(40))
    for name, weight in one.params.items():
        np.testing.assert_allclose(two.params[name], weight, rtol=0, atol=2e-6)
    assert any(np.abs(apart.params[name] - weight).max() > 1e-3 for name, weight in one.params.items())
    hidden = batch(40)[0] @ params()["w"]
    for loop in (one, two):
        np.testing.assert_allclose(loop.model_state["mean"], 0.1 * hidden.mean(0), atol=1e-6)
        np.testing.assert_allclose(loop.model_state["variance"], 0.9 + 0.1 * hidden.var(0, ddof=1), atol=1e-5)
    assert np.abs(apart.model_state["mean"] - one.model_state["mean"]).max() > 1e-3


def test_threads_decide_no_bit_and_copies_go_on(tmp_path: Any) -> None:
    """Ten runs, one that is pickled, copied and saved on the way."""

    loops = [loop_of(2, 4, precision="fp16.16/stochastic", engine="direct") for _ in range(10)]
    runs = [[loop.train(batch(24, step)) for step in range(6)] for loop in loops]
    assert all(each == runs[0] for each in runs)
    loop = loop_of(2, 4, precision="fp16.16/stochastic", engine="direct")
    begun = [loop.train(batch(24, step)) for step in range(3)]
    loop.save(tmp_path / "run.npz")
    again = loop_of(2, 4, precision="fp16.16/stochastic")
    again.load(tmp_path / "run.npz")
    for other in (pickle.loads(pickle.dumps(loop)), copy.copy(loop), again):
        assert begun + [other.train(batch(24, step)) for step in range(3, 6)] == runs[0]


def test_what_a_group_cannot_be() -> None:
    """Refused with what there is, before any step."""
    with pytest.raises(ValueError, match="groups of 3, into which 4 replicas cannot be cut"):
        loop_of(3, 4)
    with pytest.raises(ValueError, match="into which 1 replica cannot be cut: replicas=2 of the training"):
        loop_of(2, 1)
    with pytest.raises(ValueError, match="run beside each other"):
        loop_of(2, 2, watch=2)
    with pytest.raises(ValueError, match="arrays have no neighbours"):
        nn.batch_norm(np.ones((4, 8), np.float32), np.ones(8), np.zeros(8), STATE, training=True, replicas=2)
    with pytest.raises(ValueError, match="replicas must be"):
        loop_of(0, 2)


def test_an_end_in_one_replica_is_an_end_of_all() -> None:
    """The first number that is not finite is found in the passes too, and the loop goes on afterwards."""
    loop = loop_of(2, 4, engine="direct", on_nonfinite="stop", optimizer=Sgd(0.1))
    x, labels = batch(24)
    bad = x.copy()
    bad[20] = 3e38  # of the last replica: its product is infinite, and its group's mean
    with pytest.raises(NotFinite, match=r"it began in w\.forward\.dot"):
        loop.train((bad, labels))
    other = loop_of(2, 4, engine="direct")
    assert np.isfinite(other.train((x, labels)))
    assert other.count_updates((x, labels)).wanted > 0
    with pytest.raises(ValueError, match="run beside each other"):
        diverge(loop_of(2, 2), loop_of(2, 2, key=6), [batch(24)])


def test_links_are_billed_in_every_micro_batch() -> None:
    """Two messages forward and two for the gradient; neighbours alone meet, so 2 chips of 8 cost what 2 of 2 do."""
    one, two = (loop_of(group, 8, rows=48, micro_batches=2) for group in (1, 2))
    for loop, count in ((one, 0), (two, 8)):
        assert loop.profile is not None
        found = [s for s in loop.profile.steps if s.kind == "links" and "group_all_reduce" in s.name]
        assert sum(step.count for step in found) == count
    pair = loop_of(2, 2, rows=12, micro_batches=2, system=System(SMALL, chips=2))
    assert pair.profile is not None
    assert two.profile is not None
    names = lambda loop: {s.name: s.account.cycles for s in loop.profile.steps if "group_all" in s.name}  # noqa: E731
    assert names(pair) == names(two)
    whole = two.system_profile
    assert whole is not None
    assert whole.seconds_per_update == pytest.approx(two.profile.seconds)
    cut = loop_of(2, 4, rows=48, micro_batches=2, stages=2).system_profile
    assert cut is not None
    assert (cut.chips, cut.stages) == (8, 2)
