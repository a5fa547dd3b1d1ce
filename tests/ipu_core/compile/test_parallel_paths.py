"""Independent sums of unlike sizes that run at once: fewer cycles on tiles of their own, the same bits, no race."""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core.chip.target import Target
from ipu_core.compile.bill import Bill, bill
from ipu_core.compile.lowering import lower
from ipu_core.compile.lowering.lower import Lowered
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import plan
from ipu_core.compile.schedule import supersteps
from ipu_core.compile.schedule.paths import room_for_paths
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.compile.schedule.supersteps import shared
from ipu_core.engine.profile import Profile
from ipu_core.engine.steps import StepAccount
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import equations_of, outputs_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.passes.recompute import recompute
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.matmul import Placement, SumPlan
from ipu_core.placement.matmul.account import account
from ipu_core.placement.supersteps import beside
from ipu_core.study.models.catalogue import load, problem
from ipu_core.study.settings import Settings
from ipu_core.train.execution import Execution
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.step import step_block
from tests.examples import examples

FEW = Target("gc200", tiles=48)
Towers = tuple[tuple[int, ...], ...]
UNO: Towers = ((942, 1000, 1000, 1000), (4392, 1000, 1000, 1000))


def initial(towers: Towers, top: tuple[int, ...]) -> Any:
    """Parameters of towers whose last layers go side by side into those above, the last of one output."""
    rng = np.random.default_rng(0)

    def dense(widths: tuple[int, ...]) -> Any:
        return [
            {"weight": (rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32), "bias": np.zeros(n, np.float32)}
            for m, n in itertools.pairwise(widths)
        ]

    above = (sum(widths[-1] for widths in towers), *top, 1)
    return {"towers": [dense(widths) for widths in towers], "top": dense(above)}


