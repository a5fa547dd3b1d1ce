"""Replicas: R programs that run beside each other, equation by equation, and meet; the loop gives their bits."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowprec as lp
from ipu_core import (
    Adam,
    Execution,
    FloatingPointControl,
    Lamb,
    Sgd,
    System,
    Target,
    Training,
    TrainLoop,
    Unvalidated,
    blame,
    diverge,
    nn,
)
from ipu_core.ir.block import Array, Block, Equation, Var
from ipu_core.ir.bodies import equations_of, flat, reads_of
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.regions import path_key
from ipu_core.ir.run.collectives import REPLICA, around_meetings
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.evaluate import Path as Iterations
from ipu_core.ir.run.evaluate import _Walk
from ipu_core.ir.run.kernels import given_order
from ipu_core.ir.verify import InvalidBlock
from lowprec import Collective, Key

MEET = ("all_reduce", "all_reduce_max", "first_replica")
ROWS, WIDTH = 4, 6
SMALL = Target("gc200", tiles=8)


def params() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: 0.4 * rng.normal(size=shape).astype(np.float32)
            for name, shape in {"w": (WIDTH, 8), "b": (8,), "v": (8, 3)}.items()}  # fmt: skip


def loss(p: Any, batch: Any) -> Any:
    x, y = batch
    hidden = nn.relu(x @ p["w"] + p["b"])
    return nn.softmax_cross_entropy(nn.dropout(hidden, 0.25) @ p["v"], y)


def with_state(p: Any, state: Any, batch: Any) -> Any:
    x, y = batch
    mean = nn.mean(x, 0)
    return loss(p, (x - state["mean"], y)), {"mean": 0.75 * state["mean"] + 0.25 * mean}


def batches(rows: int, step: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng([7, step])
    return scale * rng.normal(size=(rows, WIDTH)).astype(np.float32), rng.integers(0, 3, rows).astype(np.int32)


def by_hand(loop: TrainLoop, inputs: Sequence[Any], key: Key) -> list[list[Array]]:
    """The outputs of one step on every replica, each of which computes all of it, by declared arithmetic."""
    block, count, orders = loop.block, loop.training.replicas, loop.accumulations
    own = _before(block)
    walks = [_replica(block, inputs, number, count, own, orders, loop.control, key) for number in range(count)]
    for equation in block.equations:
        if equation.op not in MEET:
            for walk in walks:
                walk.compute([equation], ())
            continue
        every = np.stack([walk.values[equation.operands[0]] for walk in walks])
        step = None if equation.draws is None else key.fold_in(equation.draws)
        for walk in walks:
            walk.values[equation.output] = _met(equation, every, loop.control, step)
    return [[walk.values[var] for var in block.outputs] for walk in walks]


def _met(equation: Equation, every: Array, control: FloatingPointControl, key: Key | None) -> Array:
    fmt = equation.output.type.format
    assert not isinstance(fmt, str)
    if equation.op == "first_replica":
        return every[0]
    if equation.op == "all_reduce_max":
        return every.max(0)
    how = equation.params["collective"] or Collective(wire=fmt, rounding=equation.arithmetic.rounding)
    how = dataclasses.replace(how, rounding=control.rounding(how.rounding, how.wire))
    total = lp.all_reduce(every, how, key=key)
    if fmt == how.wire or fmt.contains(how.wire):
        return total.astype(every.dtype if fmt.dtype is None else fmt.dtype)
    last = control.rounding(lp.Rounding(how.rounding.mode, how.rounding.random_bits), fmt)
    return lp.astype(total, fmt, last, key=None if key is None else key.fold_in(1))


def _before(block: Block) -> set[int]:
    """The numbers of equations on whose results a meeting depends: what draws a replica's own bits."""
    made = {var: equation for equation in block.equations for var in equation.outputs}
    found, waiting = set[int](), [e.operands[0] for e in block.equations if e.op in MEET]
    while waiting:
        equation = made.get(waiting.pop())
        if equation is None or equation.number in found:
            continue
        found |= {equation.number, *(each.number for each in flat([equation]))}
        waiting += reads_of(equation)
    return found


