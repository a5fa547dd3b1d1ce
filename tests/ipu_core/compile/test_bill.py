"""A bill is what a Machine of the same Block accounts, without storage; every way to lower a step, figure by figure."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipu_core import engine, nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.bill import bill
from ipu_core.compile.fitting import fitting, spare_for
from ipu_core.compile.machine import Machine, planned
from ipu_core.compile.planning import choose_accumulations
from ipu_core.engine import remembered
from ipu_core.errors import OutOfStreamingMemory, OutOfTileMemory
from ipu_core.graph import Execute, Overlap, RemoteLoad, Sequence
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.matmul import RESERVED
from ipu_core.placement.orders import OrderRule
from tests.ipu_core.compile.lowering.test_operations import CASES
from tests.ipu_core.engine.test_accountant import facts
from tests.ipu_core.ir.test_regions import step_of

TARGET = Target("gc200", tiles=7)


forget = remembered._kept.cache_clear
"""The next account is made anew."""


@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_billed_as_its_vertices(name: str) -> None:
    function, arguments = CASES[name]
    block, control = trace(function, *arguments), FloatingPointControl(esr=True)
    forget()
    wanted = Machine.build(block, TARGET, control=control).profile
    forget()
    assert facts(bill(block, TARGET, control=control).profile(None)) == facts(wanted)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared": {"share": True},
    "streamed": {"streamed": ("params.*", "optimizer.*")},
    "overlapped": {"streamed": ("params.*", "optimizer.*"), "overlap": True, "share": True},
    "several steps": {"steps_per_call": 3, "share": True},
}


@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "fp32.32", "mlperf-bert"])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_billed_as_its_vertices_and_has_their_bits(
    way: str, branch: bool, rounds: int, precision: str
) -> None:
    """Before it runs, when its branch is taken and when it is not."""
    how = dict(WAYS[way])
    block, inputs = step_of(precision, rounds, branch=branch, streamed=how.pop("streamed", ()))
    orders = choose_accumulations(block, OrderRule.of(TARGET))
    machine, direct = Machine.build(block, TARGET, orders, **how), Executable(block, orders)
    forget()
    told = bill(block, TARGET, orders, **how)
    assert told.plan.words() == machine.plan.words()
    assert facts(told.profile(None)) == facts(machine.profile)
    cycles = set()
    for last in [inputs[-1], *([np.float32(np.inf)] if branch else [])]:
        given = [*inputs[:-1], last]
        for got, wanted in zip(machine.run(given, 5), direct.run(given, 5), strict=True):
            assert got.tobytes() == wanted.tobytes()
        assert direct.renewed == (last is inputs[-1])
        profile = told.profile(direct.renewed)
        assert facts(profile) == facts(machine.profile)
        assert profile.measured
        cycles.add(profile.cycles)
    assert len(cycles) == 1 + branch


def test_what_makes_a_bill_allocates_and_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    block, _ = step_of("fp16.16/stochastic", 2, branch=True)
    forget()
    for where, name in ((engine.engine, "aligned"), (engine.bind, "aligned"), (engine.bind, "bind_group")):
        monkeypatch.delattr(where, name)
    assert bill(block, TARGET).profile(None).cycles > 0


def test_a_bill_refuses_what_does_not_fit() -> None:
    block, _ = step_of("fp32.32", 1, branch=False, streamed=("params.*",))
    with pytest.raises(OutOfTileMemory):
        bill(block, Target("gc200", tiles=1, tile_memory=5000))
    with pytest.raises(OutOfStreamingMemory):
        bill(block, Target("gc200", tiles=7, streaming_memory=100))
    peak = bill(block, TARGET).profile(None).memory.peak_bytes
    bill(block, Target("gc200", tiles=7, tile_memory=peak))
    small = Target("gc200", tiles=7, tile_memory=peak // 2)
    with pytest.raises(OutOfTileMemory):
        bill(block, small)
    over = bill(block, small, allow_out_of_memory=True)
    assert small.tile_memory < over.profile(None).memory.peak_bytes == peak


def test_copies_share_a_bill_and_a_pickle_holds_it() -> None:
    block, _ = step_of("fp16.16/stochastic", 1, branch=True)
    made = bill(block, TARGET)
    assert copy.copy(made) is copy.deepcopy(made) is made
    again = pickle.loads(pickle.dumps(made))
    for renewed in (None, False, True):
        assert facts(again.profile(renewed)) == facts(made.profile(renewed))
    assert again.plan.words() == made.plan.words()


def test_transfers_pass_beside_whole_equations() -> None:
    block, _ = step_of("mlperf-bert", 1, branch=False, streamed=("params.*",))
    program = planned(block, TARGET, overlap=True).program
    assert isinstance(program, Sequence)
    (steps,) = program.steps
    assert isinstance(steps, Overlap)
    assert any(isinstance(step, RemoteLoad) for step in steps.steps)
    assert not any(isinstance(step, Execute) for step in steps.steps)


def test_where_products_had_too_much_under_way_they_take_less() -> None:
    """Room for products is an estimate: where code and vertices need more than was kept, it is planned anew."""
    asked = list[tuple[bool, int]]()

    def make(parallel: bool, spare: int) -> str:
        asked.append((parallel, spare))
        if spare < 300:
            raise OutOfTileMemory(0, 1300, 1000, {"code": 512, "vertex state": 40}, ())
        return "made"

    fits = SimpleNamespace(peak_bytes=1000, available=1000)
    assert fitting(make, parallel=True, memory=lambda _: fits) == "made"
    assert asked == [(True, 0), (False, 0), (False, 300)]

    def never(parallel: bool, spare: int) -> str:
        raise OutOfTileMemory(0, 1300 + spare, 1000, {}, ())

    with pytest.raises(OutOfTileMemory, match="needs 1,300 bytes"):  # of the first, which has the usual room
        fitting(never, parallel=False, memory=lambda _: fits)


def test_what_need_not_fit_is_billed_as_the_machine_that_is_built() -> None:
    block, _ = step_of("fp32.32", 1, branch=False)
    less = Target("gc200", tiles=7, tile_memory=bill(block, TARGET).done.memory.peak_bytes - 64)
    machine = Machine.build(block, less, allow_out_of_memory=True)
    assert facts(bill(block, less, allow_out_of_memory=True).done) == facts(machine.profile)


def test_products_that_leave_more_free_need_less_of_a_tile() -> None:
    x = np.ones((256, 256), np.float32)
    block, target = trace(nn.matmul, x, x), Target("gc200", tiles=8)
    usual, less = (planned(block, target, spare=spare) for spare in (0, 600_000))
    peaks = [Machine(one).profile.memory.peak_bytes for one in (usual, less)]
    assert peaks[1] < peaks[0]
    assert usual.plan.digests() == less.plan.digests()


def test_what_is_lacking_and_what_code_takes_more_is_left_free() -> None:
    assert spare_for(100, {}) == 100
    assert spare_for(100, {"code": RESERVED, "vertex state": 50}) == 100
    assert spare_for(100, {"code": RESERVED, "vertex state": 5000}) == 5000