def loss(params: Any, batch: Any) -> Any:
    """Mean squared error; the batch is an input of each tower, and what is to be said of them."""
    *inputs, wanted = batch

    def through(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = np.maximum(x @ layer["weight"] + layer["bias"], 0)
        return x

    made = [through(layers, x) for layers, x in zip(params["towers"], inputs, strict=True)]
    *top, last = params["top"]
    x = through(top, np.concatenate(made, axis=1))
    return np.mean((x @ last["weight"] + last["bias"] - wanted) ** 2)


def rows(towers: Towers, count: int) -> Any:
    rng = np.random.default_rng(1)
    return tuple(rng.normal(size=(count, width)).astype(np.float32) for width in (*(t[0] for t in towers), 1))


def step(towers: Towers, top: tuple[int, ...], count: int, precision: str, optimizer: Any, target: Target) -> Block:
    made = step_block(loss, optimizer, initial(towers, top), rows(towers, count))
    return scheduled(Precision.parse(precision).apply(made), target)


def profile(lowered: Lowered) -> Profile:
    return Machine(lowered).profile


@pytest.fixture(scope="module")
def uno() -> tuple[Lowered, Lowered]:
    """A training step of UNO's towers on a whole chip, its sums of unlike sizes one after another, and at once."""
    target = Target("gc200")
    block = step(UNO, (1000, 1000), 32, "fp16.16/stochastic", Sgd(0.1), target)
    planned = plan(block, target)
    return lower(block, planned, share=True), lower(block, planned, share=True, parallel=True)


def test_unos_towers_take_fewer_cycles_beside_each_other(uno: tuple[Lowered, Lowered]) -> None:
    one_by_one, beside_each_other = (profile(each) for each in uno)
    # The host takes as long in both.
    both = one_by_one, beside_each_other
    cycles = [sum(step.cycles for step in each.steps if step.kind != "stream") for each in both]
    print(f"\nUNO's towers, batch 32: {cycles[0]:,} cycles, on parallel paths {cycles[1]:,}")
    assert cycles[1] < 0.85 * cycles[0]
    assert beside_each_other.compute_cycles < one_by_one.compute_cycles
    assert beside_each_other.exchange_cycles < one_by_one.exchange_cycles
    assert beside_each_other.sync_cycles < 0.7 * one_by_one.sync_cycles
    assert beside_each_other.memory.peak_bytes < Target("gc200").tile_memory / 4
    assert beside_each_other.memory.always_bytes < 1.1 * one_by_one.memory.always_bytes


def test_the_profile_says_what_ran_at_once_and_the_plan_where(uno: tuple[Lowered, Lowered]) -> None:
    lowered = uno[1]
    together = [step.operations for step in profile(lowered).steps if len(step.operations) > 1]
    number = {name: number for number, name in lowered.plan.names.items()}
    for layer in range(3):  # the towers are called by their places: genes, then drugs
        both = [f"towers.{tower}.{layer}.weight.forward.dot" for tower in (0, 1)]
        [met] = [names for names in together if all(any(n.startswith(one) for n in names) for one in both)
                 and not any("sum parts" in name for name in names)]  # fmt: skip
        tiles = []
        for one in both:
            found = lowered.plan.sums[number[next(name for name in met if name.startswith(one))]]
            assert isinstance(found, SumPlan)
            tiles.append({found.placement.first + tile for tile in range(found.geometry.tiles)})
        if layer:  # of the first layers one fills the chip alone: they share a barrier
            assert not tiles[0] & tiles[1]


def test_orders_of_sums_stay_and_so_does_what_is_not_placed_anew(uno: tuple[Lowered, Lowered]) -> None:
    before, after = (lowered.plan for lowered in uno)
    assert after.accumulations == before.accumulations
    assert after.digests() == before.digests()
    moved = {number for number in after.sums if after.sums[number] is not before.sums[number]}
    assert 10 < len(moved) < len(after.sums)
    joined = {number for group in shared(uno[0].block, before, parallel=True).fused for number in group}
    assert moved <= joined


def test_a_superstep_takes_the_time_of_its_slowest_tile(uno: tuple[Lowered, Lowered]) -> None:
    """As the sums would take, each alone in its new place: no tile's work is lost or counted twice."""
    lowered = uno[1]
    apart: dict[str, list[StepAccount]] = {}
    for step in profile(lower(uno[0].block, lowered.plan, share=False)).steps:
        apart.setdefault(step.name, []).append(step.account)
    seen = 0
    for step in profile(lowered).steps:
        accounts = [apart[name].pop(0) for name in step.operations]  # stages of one sum have one name
        if len(accounts) > 1:
            np.testing.assert_array_equal(step.account.compute, sum(each.compute for each in accounts))
            assert step.account.exchange_cycles <= sum(each.exchange_cycles for each in accounts)
            assert step.account.vertices == sum(each.vertices for each in accounts)
            seen += 1
    assert seen > 15
    assert not any(apart.values())


def test_the_account_of_the_plan_is_that_of_the_engine(uno: tuple[Lowered, Lowered]) -> None:
    """Where the sums read values of their own, so that nothing comes once for two of them."""
    lowered = uno[1]
    number = {name: number for number, name in lowered.plan.names.items()}
    steps, seen = profile(lowered).steps, 0
    for place, step in enumerate(steps):
        plans = [lowered.plan.sums[number[name]] for name in step.operations if name in number]
        names = {name.rpartition(".weight")[0] for name in step.operations}
        if len(plans) == len(step.operations) == len(names) == 2:
            accounts = [
                account(PlacementProblem(each.target, each.product, each.accumulation), each.geometry)
                for each in plans if isinstance(each, SumPlan)
            ]  # fmt: skip
            count = max(len(each.sets) for each in accounts)
            assert sum(each.cycles for each in steps[place : place + count]) == beside(accounts)
            seen += 1
    assert seen >= 4


LAYERS = st.lists(st.integers(1, 40), min_size=2, max_size=4).map(tuple)


@examples(quick=8, slow=150)
@given(
    st.lists(LAYERS, min_size=2, max_size=3).map(tuple),
    st.lists(st.integers(1, 30), max_size=1).map(tuple),
    st.sampled_from([1, 4, 7]),
    st.sampled_from(["fp16.16/stochastic", "fp32.32", "fp16.32/nearest"]),
    st.sampled_from([8, 48, 49]),
    st.sampled_from([Sgd(0.1), Adam(0.01)]),
)
def test_the_bits_are_the_same(
    towers: Towers, top: tuple[int, ...], count: int, precision: str, tiles: int, optimizer: Any
) -> None:
    """On vertices, with and without, and on whole arrays; and it never takes longer."""
    target = Target("gc200", tiles=tiles)
    block = step(towers, top, count, precision, optimizer, target)
    planned = plan(block, target)
    machines = [Machine(lower(block, planned, share=True, parallel=parallel)) for parallel in (False, True)]
    rng = np.random.default_rng(0)
    given = [rng.uniform(0.01, 1, var.type.shape).astype(var.type.format.dtype) for var in block.inputs]  # type: ignore[union-attr]
    runners = (*machines, Executable(block, planned.accumulations))
    for first, *others in zip(*(runner.run(given, 7) for runner in runners), strict=True):
        assert {first.tobytes()} == {other.tobytes() for other in others}
    plain, parallel = (machine.profile for machine in machines)
    assert parallel.cycles <= plain.cycles
    assert parallel.memory.peak_bytes <= target.tile_memory


def test_what_runs_at_once_needs_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supersteps, "room_for_paths", lambda *_: 1 << 30)  # memory keeps nothing apart
    block = streaming(
        step(((9, 24, 8), (30, 16, 20)), (8,), 4, "fp16.16/stochastic", Adam(0.1), FEW), ["params.towers.0.*"]
    )
    planned = plan(block, FEW)
    new, together, sums = shared(block, planned, parallel=True)
    views, by_number = lifetimes(new).views, {e.number: e for e in equations_of(new)}
    place = {number: i for i, number in enumerate(by_number)}
    far = {views[var].root for i in block.streamed for var in (block.inputs[i], outputs_of(block)[i])}
    unlike = 0
    for group in together:
        equations = [by_number[number] for number in group]
        made, read = {e.output for e in equations}, {views[v].root for e in equations for v in e.operands}
        assert not made & read
        assert not (made | read) & far
        inside = [e for e in equations_of(new)[place[group[0]] : place[group[-1]] + 1] if e.number not in group]
        assert all(views[e.output].root is not e.output for e in inside)
        sizes = {(e.op, tuple(v.type.shape for v in e.operands)) for e in equations if e.number in planned.sums}
        unlike += len(sizes) > 1
    assert unlike >= 3
    assert sums.keys() <= {number for group in together for number in group}