def _replica(
    block: Block, inputs: Sequence[Any], number: int, count: int, own: set[int], orders: Any,
    control: FloatingPointControl, key: Key,
) -> _Walk:  # fmt: skip
    def rule(equation: Equation, operands: list[Any], path: Iterations) -> Array:
        drawn = None
        if equation.draws is not None:
            mine = key.fold_in(REPLICA + number) if number and equation.number in own else key
            drawn = path_key(mine, path).fold_in(equation.draws)
        return declared(equation, operands, drawn, given_order(equation, orders), control)

    values: dict[Var, Any] = dict(block.constants)
    for position, (var, value) in enumerate(zip(block.inputs, inputs, strict=True)):
        given_rows = np.asarray(value)
        if position >= block.carried and given_rows.ndim:
            rows = len(given_rows) // count
            given_rows = given_rows[number * rows : (number + 1) * rows]
        values[var] = cast(given_rows, var.type.format)
    return _Walk(values, cast, rule)


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    replicas = draw(st.sampled_from([2, 3, 4, 8]))
    orders = st.sampled_from([
        None, Collective("tree", wire="float16"), Collective("ring_pair", 1, wire="bfloat16", rounding="stochastic"),
        Collective("ring", 2, wire="float16", accumulate="float32"), Collective(wire="float8_e5m2"),
        Collective(wire="float64"),
        *([Collective("two_level", group=2, wire="float32")] if replicas % 2 == 0 else []),
    ])  # fmt: skip
    return {
        "precision": draw(st.sampled_from(["fp32.32", "fp16.16/nearest", "fp16.16/stochastic", "fp8.16/stochastic"])),
        "optimizer": draw(st.sampled_from([Sgd(0.1), Adam(0.05), Lamb(0.01)])),
        "micro_batches": draw(st.sampled_from([1, 2])),
        "loss_scale": draw(st.sampled_from([None, 512.0, "automatic"])),
        "replicas": replicas,
        "collective": draw(orders),
    }


@pytest.mark.filterwarnings("ignore::ipu_core.Unvalidated", "ignore::ipu_core.errors.Unvalidated")
@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(trainings(), st.booleans(), st.sampled_from(["direct", "tiles"]), st.integers(0, 2**40))
def test_it_is_what_programs_do_that_meet(options: dict[str, Any], stateful: bool, engine: str, seed: int) -> None:
    rows = ROWS * options["replicas"] * options["micro_batches"]
    engine = "direct" if options["precision"].startswith("fp8") else engine  # of 8 bits no chip with links has a figure
    state = {"mean": np.zeros(WIDTH, np.float32)} if stateful else None
    loop = TrainLoop(
        with_state if stateful else loss, params(), batches(rows, 0), key=seed, engine=engine, target=SMALL,
        model_state=state, **options,
    )  # fmt: skip
    for step in range(2):
        inputs, key = loop.next_step(batches(rows, step))
        every = by_hand(loop, inputs, key)
        for other in every[1:]:  # the copies of the state are equal bit for bit, and so is the loss
            for a, b in zip(every[0], other, strict=True):
                lp.testing.assert_same_bits(a, b)
        got = loop.train(batches(rows, step))
        wanted = dict(zip(loop.state.leaves, every[0], strict=False))
        lp.testing.assert_same_bits(np.float32(got), np.float32(every[0][loop.block.carried]))
        for name, leaf in loop.state.leaves.items():
            lp.testing.assert_same_bits(leaf, wanted[name])


def test_replicas_draw_bits_of_their_own_before_they_meet() -> None:
    # Every replica has the same rows. With their own masks they have other losses than one alone has.
    x, y = batches(ROWS, 0)
    same = np.concatenate([x] * 4), np.concatenate([y] * 4)
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp32.32", engine="direct", key=5)
    four, one = TrainLoop(loss, params(), same, replicas=4, **kept), TrainLoop(loss, params(), (x, y), **kept)
    assert four.train(same) != one.train((x, y))
    plain = lambda p, b: nn.softmax_cross_entropy(nn.relu(b[0] @ p["w"] + p["b"]) @ p["v"], b[1])  # noqa: E731
    four, one = TrainLoop(plain, params(), same, replicas=4, **kept), TrainLoop(plain, params(), (x, y), **kept)
    for _ in range(3):  # without masks all is exact: a sum of four equal numbers over four
        assert four.train(same) == one.train((x, y))
    lp.testing.assert_same_bits(four.params["w"], one.params["w"])


