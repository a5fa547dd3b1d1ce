"""Stays and occupancy: as a count by hand says that follows every iteration, and a simulation of loads and stores."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import EquationSpan, RegionSpan, equations_of, outputs_of, regions_of, runs_of, steps_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes, until_chosen
from ipu_core.ir.liveness.stays import START, Stay, occupancy, phase, stays, stored
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.regions import Branch, Loop
from ipu_core.ir.trace.tracing import trace
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.optim import Adam, Lamb, Optimizer, Sgd
from ipu_core.train.step import step_block

SIZE = Size(width=8, layers=1, heads=2, context=4)
EVERYTHING = ["params.*", "optimizer.*_moment.*"]


def step(optimizer: Optimizer, precision: str = "fp16.16/stochastic", **more: Any) -> Block:
    """A step of a small language model."""
    text = np.zeros((4, SIZE.context), np.int32)
    loss = partial(lm.loss, SIZE.heads)
    return Precision.parse(precision).apply(
        step_block(loss, optimizer, lm.initial(lm.layout(SIZE), 0), (text, text), **more)
    )


STEPS: dict[str, Callable[[], Block]] = {
    "plain": lambda: step(Adam(0.1)),
    "rounds": lambda: step(Adam(0.1), micro_batches=2),
    "guarded rounds": lambda: guarded(step(Lamb(0.1), "mlperf-bert-pod16", scaled=True, micro_batches=4)),
    "streamed state": lambda: streaming(step(Lamb(0.1), "fp32.32"), EVERYTHING),
    "streamed in iterations, guarded": lambda: guarded(
        streaming(step(Adam(0.1), scaled=True, micro_batches=2), EVERYTHING)
    ),
    "streamed activations": lambda: streaming(step(Adam(0.1)), "blocks"),
}


@cache
def step_of(name: str) -> Block:
    return STEPS[name]()


def in_time(steps: Iterable[EquationSpan | RegionSpan]) -> Iterator[int | tuple[Loop, bool]]:
    """Positions as they run, each loop twice, and every loop where one of its iterations begins, or ends."""
    for each in steps:
        if isinstance(each, EquationSpan):
            yield from range(each.first, each.last)
            continue
        loop = each.equation.region
        if not isinstance(loop, Loop):
            yield from in_time(each.steps)
            continue
        for _ in range(2):
            yield loop, False
            yield from in_time(each.steps)
            yield loop, True


def root_of(block: Block) -> dict[Var, Var]:
    """By value, the one whose memory it shows, found from equation to equation."""
    roots = {var: var for var in lifetimes(block).views}
    for equation in equations_of(block):
        if lifetimes(block).views[equation.output].root is not equation.output:
            roots[equation.output] = roots[equation.operands[0]]
    return roots


def needed(block: Block) -> dict[Var, set[int]]:
    """By root, the equations while which it is needed: from the end of the step back to what makes it."""
    roots, equations = root_of(block), equations_of(block)
    found: dict[Var, set[int]] = {}
    now = {roots[var] for var in outputs_of(block)}
    for each in reversed([*in_time(steps_of(block))]):
        if isinstance(each, tuple):
            loop, ends = each
            now = now | {roots[new] for _, new in loop.carries} if ends else now - {part for _, part in loop.fed}
            continue
        equation = equations[each]
        now |= {roots[var] for var in equation.operands} | {roots[equation.output]}
        for var in now:
            found.setdefault(var, set()).add(each)
        if roots[equation.output] is equation.output:
            now.discard(equation.output)
    return found


@pytest.mark.parametrize("name", STEPS)
def test_what_an_equation_makes_stays_as_long_as_it_is_needed_and_no_longer(name: str) -> None:
    block = step_of(name)
    wanted, over, known = needed(block), in_place(block), lifetimes(block)
    far = known.roots(*(outputs_of(block)[i] for i in block.streamed)) | block.offloaded
    found = {stay.var: stay for stay in stays(block) if stay.maker is not None and stay.first != START}
    made = {e.output for e in equations_of(block) if root_of(block)[e.output] is e.output and e.output not in over}
    assert made <= found.keys()
    checked = 0
    for var in made - far:
        if known.readers[var] or var in outputs_of(block):  # not for a region alone
            last = min(found[var].last, len(equations_of(block)) - 1)
            assert set(range(found[var].first, last + 1)) == wanted[var]
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("name", STEPS)
def test_what_is_there_from_the_start_stays_while_it_is_needed(name: str) -> None:
    block = step_of(name)
    wanted, over = needed(block), in_place(block)
    there = {stay.var: stay for stay in stays(block) if stay.first == START}
    assert there.keys() >= {*block.constants, *(var for i, var in enumerate(block.inputs[: block.carried])
                                                if i not in block.streamed)}  # fmt: skip
    for loop, step in regions_of(block, Loop):
        for old, new in loop.carries:
            needs = wanted[old] | wanted[new] if over.get(new) is old else wanted[old] | {step.last - 1}
            assert there[old].last in (max(needs), len(equations_of(block)))
    for var, stay in there.items():
        assert stay.last >= max(wanted.get(var, {START}))
    assert not {stay.var for stay in stays(block) if stay.first == START} & over.keys()


def by_hand(block: Block, stay: Stay) -> set[Var]:
    """The values that lie where a stay is: what it holds, and what is written over that."""
    return {stay.var} | ({equations_of(block)[stay.maker].output} if stay.maker is not None else set())


@pytest.mark.parametrize("name", [name for name in STEPS if "streamed" in name])
def test_what_is_streamed_is_there_for_every_reader_and_loaded_once_for_each_part(name: str) -> None:
    block, roots = step_of(name), root_of(step_of(name))
    equations, outputs, loaded = equations_of(block), outputs_of(block), 0
    for var in [*(block.inputs[i] for i in sorted(block.streamed)), *block.offloaded]:
        times = [stay for stay in stays(block) if stay.var is var]
        reads = [
            p for p, e in enumerate(equations) if roots[e.output] is e.output and var in map(roots.get, e.operands)
        ]
        for stay in times:
            inside = [p for p in reads if stay.first <= p <= stay.last]
            assert [p for p in inside if p in stay.readers] == inside
            assert {roots[x] for p in stay.readers for x in equations[p].operands} & by_hand(block, stay)
            assert (stay.first in stay.readers) == stay.loaded
            assert stay.last >= max([stay.first, *stay.readers])
            assert len({phase(equations[p]) for p in inside}) <= 1
            loaded += stay.loaded
        assert sorted(p for stay in times for p in stay.readers if p in reads) == reads
        assert all(one.last < other.first for one, other in itertools.pairwise(times))
        kinds = [phase(equations[p]) for p in reads]
        own = [0] if var in block.offloaded else []
        cuts = sum(a != b for a, b in zip([*own, *kinds], kinds if own else kinds[1:], strict=False))
        assert sum(stay.loaded for stay in times) == cuts + (not own and bool(kinds))
    assert loaded > 10
    for number, store in stored(block).items():
        old, new = block.inputs[number], outputs[number]
        written = next(stay for stay in stays(block) if stay.maker is not None and roots[new] in by_hand(block, stay))
        after = [
            p
            for p, e in enumerate(equations)
            if roots[e.output] is e.output and roots[new] in map(roots.get, e.operands)
        ]
        assert written.last == max([store, *after])
        assert {*after} <= {*written.readers}
        assert store >= max([p for p, e in enumerate(equations) if old in map(roots.get, e.operands)])
        assert store >= lifetimes(block).made[new]


def test_what_is_streamed_and_made_apart_is_loaded_read_and_stored_then() -> None:
    x = np.ones((4, 4), np.float32)
    plain = trace(lambda s, x: (s @ x, (s * 2.0).sum()), x, x, carry=True)
    block = replace(plain, streamed=frozenset({0}))
    (old, given), (product, twice, total) = block.inputs, (e.output for e in block.equations)
    assert stays(block) == (
        Stay(old, 0, 1, [0, 1], None, loaded=True),
        Stay(given, START, 0),
        Stay(product, 0, 1, [], 0),  # while the old one is read it is not stored
        Stay(twice, 1, 2, [2], 1),
        Stay(total, 2, 3, [], 2),
    )
    assert stays(plain)[:3] == (Stay(old, START, 3), Stay(given, START, 0), Stay(product, 0, 3, [], 0))


@pytest.mark.parametrize("beside", [False, True])
def test_no_state_is_stored_before_it_is_known_whether_it_counts_but_beside_the_old(beside: bool) -> None:
    x, params, state = np.ones((4, 3), np.float32), {"w": np.ones((3, 3), np.float32)}, {"mean": np.ones(3, np.float32)}

    def loss(params: Any, state: Any, x: Any) -> Any:
        made = x @ params["w"]
        mean = state["mean"] * 0.9 + made.sum(axis=0)
        return (made * mean).sum(), {"mean": mean}

    typed = Precision.parse("fp32.32").apply(step_block(loss, Sgd(0.1), params, x, model_state=state, scaled=True))
    guard = guarded(streaming(typed, "*mean"))
    regions = [(e, e.region) for e in guard.equations]
    changed = [replace(e, region=replace(r, beside=beside)) if isinstance(r, Branch) else e for e, r in regions]
    block = replace(guard, equations=tuple(changed))
    known, ((branch, there),), (number,) = lifetimes(block), regions_of(block, Branch), block.streamed
    assert known.made[outputs_of(block)[number]] < there.first
    assert (stored(block)[number] < there.first) == beside
    assert (block.inputs[number] not in until_chosen(block)) == beside
    assert (known.last.get(known.views[branch.flag].root) == len(equations_of(block))) == beside


@pytest.mark.parametrize("name", STEPS)
def test_equations_between_two_places_and_the_span_of_a_value(name: str) -> None:
    block, known = step_of(name), lifetimes(step_of(name))
    roots, equations = root_of(block), equations_of(block)
    for run in runs_of(block):
        own = [p for p in range(run.first, run.last) if roots[equations[p].output] is equations[p].output]
        assert [*known.between(run.first, run.last)] == own
    for root, readers in known.readers.items():
        own = [p for p in known.computing if root in {roots[x] for x in equations[p].operands}]
        assert readers == own
    for position in known.computing:
        var = equations[position].output
        assert known.span(var) == (position, max([position, known.last.get(var, position)]))


spans = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99)), max_size=12)


@given(chosen=spans)
def test_at_every_place_live_those_whose_span_it_is_in(chosen: list[tuple[int, int, int]]) -> None:
    lives = [((min(one), max(one)), size) for *one, size in chosen]
    counted = occupancy([span for span, _ in lives], [size for _, size in lives], 10)
    assert counted.tolist() == [sum(n for (first, last), n in lives if first <= at <= last) for at in range(10)]