def two_products() -> tuple[Block, list[Any]]:
    arrays = [np.ones(shape, np.float32) for shape in ((8, 32), (32, 64), (8, 64), (64, 48))]
    return trace(lambda a, b, c, d: (a @ b, c @ d), *arrays), arrays


def test_a_place_that_was_given_stays() -> None:
    block, _ = two_products()
    first, second = (e.number for e in block.equations)
    mine = Placement(2, 2)
    planned = plan(block, FEW, placements={first: mine})
    assert planned.pinned == {first}
    lowered = lower(block, planned, share=True, parallel=True)
    assert lowered.plan.placements == planned.placements
    free = lower(block, plan(block, FEW), share=True, parallel=True).plan.placements
    assert free[first].first != free[second].first  # type: ignore[union-attr]


def test_unlike_sums_run_alone_where_nobody_asks() -> None:
    block, _ = two_products()
    assert shared(block, plan(block, FEW)) == (block, (), {})
    with pytest.raises(TypeError, match="parallel must be True or False"):
        lower(block, plan(block, FEW), share=True, parallel=1)  # type: ignore[arg-type]


def test_more_memory_is_used_only_where_most_of_it_is_empty() -> None:
    size, (block, _) = FEW.tile_memory, two_products()
    assert room_for_paths(block, FEW, 0) == size // 8
    assert room_for_paths(block, FEW, size // 4) == size // 4 + size // 16
    assert room_for_paths(block, FEW, size // 2 - 8) == size // 2
    assert room_for_paths(block, FEW, size // 2 + 8) == 0
    block = step(((60, 80, 70), (90, 70, 80)), (60,), 24, "fp32.32", Sgd(0.1), FEW)
    assert room_for_paths(streaming(block, ["params.*"]), FEW, 4096) == 0
    assert room_for_paths(recompute(block), FEW, 4096) == 0
    first = block.equations[0]
    again = replace(
        block, equations=(*block.equations, replace(first, number=1000, outputs=(Var("x", first.output.type),)))
    )
    assert (first.role, room_for_paths(again, FEW, 4096)) == ("forward", 0)
    roomy, full = (Target("gc200", tiles=48, tile_memory=memory) for memory in (size, 24_000))
    peaks = [profile(lower(block, plan(block, target), share=True, parallel=parallel)).memory.peak_bytes
             for target, parallel in ((roomy, False), (roomy, True), (full, False), (full, True))]  # fmt: skip
    assert peaks[0] < peaks[1] < size / 8
    assert peaks[3] <= 1.01 * peaks[2]  # values need no more; vertices of other cuts have other numbers in their state


def test_what_fits_one_after_another_still_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the estimate is far too low; and what does not fit is told so as before."""
    monkeypatch.setattr(supersteps, "room_for_paths", lambda *_: 1 << 30)
    block = step(((60, 80, 70), (90, 70, 80)), (60,), 24, "fp32.32", Sgd(0.1), FEW)
    needed = bill(block, FEW, share=True).done.memory.peak_bytes
    just, less = (replace(FEW, tile_memory=memory) for memory in (needed, needed * 3 // 4))
    with pytest.raises(OutOfTileMemory):
        Machine(lower(block, plan(block, just), share=True, parallel=True))
    plain = bill(block, just, share=True).done
    for build in (bill, Machine.build):
        made = build(block, just, share=True, parallel=True)
        found = made.done if isinstance(made, Bill) else made.profile
        assert (found.cycles, found.memory.peak_bytes) == (plain.cycles, needed)
        with pytest.raises(OutOfTileMemory) as refused:
            build(block, less, share=True, parallel=True)
        with pytest.raises(OutOfTileMemory) as as_before:
            build(block, less, share=True)
        assert str(refused.value) == str(as_before.value)


def test_a_loop_runs_paths_beside_each_other_unless_it_is_told_not_to() -> None:
    towers: Towers = ((9, 24, 8), (30, 16, 20))
    made = [
        TrainLoop(loss, initial(towers, (8,)), rows(towers, 4), optimizer=Adam(0.1), precision="fp16.16/stochastic",
                  target=FEW, engine=engine, parallel=parallel)
        for engine, parallel in (("tiles", True), ("tiles", False), ("direct", True))
    ]  # fmt: skip
    losses = [loop.run([rows(towers, 4)] * 3, 3).tolist() for loop in made]
    assert losses[0] == losses[1] == losses[2]
    assert made[0].profile.cycles < made[1].profile.cycles  # type: ignore[union-attr]
    assert "sums of unlike sizes one after another" in str(Execution(parallel=False))
    assert "unlike" not in str(Execution())


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_the_tiles_own_generators_draw_what_they_drew() -> None:
    """Their bits are the placement's: nothing shares there, so nothing changes."""
    towers: Towers = ((9, 24, 8), (30, 16, 20))
    make = partial(
        TrainLoop, loss, initial(towers, (8,)), rows(towers, 4), optimizer=Sgd(0.1), precision="fp16.16/stochastic",
        target=FEW, random="hardware",
    )  # fmt: skip
    one, other = make(parallel=True), make(parallel=False)
    assert one.run([rows(towers, 4)] * 2, 2).tolist() == other.run([rows(towers, 4)] * 2, 2).tolist()
    assert one.profile is not None
    assert other.profile is not None
    assert one.profile.cycles == other.profile.cycles
    assert not any(step.account.joined for step in one.profile.steps)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp"},
        {"model": "cnn", "layers": (64, 8, 10)},
        pytest.param({"model": "cnn", "optimizer": "adam"}, marks=pytest.mark.slow),
        pytest.param({"model": "resnet"}, marks=pytest.mark.slow),
        pytest.param({"model": "mlp", "optimizer": "lamb", "micro_batches": 2}, marks=pytest.mark.slow),
        pytest.param({"model": "lm"}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
@pytest.mark.parametrize("precision", ["fp16.16/stochastic", pytest.param("fp32.32", marks=pytest.mark.slow)])
def test_no_model_of_the_study_takes_longer(settings: dict[str, Any], precision: str) -> None:
    chosen = Settings(**settings)
    what = problem(chosen, load(chosen))
    state = {} if what.state is None else {"model_state": what.initial_state(0)}
    cycles = [
        TrainLoop(what.loss, what.params(0), what.batches(0)(0), optimizer=chosen.training().optimizer,
                  micro_batches=chosen.micro_batches, precision=precision, parallel=parallel, **state).profile.cycles  # type: ignore[union-attr,arg-type]
        for parallel in (False, True)
    ]  # fmt: skip
    print(f"\n{settings} {precision}: {cycles[0]:,} cycles, on parallel paths {cycles[1]:,}")
    assert cycles[1] < cycles[0]