def test_a_step_that_one_replica_skips_is_skipped_by_all() -> None:
    loop = TrainLoop(
        loss, params(), batches(16, 0), optimizer=Sgd(0.1), precision="fp16.16/nearest", loss_scale=1024.0, replicas=4,
        engine="direct",
    )  # fmt: skip
    before = loop.arrays()
    x, y = batches(16, 1)
    x[13] = 3e4  # a row of the last replica
    loop.train((x, y))
    assert [each.step for each in loop.skipped] == [0]
    for name, array in loop.arrays().items():
        lp.testing.assert_same_bits(array, before[name])
    loop.train(batches(16, 2))
    assert len(loop.skipped) == 1


@pytest.mark.parametrize("precision", ["fp16.16/nearest", "fp32.32"])
def test_what_saturates_on_the_wire_is_no_gradient(precision: str) -> None:
    # Sums of gradients near 1,000 are no numbers of E4M3, but of halves and float32: what arrives there is 448.
    mean = lambda p, x: nn.mean(x @ p["w"])  # noqa: E731
    x = np.ones((16, 8), np.float32)
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision=precision, replicas=4, engine="direct")
    for scale, skipped in ((4096.0, 1), (1024.0, 0)):
        loop = TrainLoop(
            mean, {"w": np.zeros((8, 4), np.float32)}, x, loss_scale=scale, collective=Collective(wire="e4m3"), **kept
        )
        loop.train(x)
        assert len(loop.skipped) == skipped
        plain = TrainLoop(mean, {"w": np.zeros((8, 4), np.float32)}, x, loss_scale=scale, **kept)
        plain.train(x)
        assert not plain.skipped


def test_the_models_state_is_the_first_replicas() -> None:
    x, y = batches(8, 0)
    loop = TrainLoop(
        with_state, params(), (x, y), optimizer=Sgd(0.1), precision="fp32.32", engine="direct", replicas=2,
        model_state={"mean": np.zeros(WIDTH, np.float32)},
    )  # fmt: skip
    loop.train((x, y))
    np.testing.assert_allclose(loop.model_state["mean"], 0.25 * x[:4].mean(0), rtol=1e-6)


@pytest.mark.parametrize("scale", [None, 64.0])
def test_delayed_scales_are_those_of_the_largest_that_any_had(scale: float | None) -> None:
    loop = TrainLoop(
        loss, params(), batches(16, 0), optimizer=Sgd(0.1), precision="fp8/delayed", replicas=4, engine="direct",
        loss_scale=scale, micro_batches=2,
    )  # fmt: skip
    for step in range(2):
        x, y = batches(16, step)
        x[-1] *= 50  # of the last replica
        inputs, key = loop.next_step((x, y))
        every = by_hand(loop, inputs, key)
        loop.train((x, y))
        for position, leaf in enumerate(loop.state.leaves.values()):
            for outputs in every:
                lp.testing.assert_same_bits(outputs[position], leaf)
    assert float(loop.arrays()["scaling.amax_history"].max()) > 50


def test_the_bits_of_a_format_on_the_wire() -> None:
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp32.32", engine="direct", replicas=8)
    runs = {}
    for name, how in {"own": None, "float32": Collective(), "halves": Collective(wire="float16")}.items():
        runs[name] = TrainLoop(loss, params(), batches(32, 0), collective=how, **kept)
        runs[name].run(lambda step: batches(32, step), 3)
    lp.testing.assert_same_bits(runs["own"].params["w"], runs["float32"].params["w"])
    assert (runs["own"].params["w"] != runs["halves"].params["w"]).any()


