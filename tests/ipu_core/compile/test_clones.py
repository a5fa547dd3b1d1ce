"""Programs of clones as one: run on the tiles, it makes the bits of each alone; its account counts what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import Adam, Clone, Clones, Engine, OutOfTileMemory, Sgd, Target, nn
from ipu_core.compile.clones import Joined, OnTiles, clones_bill, joined
from ipu_core.compile.machine import Machine
from ipu_core.engine.profile import Profile
from ipu_core.graph import program as p
from ipu_core.graph.streams import RemoteBuffer
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import regions_of
from ipu_core.ir.regions import Loop
from lowprec import Key
from tests.examples import examples

CHIP = Target("bow", tiles=48)
ROWS, WIDTH = 8, 6
rng = np.random.default_rng(3)
BATCH = {
    "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
    "labels": np.arange(ROWS, dtype=np.int32) % 3,
}
PARAMS = {
    "w": (0.4 * rng.normal(size=(WIDTH, WIDTH))).astype(np.float32),
    "b": np.zeros(WIDTH, np.float32),
    "head": (0.4 * rng.normal(size=(WIDTH, 3))).astype(np.float32),
}


def plain(p: Any, b: Any) -> Any:
    return nn.cross_entropy(nn.relu(b["x"] @ p["w"] + p["b"]) @ p["head"], b["labels"])


def recurrent(p: Any, b: Any) -> Any:
    steps = nn.reshape(b["x"], (1, ROWS, WIDTH))
    states = nn.scan(lambda h, _: (nn.tanh(h @ p["w"] + p["b"]),) * 2, steps[0], np.zeros((3, 1), np.float32))[1]
    return nn.cross_entropy(states[2] @ p["head"], b["labels"])


def dropped(p: Any, b: Any) -> Any:
    return nn.cross_entropy(nn.dropout(nn.gelu(b["x"] @ p["w"]), 0.3) @ p["head"], b["labels"])


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {"optimizer": Sgd(0.1), "precision": "fp32.32"}),
    "slower": (plain, {"optimizer": Sgd(0.01, momentum=0.9), "precision": "fp16.16/stochastic"}),
    "adam": (dropped, {"optimizer": Adam(0.01), "precision": "fp16.32/stochastic"}),
    "recurrent": (recurrent, {"optimizer": Sgd(0.1), "precision": "fp16.16/nearest"}),
    "cut": (plain, {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "micro_batches": 2}),
    "cut in four": (dropped, {"optimizer": Sgd(0.1), "precision": "fp32.32", "micro_batches": 4}),
    "scaled": (plain, {"optimizer": Adam(0.01), "precision": "fp16.16/nearest", "loss_scale": "automatic"}),
}


def clones(kinds: Sequence[str], tiles: Sequence[int | None] | None = None, **options: Any) -> Clones:
    each = tiles or [None] * len(kinds)
    models = [
        Clone(KINDS[kind][0], PARAMS, key=5, name=f"{number} {kind}", tiles=some, **KINDS[kind][1])
        for number, (kind, some) in enumerate(zip(kinds, each, strict=True))
    ]
    return Clones(models, BATCH, target=CHIP, **options)


def steps_of(program: p.Program) -> Iterator[p.Program]:
    """The steps of a program, without those inside of loops and branches."""
    if isinstance(program, p.Sequence):
        for step in program.steps:
            yield from steps_of(step)
    else:
        yield program


def parts(made: Clones) -> list[OnTiles]:
    return [
        OnTiles(name, loop.block, loop.accumulations, loop.control, loop.target.tiles)
        for name, loop in zip(made.names, made.loops, strict=True)
    ]


def together(made: Clones) -> Joined:
    on = made.execution
    return joined(parts(made), on.target, 2, share=on.reorder, parallel=on.parallel)


def sent(block: Block, number: int, value: Any) -> Iterator[Any]:
    """What the host sends for an input of a step, micro-batch by micro-batch."""
    var = block.inputs[block.carried + number]
    for loop, _ in regions_of(block, Loop):
        for whole, part in loop.fed:
            if whole is var:
                return (loop.part(part, value, n) for n in range(loop.count))
    return iter([value])


def run_on_tiles(made: Clones, one: Joined, key: Key) -> list[list[Any]]:
    """The next step of each on the tiles: its new state and what it gives the host."""
    engine = Engine(one.graph, [one.program], made.loops[0].control)
    inputs = [loop.next_step(BATCH)[0] for loop in made.loops]
    for loop, lowered, values in zip(made.loops, one.lowered, inputs, strict=True):
        for place, value in zip(lowered.state, values[: loop.block.carried], strict=True):
            if isinstance(place, RemoteBuffer):
                engine.write_remote(place, 0, value)
            else:
                engine.write(place, value)

    def host(whose: Any) -> Iterator[Any]:
        each = [sent(one.lowered[n].block, k, inputs[n][made.loops[n].block.carried + k]) for n, k in whose]
        if whose[0][1] < len(BATCH) or len(whose) == 1:  # the same for all
            return each[0]
        return (np.concatenate([np.ravel(value) for value in values]) for values in zip(*each, strict=True))

    fed = {stream: host(whose) for stream, whose in one.feeds.items()}
    found: dict[tuple[int, int], Any] = {}

    def keep(whose: Any, values: Any) -> None:
        shapes = [one.lowered[n].results[k].shape for n, k in whose]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        for place, shape, part in zip(whose, shapes, np.split(values.copy().ravel(), ends), strict=True):
            found[place] = part.reshape(shape)

    for stream in one.feeds:
        engine.connect(stream, lambda stream=stream: next(fed[stream]))
    for stream, whose in one.results.items():
        engine.connect(stream, lambda values, whose=whose: keep(whose, values))
    for lowered in one.lowered:
        if lowered.entries is not None:
            engine.write(lowered.entries[1], [1])  # as a Machine has it
    engine.set_key(key)
    engine.run()
    assert not list(chain(*fed.values()))  # all of it was asked for
    after = []
    for number, lowered in enumerate(one.lowered):
        entry = 0 if lowered.entries is None else int(engine.read(lowered.entries[0])[0])
        state = [
            engine.read_remote(place, entry) if isinstance(place, RemoteBuffer) else engine.read(place)
            for place in lowered.state
        ]
        after.append([*state, *(found[number, place] for place in range(len(lowered.results)))])
    return after


def check_bits(made: Clones) -> None:
    key = made.loops[0].next_step(BATCH)[1]
    after = run_on_tiles(made, together(made), key)
    losses = made.train(BATCH)
    for loop, own, loss in zip(made.loops, after, losses, strict=True):
        state = loop.next_step(BATCH)[0][: loop.block.carried]
        assert own[loop.block.carried] == loss
        for mine, theirs in zip(own, state, strict=False):
            np.testing.assert_array_equal(mine.view(f"u{mine.itemsize}"), theirs.view(f"u{theirs.itemsize}"))


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3))
@examples(8, 60)
def test_the_joined_program_makes_the_bits_of_each(kinds: list[str]) -> None:
    check_bits(clones(kinds))


def test_unlike_loops_and_branches_run_one_after_another() -> None:
    made = clones(["cut in four", "cut", "scaled", "scaled"])
    check_bits(made)
    steps = list(steps_of(together(made).program))
    assert len([step for step in steps if isinstance(step, p.If)]) == 2
    assert sorted(step.count for step in steps if isinstance(step, p.Repeat)) == [2, 4]


def test_loops_of_equal_counts_are_one() -> None:
    made = clones(["cut", "cut"])
    check_bits(made)
    (repeat,) = [step for step in steps_of(together(made).program) if isinstance(step, p.Repeat)]
    assert repeat.count == 2


@pytest.mark.parametrize("scale", [None, "automatic"])
def test_streamed_moments_come_home(scale: str | None) -> None:
    models = [
        Clone(plain, PARAMS, key=5, optimizer=Adam(rate), precision="fp16.16/stochastic", loss_scale=scale)
        for rate in (0.1, 0.01)
    ]
    check_bits(Clones(models, BATCH, target=CHIP, streamed="optimizer.*"))


def test_each_lies_on_tiles_of_its_own() -> None:
    made = clones(["plain", "adam", "cut"], tiles=[8, None, 20])
    assert [loop.target.tiles for loop in made.loops] == [8, 20, 20]
    one = together(made)
    home = {f"{name}.": set(range(first, last)) for name, (first, last) in zip(
        made.names, ((0, 8), (8, 28), (28, 48)), strict=True)}  # fmt: skip
    for variable in one.graph.variables:
        own = [tiles for name, tiles in home.items() if variable.name.startswith(name)]
        # What is of several is what the host gets of all in one transfer.
        expected = own[0] if own else {0}
        assert set(np.flatnonzero(variable.mapping.elements_per_tile(CHIP.tiles)).tolist()) <= expected, variable.name


ALIKE = 4


def alike(count: int = ALIKE) -> Clones:
    models = [
        Clone(plain, PARAMS, key=seed, optimizer=Sgd(0.1 / (1 + seed)), precision="fp16.16/stochastic")
        for seed in range(count)
    ]
    return Clones(models, BATCH, target=Target("bow", tiles=12 * count), engine="tiles")


def profile(made: Clones) -> Profile:
    found = made.profile
    assert found is not None
    return found


def test_alike_clones_compute_at_once() -> None:
    made = alike()
    one, alone = profile(made), made.loops[0].profile
    assert alone is not None
    # The batch goes on to the others, and their losses to the first, by exchanges: no compute set is added.
    together, single = ([step.cycles for step in each.steps if step.kind == "execute"] for each in (one, alone))
    assert together == single
    assert alone.cycles < one.cycles < 1.2 * alone.cycles
    assert len(one.works) == ALIKE * len(alone.works)
    assert sum(work.flops for work in one.works.values()) == ALIKE * sum(work.flops for work in alone.works.values())


def test_the_host_sends_a_batch_once() -> None:
    made = alike()
    alone = made.loops[0].profile
    assert alone is not None
    batch = 4 * BATCH["x"].size + 4 * BATCH["labels"].size
    assert profile(made).from_host == batch + ALIKE * (alone.from_host - batch)
    assert profile(made).to_host == ALIKE * alone.to_host
    streams = [step for step in profile(made).steps if step.kind == "stream"]
    assert len(streams) == len([step for step in alone.steps if step.kind == "stream"])


def test_the_account_is_of_the_program_that_ran() -> None:
    """Cycles, exchange and host bytes of an engine that runs it."""
    made = clones(["plain", "slower", "cut"], engine="tiles")
    one = together(made)
    engine = Engine(one.graph, [one.program], made.loops[0].control)
    ran, said = engine.profile(), profile(made)
    for what in ("cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "from_host", "to_host", "exchanged"):
        assert getattr(said, what) == getattr(ran, what), what
    assert said.memory.peak_bytes == engine.memory.peak_bytes


def test_a_clone_alone_is_a_machine() -> None:
    """One clone on all tiles is the step itself."""
    made = clones(["slower"], engine="tiles")
    loop = made.loops[0]
    machine = Machine.build(loop.block, loop.target, loop.accumulations, loop.control, share=True, parallel=True)
    assert profile(made).cycles == machine.profile.cycles


def test_a_skipped_branch_is_not_billed() -> None:
    made = clones(["scaled", "plain"], engine="tiles")
    bill = clones_bill(parts(made), CHIP, 2, share=True, parallel=True)
    taken, skipped, unknown = (bill.profile([flag, None]) for flag in (True, False, None))
    assert skipped.cycles < taken.cycles == unknown.cycles
    assert taken.measured
    assert not unknown.measured


def test_what_does_not_fit_says_so() -> None:
    wide = {**PARAMS, "w": np.zeros((WIDTH, 400_000), np.float32), "b": np.zeros(400_000, np.float32),
            "head": np.zeros((400_000, 3), np.float32)}  # fmt: skip
    models = [Clone(plain, wide, optimizer=Sgd(0.1), precision="fp32.32", tiles=8, name="wide"),
              Clone(plain, PARAMS, optimizer=Sgd(0.1), precision="fp32.32")]  # fmt: skip
    with pytest.raises(OutOfTileMemory) as caught:
        Clones(models, BATCH, target=CHIP, engine="tiles")
    assert "this is of clone wide" in caught.value.__notes__