def test_a_checkpoint_goes_on_with_as_many_replicas_alone(tmp_path: Path) -> None:
    def loop(replicas: int) -> TrainLoop:
        return TrainLoop(
            loss, params(), batches(16, 0), optimizer=Adam(0.01), precision="fp16.16/stochastic", replicas=replicas,
            engine="direct", key=3,
        )  # fmt: skip

    first = loop(4)
    first.run(lambda step: batches(16, step), 4)
    first.save(tmp_path / "run.npz")
    again = loop(4)
    again.load(tmp_path / "run.npz")
    first.run(lambda step: batches(16, step), 2)
    again.run(lambda step: batches(16, step), 2)
    lp.testing.assert_same_bits(first.params["w"], again.params["w"])
    with pytest.raises(ValueError, match="is of a run with replicas 4, this one has 2"):
        loop(2).load(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="is of a run with replicas 4, this one has 1"):
        loop(1).load(tmp_path / "run.npz")


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "replicas must be an integer of at least 1, not 0", {"replicas": 0}),
        (TypeError, "replicas must be an integer, not 2.0", {"replicas": 2.0}),
        (TypeError, "micro_batches must be an integer, not 1.5", {"micro_batches": 1.5}),
        (TypeError, "steps_per_call must be an integer, not True", {"steps_per_call": True}),
        (ValueError, "16 rows cannot be cut into 3 equal replicas", {"replicas": 3}),
        (ValueError, "cut into 8 equal replicas of 4 equal micro-batches", {"replicas": 8, "micro_batches": 4}),
        (ValueError, "collective= would do nothing", {"collective": Collective()}),
        (TypeError, "must be a lowprec.Collective, not 'ring'", {"replicas": 2, "collective": "ring"}),
        (ValueError, "groups of 3 do not divide 4", {"replicas": 4, "collective": Collective("two_level", group=3)}),
        (ValueError, "random='hardware' runs every vertex", {"replicas": 2, "random": "hardware",
                                                            "precision": "fp16.16/stochastic"}),
        (ValueError, "engine='direct'", {"replicas": 2, "control": FloatingPointControl(oflo=True)}),
        (ValueError, "bow-pod16 has 16 chips for 1 replica: replicas=16, or System", {"target": "bow-pod16"}),
        (ValueError, "bow-pod16 has 16 chips for 4 replicas", {"target": System("bow-pod16"), "replicas": 4}),
        (ValueError, "are not the target, gc200", {"target": "gc200", "system": System("bow-pod16"), "replicas": 16}),
        (TypeError, "system must be a System", {"system": "bow-pod16"}),
        (ValueError, "no part of the state that can be in shards is called 'optimzer",
         {"replicas": 2, "sharded": "optimzer.*", "engine": "direct"}),
        (ValueError, "a tree leaves no replica a shard",
         {"replicas": 2, "sharded": "params.*", "collective": Collective("tree")}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_refusals(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    given_options: dict[str, Any] = {"optimizer": Sgd(0.1), "precision": "fp32.32", **options}
    with pytest.raises(error, match=message):
        TrainLoop(loss, params(), batches(16, 0), **given_options)


def test_arrays_of_other_lengths_are_not_shared_out() -> None:
    # A table of as many entries as there are replicas would go to them one by one.
    table = np.arange(4, dtype=np.float32)
    given_loss = lambda p, b: nn.mean(b[0] @ p["w"]) * b[1].sum()  # noqa: E731
    for options in ({"replicas": 4}, {"micro_batches": 4}):
        with pytest.raises(ValueError, match=r"arrays of 4 and 16 rows cannot be cut into 4 .*: what all parts read"):
            TrainLoop(
                given_loss, params(), (batches(16, 0)[0], table), optimizer=Sgd(0.1), precision="fp32.32", **options
            )


def test_transfers_pass_beside_the_update_of_replicas() -> None:
    kept: dict[str, Any] = dict(optimizer=Adam(0.01), precision="fp32.32", replicas=4, target="m2000")
    over = TrainLoop(loss, params(), batches(16, 0), streamed="optimizer.*", overlap=True, **kept)
    plain = TrainLoop(loss, params(), batches(16, 0), **kept)
    assert over.train(batches(16, 0)) == plain.train(batches(16, 0))


def test_a_system_alone_says_its_chips() -> None:
    made = TrainLoop(
        loss, params(), batches(16, 0), optimizer=Sgd(0.1), precision="fp32.32", replicas=4, system=System("bow-2000")
    )
    assert made.target.name == "bow"
    typed = TrainLoop(
        loss, params(), batches(16, 0), optimizer=Sgd(0.1), precision="fp32.32", replicas=2, target="bow-pod64/chips=2"
    )
    assert typed.execution.system == System("bow-pod64", chips=2)
    with pytest.raises(ValueError, match="the chips of the system bow-pod16 are not the target, gc200"):
        Execution(target="gc200/tiles=1472", system=System("bow-pod16"))


def test_blame_and_diverge_say_what_they_take() -> None:
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp16.16/nearest", engine="direct")
    four, two = (TrainLoop(loss, params(), batches(16, 0), replicas=count, **kept) for count in (4, 2))
    with pytest.raises(ValueError, match="the loop has 4 replicas of it: give one with replicas=1"):
        blame(four, [batches(16, i) for i in range(8)], 8)
    with pytest.raises(ValueError, match="of 4 and 2 replicas"):
        diverge(four, two, [batches(16, 0)])


def test_the_host_adds_the_losses_up() -> None:
    loop = TrainLoop(loss, params(), batches(64, 0), optimizer=Sgd(0.1), precision="fp32.32", replicas=16,
                     target="bow-pod16")  # fmt: skip
    assert loop.profile is not None
    (own,) = [step for step in loop.profile.steps if step.name.startswith("forward.all_reduce")]
    assert own.cycles == loop.target.sync_cycles


def test_a_number_that_no_machine_has_is_said() -> None:
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    with pytest.warns(Unvalidated, match="3 replicas are no power of two"):
        TrainLoop(loss, params(), batches(12, 0), replicas=3, **kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainLoop(loss, params(), batches(16, 0), replicas=4, **kept)


def test_what_was_recorded_before_there_were_replicas_is_the_same_training() -> None:
    plain = Training(optimizer=Sgd(0.1), precision="fp32.32")
    assert not {"replicas", "collective"} & set(plain.record())
    four = dataclasses.replace(plain, replicas=4)
    wire = dataclasses.replace(four, collective=Collective(wire="float16"))
    assert len({each.digest() for each in (plain, four, wire)}) == 3
    assert str(wire).endswith("4 replicas; gradients by ring from chip 0, float16, nearest_even")


def test_meetings_are_outside_of_loops_and_once() -> None:
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    loop = TrainLoop(loss, params(), batches(16, 0), replicas=4, **kept)
    block = loop.block
    places = [equation.op in MEET for equation in around_meetings(block).equations]
    first = places.index(True)
    assert all(places[first : first + sum(places)])
    # without the meeting of the loss every replica would say another one
    rest = tuple(e for e in block.equations if not (e.op == "all_reduce" and e.family == "loss"))
    meets = next(e for e in block.equations if e.op == "all_reduce" and e.family == "loss")
    forgot = [dataclasses.replace(e, inputs=tuple(meets.operands[0] if x is meets.output else x for x in e.inputs))
              for e in rest]  # fmt: skip
    with pytest.raises(InvalidBlock, match="which every replica has of its own"):
        around_meetings(dataclasses.replace(block, equations=tuple(forgot)))
    assert len(equations_of(block)) > len(rest) > 0


def test_the_account_has_links_and_a_system_decides_no_bit() -> None:
    rows = 16 * ROWS
    kept: dict[str, Any] = dict(optimizer=Sgd(0.1), precision="fp16.16/nearest", replicas=16)
    pod = TrainLoop(loss, params(), batches(rows, 0), target="bow-pod16", **kept)
    slow = System("bow-pod16", link_latency=1e-6)
    slower = TrainLoop(loss, params(), batches(rows, 0), target=slow, **kept)
    alone = TrainLoop(loss, params(), batches(ROWS, 0), target="bow", optimizer=Sgd(0.1), precision="fp16.16/nearest")
    assert pod.profile is not None
    assert slower.profile is not None
    assert alone.profile is not None
    links = [step for step in pod.profile.steps if step.kind == "links"]
    assert links
    assert pod.profile.cycles > alone.profile.cycles + sum(step.cycles for step in links) // 2
    assert slower.profile.cycles > pod.profile.cycles
    for _ in range(2):
        assert pod.train(batches(rows, 1)) == slower.train(batches(rows, 1))
    assert "16 chips of bow-pod16" in str(pod.execution)


RUN = """
import sys
from ipu_core import Checkpoint
from tests.ipu_core.train.test_replicas import *
path, seconds = Path(sys.argv[1]), float(sys.argv[2])
made = shared_out()
if path.exists():
    made.load(path)
begun = made.step
print(begun, flush=True)

def die_soon(made, loss):
    if seconds and made.step == begun + 5:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends a process at once, as SIGKILL does

made.run(lambda i: batches(16, i), STEPS - made.step, callbacks=[die_soon, Checkpoint(path, every=1)])
print(bits(made))
"""


def shared_out() -> TrainLoop:
    """Four replicas, each with shards of the moments, that round stochastically."""
    return TrainLoop(
        loss, params(), batches(16, 0), optimizer=Adam(0.01), precision="fp16.16/stochastic", loss_scale="automatic",
        replicas=4, micro_batches=2, collective=Collective(wire="float16", rounding="stochastic"), target="m2000",
        sharded="optimizer.*", key=9,
    )  # fmt: skip


def bits(made: TrainLoop) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in made.arrays().values())).hexdigest()


STEPS = 2000


@pytest.mark.parametrize("deaths", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_runs_end_in_the_same_bits(deaths: int, tmp_path: Path) -> None:
    whole = shared_out()
    whole.run(lambda i: batches(16, i), STEPS)
    last = -1
    for seconds in (*(0.003 + 0.001 * number for number in range(deaths)), 0.0):
        run = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path / "run.npz"), str(seconds)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == (-signal.SIGPROF if seconds else 0)
        begun, *end = run.stdout.split()
        assert last < int(begun) < STEPS  # each goes on behind the one before
        last = int(begun)
    assert end == [bits(whole)]


class WithScores:
    """A loss whose state has the scores of the last step for the host."""

    for_host = ("scores",)

    def __call__(self, p: Any, state: Any, batch: Any) -> Any:
        x, y = batch
        scores = x @ p["w"]
        return nn.softmax_cross_entropy(scores, y), {"mean": nn.mean(x, 0), "scores": [scores]}


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_the_host_reads_from_every_replica_also_what_a_skipped_step_made(replicas: int, engine: str) -> None:
    rows = 2 * replicas
    loop = TrainLoop(
        WithScores(), {"w": params()["w"]}, batches(rows, 0), optimizer=Sgd(0.1), precision="fp16.16/nearest",
        loss_scale=1024.0, engine=engine, replicas=replicas,
        model_state={"mean": np.zeros(WIDTH, np.float32), "scores": [np.zeros((2, 8), np.float32)]},
    )  # fmt: skip
    loops = [loop, pickle.loads(pickle.dumps(loop))]
    for step, factor in enumerate((1.0, 1e4, 1.0)):
        x, y = batches(rows, step)
        batch, weights = (np.float32(factor) * x, y), loop.params["w"]
        for each in loops:
            each.train(batch)
        (scores,) = loop.for_host or ()
        assert scores.shape == (replicas, 2, 8)
        expected = (batch[0] @ weights.astype(np.float32)).reshape(scores.shape)
        np.testing.assert_allclose(scores, expected, rtol=0.01, atol=0.01 * factor)
        lp.testing.assert_same_bits(scores, (loops[1].for_host or [])[0])
    assert [each.step for each in loop.skipped] == [1]
    np.testing.assert_allclose(loop.model_state["scores"][0], scores[0], rtol=1e-3)
    np.testing.assert_allclose(loop.model_state["mean"], batch[0][:2].mean(0), rtol=0.01, atol=1e-3)


def test_whoever_runs_the_step_the_host_reads_in_one_place() -> None:
    def loop() -> TrainLoop:
        return TrainLoop(
            WithScores(), {"w": params()["w"]}, batches(4, 0), optimizer=Sgd(0.1), precision="fp32.32",
            engine="direct", replicas=2,
            model_state={"mean": np.zeros(WIDTH, np.float32), "scores": [np.zeros((2, 8), np.float32)]},
        )  # fmt: skip

    plain, slow = loop(), loop()
    plain.run(lambda step: batches(4, step), 2)
    slow.train(batches(4, 0))
    with lp.testing.backend("reference"):  # another executable, of the same state, which knows no pipelines
        slow.train(batches(4, 1))
    lp.testing.assert_same_bits((plain.for_host or [])[0], (slow.for_host or [])[0])
