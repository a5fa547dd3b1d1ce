"""Stages of a training: chips that run a pipeline's schedule, each its own Block, make the bits of the step on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ipu_core import Adam, Lamb, Optimizer, OutOfTileMemory, Sgd, System, Target, TrainLoop, UnsupportedByTarget, nn
from ipu_core.chip.collectives import all_reduce
from ipu_core.ir.block import Array, Equation, Var
from ipu_core.ir.bodies import equations_of, flat
from ipu_core.ir.passes.guard import GUARD
from ipu_core.ir.passes.pipeline import PipelineStage, forward_numbers, link_bytes, pipeline_stages
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import paths
from ipu_core.ir.regions import Branch, Loop, Scan, path_key
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.evaluate import _Walk
from ipu_core.ir.run.kernels import given_order
from ipu_core.system.schedule import SCHEDULES, Schedule
from ipu_core.train.pipeline import PipelineBill
from lowprec import Key

WIDTH, ROWS = 6, 4
rng = np.random.default_rng(5)


def array(*shape: int) -> Array:
    return (0.5 * rng.normal(size=shape)).astype(np.float32)


PARAMS = {
    "embedding": array(7, WIDTH),
    "layers": [{"w": array(WIDTH, WIDTH), "scale": np.ones(WIDTH, np.float32), "b": array(WIDTH)} for _ in range(4)],
    "head": array(WIDTH, 7),
}
BATCH = {"tokens": np.arange(6 * ROWS, dtype=np.int32) % 7, "labels": (3 * np.arange(6 * ROWS, dtype=np.int32)) % 7}


def chain(p: Any, b: Any) -> Any:
    """One layer after another."""
    x = nn.embedding(p["embedding"], b["tokens"])
    for layer in p["layers"]:
        x = nn.relu(nn.layer_norm(x, layer["scale"], layer["b"]) @ layer["w"])
    return nn.cross_entropy(x @ p["head"], b["labels"])


def skips(p: Any, b: Any) -> Any:
    """What the first layer makes is read by all, the last as a gate."""
    first = x = nn.embedding(p["embedding"], b["tokens"])
    for layer in p["layers"]:
        x = x + nn.gelu(x @ layer["w"] + layer["b"]) * first
    return nn.cross_entropy((x * first) @ p["head"], b["labels"])


def tied(p: Any, b: Any) -> Any:
    """The embedding is the head too, and so are layers' weights; dropout; a mask of the batch."""
    seen = (b["tokens"] > 2).reshape(-1, 1)
    x = nn.embedding(p["embedding"], b["tokens"])
    for layer in (*p["layers"], p["layers"][0]):
        x = x + nn.dropout(nn.gelu(x @ layer["w"]), 0.3) * seen
    return nn.cross_entropy(x @ p["embedding"].T, b["labels"])


def recurrent(p: Any, b: Any) -> Any:
    """A scan among the layers, and a part that is made again."""
    x = nn.embedding(p["embedding"], b["tokens"])
    one, *others = p["layers"]
    x = nn.checkpoint(lambda x: nn.relu(x @ one["w"] + one["b"]))(x)
    x = x.reshape(1, -1, WIDTH)
    states = nn.scan(lambda h, _: (nn.tanh(h @ others[0]["w"] + others[0]["b"]),) * 2, x[0], array(3, 1))[1][2]
    return nn.cross_entropy(nn.relu(states @ others[1]["w"]) @ p["head"], b["labels"])


def turned(p: Any, b: Any) -> Any:
    """All weights are transposed and scaled before anything is computed with them, as a captured module does it."""
    weights = [(0.5 * layer["w"]).T for layer in p["layers"]]
    x = nn.embedding(p["embedding"], b["tokens"])
    for weight in weights:
        x = nn.relu(x @ weight)
    return nn.cross_entropy(x @ p["head"], b["labels"])


MODELS = {each.__name__: each for each in (chain, skips, tied, recurrent, turned)}
OPTIMIZERS: list[Optimizer] = [Sgd(0.1), Sgd(0.1, momentum=0.9, clip_norm=0.3), Adam(0.02), Lamb(0.02, clip_norm=0.1)]


def is_first(equation: Equation) -> bool:
    """Whether it is of the forward pass."""
    every = [equation] if equation.region is None else [*flat([equation])]
    return all(e.role == "forward" and e.of is None and e.drawn is None for e in every)


class Chips:
    """Chips that do their passes in the order of a schedule, and know what others have handed on."""

    def __init__(self, loop: TrainLoop, stages: tuple[PipelineStage, ...], inputs: list[Any], key: Key) -> None:
        self.loop, self.stages, self.key = loop, stages, key
        given = dict(zip(loop.block.inputs, inputs, strict=True))
        common = {**given, **loop.block.constants}
        self.known = [
            {var: cast(value, var.type.format) for var, value in common.items()
             if var in each.block.inputs or var in each.block.constants or var in self._fed(each)}
            for each in stages
        ]  # fmt: skip
        self.micro: list[dict[int, dict[Var, Any]]] = [{} for _ in stages]
        self.sent: list[dict[int, dict[Var, Any]]] = [{} for _ in stages]
        self.late: dict[int, list[tuple[int, Equation]]] = {}
        self.most = [0] * len(stages)
        for number, stage in enumerate(stages):
            others = {var for other in stages for var in (*other.arrives, *other.once)}
            for var in others & self.known[number].keys():
                if stage.once.get(var, stage.arrives.get(var)) is not None:
                    self.known[number].pop(var)  # it has to arrive
            for old, _ in self._loop(stage).carries:
                self.known[number][old] = cast(np.zeros(old.type.shape, np.float32), old.type.format)

    @staticmethod
    def _loop(stage: PipelineStage) -> Loop:
        (one,) = (e.region for e in stage.block.equations if e.op != "scan" and isinstance(e.region, Loop))
        assert not isinstance(one, Scan)
        return one

    def _fed(self, stage: PipelineStage) -> list[Var]:
        return [whole for whole, _ in self._loop(stage).fed]

    def _computed(self, values: dict[Var, Any], equations: list[Equation], path: tuple[int, ...]) -> None:
        def rule(equation: Equation, operands: list[Any], path: Any) -> Array:
            drawn = None if equation.draws is None else path_key(self.key, path).fold_in(equation.draws)
            order = given_order(equation, self.loop.accumulations)
            return declared(equation, operands, drawn, order, self.loop.control)

        _Walk(values, cast, rule).compute(equations, path)

    def _fetch(self, stage: PipelineStage, known: dict[Var, Any]) -> None:
        """What has arrived once in the update."""
        for var, source in (*stage.once.items(), *stage.arrives.items()):
            if var not in known and var in self.known[source]:
                known[var] = self.known[source][var]

    @staticmethod
    def _after(stage: PipelineStage) -> Iterator[Equation]:
        """What is done once in an update; what is on condition is done bit by bit, since others' parts come between."""
        for equation in stage.block.equations:
            if equation.region is None:
                yield equation
            elif isinstance(equation.region, Branch):
                yield from equation.region.body.equations

    def do(self, stage: int, kind: str, batch: int) -> None:
        """One pass of a chip with a micro-batch."""
        own, loop = self.stages[stage], self._loop(self.stages[stage])
        if kind == "forward":
            parts = {part: loop.part(part, self.known[stage][whole], batch) for whole, part in loop.fed}
            self.micro[stage][batch] = parts
            self.most[stage] = max(self.most[stage], len(self.micro[stage]))
        values = {**self.known[stage], **self.micro[stage][batch]}
        upwards = kind == "forward"
        for var, source in own.arrives.items():
            if (source < stage) == upwards and batch in self.sent[source] and var in self.sent[source][batch]:
                values[var] = self.sent[source][batch][var]
        values |= {var: self.known[at][var] for var, at in own.once.items() if var in self.known[at]}
        for equation in loop.body.equations:
            if is_first(equation) is upwards:
                if equation.region is None and equation.family == GUARD and not set(equation.operands) <= values.keys():
                    self.late.setdefault(batch, []).append((stage, equation))  # it looks at all stages
                    continue
                self._computed(values, [equation], (batch,))
        self.micro[stage][batch] = {var: value for var, value in values.items() if var not in self.known[stage]}
        self.sent[stage].setdefault(batch, {}).update(self.micro[stage][batch])
        if not upwards:
            late = {e.output for _, e in self.late.get(batch, ())}
            self.known[stage] |= {old: values[new] for old, new in loop.carries if new not in late}
            del self.micro[stage][batch]

    def end(self, count: int) -> None:
        """What looks at all stages in each micro-batch, and the update."""
        for batch in range(count):
            values: dict[Var, Any] = {}
            for known, sent in zip(self.known, self.sent, strict=True):
                values |= {**known, **sent[batch]}
            pending = self.late.get(batch, [])
            while pending:
                ready = [each for each in pending if set(each[1].operands) <= values.keys()]
                assert ready, "what looks at all stages waits for itself"
                for _, equation in ready:
                    self._computed(values, [equation], (batch,))
                pending = [each for each in pending if each not in ready]
            for stage, known in zip(self.stages, self.known, strict=True):
                late = {e.output for _, e in self.late.get(batch, ())}
                known |= {old: values[new] for old, new in self._loop(stage).carries if new in late}
        for stage, known in zip(self.stages, self.known, strict=True):
            known |= {new: known[old] for old, new in self._loop(stage).carries}
        left = [[*self._after(stage)] for stage in self.stages]
        while any(left):
            before = sum(map(len, left))
            for number, (stage, known) in enumerate(zip(self.stages, self.known, strict=True)):
                self._fetch(stage, known)
                waiting = []
                for equation in left[number]:
                    if set(equation.operands) <= known.keys():
                        self._computed(known, [equation], ())
                    else:
                        waiting.append(equation)
                left[number] = waiting
            assert sum(map(len, left)) < before, "two stages wait for each other"
        for stage, known in zip(self.stages, self.known, strict=True):
            self._fetch(stage, known)
            for branch in (e.region for e in stage.block.equations if isinstance(e.region, Branch)):
                assert known[branch.flag], "no step is skipped here"
                known |= {result: known[new] for result, new, _ in branch.chosen}


def pipelined(loop: TrainLoop, begins: list[int], name: str, batch: Any) -> tuple[list[Array], Chips]:
    """The outputs of a step as the chips of a pipeline make them."""
    count, stages = loop.training.micro_batches, len(begins) + 1
    schedule = Schedule(name, (1.0,) * stages, (1.5,) * stages, count)
    made = pipeline_stages(loop.block, loop.ideal, begins, schedule.stashes)
    inputs, key = loop.next_step(batch)
    chips = Chips(loop, made, inputs, key)
    for work in schedule.timetable:
        chips.do(work.stage, work.kind, work.micro_batch)
    assert all(most <= stashes + 1 for most, stashes in zip(chips.most, schedule.stashes, strict=True))
    chips.end(count)
    results = []
    for position, var in enumerate(loop.block.outputs):
        found = [known[var] for stage, known in zip(made, chips.known, strict=True)
                 if var in stage.block.outputs and (position >= loop.block.carried or var in known)]  # fmt: skip
        assert found, var
        results += found[:1]
    return results, chips


@given(data=st.data())
@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
def test_a_pipeline_makes_the_bits_of_one_chip(data: st.DataObject) -> None:
    """Two stages to five, in any schedule, cut anywhere: what the chips hand each other is all that they need."""
    model = data.draw(st.sampled_from(sorted(MODELS)))
    precision = data.draw(st.sampled_from(["fp32.32", "fp16.16/stochastic", "fp16.32/nearest", "fp8/stochastic"]))
    options: dict[str, Any] = {
        "micro_batches": data.draw(st.sampled_from([2, 3, 6])),
        "loss_scale": data.draw(st.sampled_from([None, 64.0])),
        "recompute": data.draw(st.sampled_from([False, True])),
        "optimizer": data.draw(st.sampled_from(OPTIMIZERS)),
    }
    loop = TrainLoop(
        MODELS[model], PARAMS, BATCH, precision=precision, engine="direct", key=3, on_nonfinite="ignore", **options
    )
    numbers = forward_numbers(loop.ideal)
    stages = data.draw(st.integers(2, min(5, len(numbers))))
    begins = sorted(data.draw(st.sets(st.sampled_from(numbers[1:]), min_size=stages - 1, max_size=stages - 1)))
    results, _ = pipelined(loop, begins, data.draw(st.sampled_from(SCHEDULES)), BATCH)
    loss = loop.train(BATCH)
    leaves = loop._stepper.runner.read()
    for got, want in zip(results, leaves, strict=False):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    assert np.float32(results[len(leaves)]).tobytes() == np.float32(loss).tobytes()


def loop_of(model: Any = chain, **options: Any) -> TrainLoop:
    usual = {"optimizer": Adam(0.02), "precision": "fp16.16/nearest", "micro_batches": 6, "target": Target(tiles=8)}
    return TrainLoop(model, PARAMS, BATCH, **{**usual, **options})


def test_every_equation_is_on_one_chip_or_made_where_it_is_read() -> None:
    """Nothing is lost and nothing is done twice, but what depends on no parameter, and each keeps its own state."""
    loop = loop_of(tied, engine="direct", loss_scale=64.0)
    numbers = forward_numbers(loop.ideal)
    stages = pipeline_stages(loop.block, loop.ideal, [numbers[3], numbers[7]], (4, 2, 0))
    found = [{e.number for e in equations_of(stage.block)} for stage in stages]
    every = {e.number: e for e in equations_of(loop.block)}
    assert set().union(*found) == every.keys()
    twice = [every[n] for n in every if sum(n in one for one in found) > 1]
    assert twice
    unread = {"head", *(f"layers.{number}.{name}" for number in range(4) for name in ("b", "scale"))}
    for equation in twice:
        assert equation.of is None
        assert equation.role in ("forward", "optimizer") or equation.parameter in unread
    kept = [[name for name in paths(stage.block.arguments[0]) if name.startswith("params.")] for stage in stages]
    names = [name for name in paths(loop.block.arguments[0]) if name.startswith("params.")]
    assert sorted(name for one in kept for name in one) == sorted(names)
    assert "params.embedding" in kept[0]
    for stage in stages:
        state = dict(zip(stage.block.inputs, stage.block.outputs, strict=False))
        assert all(state[var] is var for var in stage.once if var in state and var in loop.block.inputs)


def test_what_passes_the_links() -> None:
    """An activation up in half, the gradient of a norm down in float32; a shared weight once, its gradient often."""
    loop = loop_of(chain, engine="direct")
    forward = {e.number: e for e in equations_of(loop.ideal)}
    relus = [n for n in forward_numbers(loop.ideal) if forward[n].op == "relu"]
    begins = [1 + n for n in relus[:2]]
    stages = pipeline_stages(loop.block, loop.ideal, begins, (4, 2, 0))
    one = ROWS * WIDTH * 2
    assert link_bytes(stages) == ((one, 2 * one), (one, 2 * one))
    assert link_bytes(stages, once=True) == ((0, 0), (0, 0))
    # A skip over a stage passes it, and is there for it too: two activations up on both links, two gradients down.
    loop = loop_of(skips, engine="direct")
    forward = {e.number: e for e in equations_of(loop.ideal)}
    dots = [n for n in forward_numbers(loop.ideal) if forward[n].op == "dot"]
    stages = pipeline_stages(loop.block, loop.ideal, [dots[1], dots[3]], (4, 2, 0))
    assert link_bytes(stages) == ((2 * one, 2 * one), (2 * one, 2 * one))
    loop = loop_of(tied, engine="direct")
    numbers = forward_numbers(loop.ideal)
    stages = pipeline_stages(loop.block, loop.ideal, [numbers[6]], (2, 0))
    table = 7 * WIDTH
    (up, down), (once_up, once_down) = link_bytes(stages)[0], link_bytes(stages, once=True)[0]
    assert once_up == 2 * table + 2 * WIDTH * WIDTH  # the embedding and the first layer
    assert once_down == 0
    assert down - up >= 2 * (table + WIDTH * WIDTH) - up


def test_weights_that_are_turned_first_stay_where_they_are_read() -> None:
    """Of the head of the program nothing passes: each chip makes of its own weights what it reads."""
    loop = loop_of(turned, stages=("embedding", "layers.2"))
    made = loop._stepper.runner.bill
    assert isinstance(made, PipelineBill)
    assert link_bytes(made.stages) == ((2 * ROWS * WIDTH, 2 * ROWS * WIDTH),)
    kept = [[name for name in paths(stage.block.arguments[0]) if name.startswith("params.")] for stage in made.stages]
    assert {"params.layers.0.w", "params.layers.1.w"} <= set(kept[0])
    assert {"params.layers.2.w", "params.layers.3.w", "params.head"} <= set(kept[1])
    dots = [sum(e.op == "dot" and e.of is None for e in equations_of(stage.block)) for stage in made.stages]
    assert dots == [2, 3]


def test_bytes_of_a_stash() -> None:
    """Of two layers the first keeps, for two micro-batches, what it multiplies and the mask of its kink, in half."""

    def two(p: Any, b: Any) -> Any:
        return nn.mean(nn.relu(nn.relu(b["x"] @ p["a"]) @ p["b"]))

    options: dict[str, Any] = {"optimizer": Sgd(0.1), "precision": "fp16.16/nearest", "micro_batches": 4}
    weights, batch = {"a": array(6, 8), "b": array(8, 4)}, {"x": array(12, 6)}
    loop = TrainLoop(two, weights, batch, stages=("a", "b"), target=Target(tiles=8), **options)
    made = loop._stepper.runner.bill
    assert isinstance(made, PipelineBill)
    assert [stage.stashed for stage in made.stages] == [2 * 2 * (3 * 6 + 3 * 8), 0]


def test_links_are_billed_with_the_passes() -> None:
    """What goes up with the forward pass, what comes down with the backward one; each of three chips by its busier
    side."""
    fast, slow = Target(tiles=8, link_bandwidth=1e12), Target(tiles=8, link_bandwidth=4e10)
    names = ("embedding", "layers.1", "layers.3")
    schedules = []
    for target in (fast, slow):
        loop = loop_of(tied, stages=names, target=target)
        whole, made = loop.system_profile, loop._stepper.runner.bill
        assert whole is not None
        assert isinstance(made, PipelineBill)
        schedules.append(whole.schedule)
        ((up, down), (later_up, later_down)) = link_bytes(made.stages)
        assert whole.link_bytes == max(up, down + later_up, later_down)  # what a chip sends to both sides
    assert up < down
    for a, b, first, second in zip(
        *((one.forward, one.backward) for one in schedules), (up, down), (later_up, later_down), strict=True
    ):
        busier = (first, max(first, second), second)
        more = [slow.seconds(slow.transfer_cycles(n, 4e10) - fast.transfer_cycles(n, 1e12)) for n in busier]
        np.testing.assert_allclose(np.subtract(b, a), more, rtol=1e-9)


def test_what_arrives_is_in_one_order() -> None:
    """That in which it is made: of sets, the bytes and cycles of what is placed in turn would be a run's own."""
    loop = loop_of(tied, engine="direct", loss_scale=64.0)
    numbers = forward_numbers(loop.ideal)
    made = [var for e in equations_of(loop.block) for var in e.outputs]
    stages = pipeline_stages(loop.block, loop.ideal, [numbers[3], numbers[7]], (4, 2, 0))
    counts = list[int]()
    for stage in stages:
        for arrives in (stage.arrives, stage.once):
            places = [made.index(var) for var in arrives if var in made]
            assert places == sorted(places)
            counts.append(len(places))
    assert max(counts) > 4


def test_memory_of_stashes_by_schedule() -> None:
    """A grouped pipeline keeps two micro-batches for each stage behind, an interleaved one one; recomputation less."""
    kept = {}
    for name in SCHEDULES:
        for recompute in (False, ("layers",)):
            loop = loop_of(chain, stages=3, pipeline_schedule=name, recompute=recompute)
            made = loop._stepper.runner.bill
            kept[name, bool(recompute)] = [stage.stashed for stage in made.stages]  # type: ignore[union-attr]
    assert kept["grouped", False][0] == 2 * kept["interleaved", False][0] == 2 * kept["1f1b", False][0] > 0
    assert kept["grouped", False][2] == 0
    assert kept["sequential", False] == [0, 0, 0]
    assert kept["grouped", True][1] < kept["grouped", False][1]


def test_a_chip_alone_is_a_system_of_one() -> None:
    """The account of an update is the profile's, to the cycle."""
    for options in ({}, {"micro_batches": 1}, {"loss_scale": 8.0}, {"update_overhead": 1e-3}):
        loop = loop_of(chain, **options)
        profile, whole = loop.profile, loop.system_profile
        assert profile is not None
        assert whole is not None
        assert whole.chips == 1
        assert whole.seconds_per_update == pytest.approx(profile.seconds_per_update, rel=1e-12)
        assert dict(whole.parts())["overhead"] == options.get("update_overhead", 0.0)
        assert sum(seconds for _, seconds in whole.parts()) == pytest.approx(whole.seconds_per_update, rel=1e-12)


def test_stages_are_as_fast_as_can_be() -> None:
    """By planned cycles: no other cut of the same layers makes the slowest stage faster by more than a tenth."""
    loop = loop_of(chain, stages=2)
    whole = loop.system_profile
    assert whole is not None
    best = whole.seconds_per_micro_batch
    for name in ("layers.0", "layers.1", "layers.2", "layers.3", "head"):
        other = loop_of(chain, stages=("embedding", name)).system_profile
        assert other is not None
        assert best <= 1.1 * other.seconds_per_micro_batch


def test_replicas_of_a_pipeline() -> None:
    """Two replicas of two stages: the bits of two replicas, half the gradients' bytes on each chip's ring."""
    plain = loop_of(chain, replicas=2, micro_batches=3)
    few = Target(tiles=6)  # which all shards of so small a model share
    loop = loop_of(chain, replicas=2, micro_batches=3, stages=2, target=few, system=System(few, chips=4))
    sharded = loop_of(chain, replicas=2, micro_batches=3, stages=2, sharded="optimizer.*", target=few)
    assert plain.train(BATCH) == loop.train(BATCH) == sharded.train(BATCH)
    for a, b, c in zip(*(each._stepper.runner.read() for each in (plain, loop, sharded)), strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()
    one, two, three = plain.system_profile, loop.system_profile, sharded.system_profile
    assert one is not None
    assert two is not None
    assert three is not None
    assert (one.chips, two.chips, two.stages) == (2, 4, 2)
    assert one.collective.size == sum(leaf.size for leaf in plain._stepper.runner.read()[-14:]) * 2
    assert two.collective == all_reduce(two.system, two.collective.size, 2, stride=2, algorithm="ring")
    assert one.collective.size / 2 <= two.collective.size < one.collective.size
    assert max(p.memory.peak_bytes for p in three.profiles) < max(p.memory.peak_bytes for p in two.profiles)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 0}, "at least 1"),
        ({"stages": "layers.0"}, "two names at least"),
        ({"stages": ("*", "layres.1")}, "layres.1.*layers"),
        ({"stages": ("embedding", "layers.2", "layers.1")}, "model's order"),
        ({"stages": ("layers.1", "layers.2")}, "'embedding' comes before it: name that first"),
        ({"stages": 200}, "can be cut into"),
        ({"stages": 2, "pipeline_schedule": "gpipe"}, "grouped, interleaved"),
        ({"pipeline_schedule": "1f1b"}, "would do nothing"),
        ({"stages": 2, "steps_per_call": 2}, "steps_per_call must be 1"),
        ({"stages": 2, "random": "hardware", "precision": "fp16.16/stochastic"}, "one chip alone"),
        ({"stages": 2, "replicas": 2, "system": System(Target(tiles=8), chips=3)}, "2 replicas of 2 stages"),
        ({"stages": 2, "replicas": 2, "system": System(Target(tiles=8), chips=8)}, "replicas=4, or System"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    """What is given and what there is."""
    with pytest.raises(ValueError, match=words):
        loop_of(chain, **options)


def test_chips_without_links_and_stages_that_do_not_fit() -> None:
    """The stage is named that does not fit, and what would help."""
    with pytest.raises(UnsupportedByTarget, match="no links"):
        loop_of(chain, stages=2, target="c600")
    with pytest.raises(OutOfTileMemory, match=r"stage \d of 2: more stages="):
        loop_of(chain, stages=2, target=Target(tiles=1, tile_memory=4096))


def test_a_step_that_fits_no_chip_is_cut_by_its_bytes_where_cycles_do_not_serve() -> None:
    """A wide layer with few rows takes memory and no time."""
    wide = {"first": array(64, 64), "wide": array(64, 512), "back": array(512, 64)}
    batch = {"x": array(2, 64)}

    def loss(p: Any, b: Any) -> Any:
        return nn.mean(nn.gelu(nn.gelu(b["x"] @ p["first"]) @ p["wide"]) @ p["back"])

    options: dict[str, Any] = {"optimizer": Adam(0.1), "precision": "fp16.16/nearest"}
    with pytest.raises(OutOfTileMemory):
        TrainLoop(loss, wide, batch, target=Target(tiles=4, tile_memory=200_000), **options)
    small = Target(tiles=4, tile_memory=200_000)
    loop = TrainLoop(loss, wide, batch, target=small, stages=2, micro_batches=2, **options)
    whole = loop.system_profile
    assert whole is not None
    assert all(profile.memory.peak_bytes <= 200_000 for profile in whole.profiles)


def test_a_direct_loop_has_no_account() -> None:
    """And stages decide no bit."""
    loop = loop_of(chain, stages=2, engine="direct")
    assert loop.system_profile is None
    assert loop.train(BATCH) == loop_of(chain, engine="direct").train(BATCH)


def test_one_array_is_all_parameters() -> None:
    """A weight without a name, which each stage reads, is kept by the first and arrives at the other."""
    weight, rows = array(6, 6), array(8, 6)

    def loss(p: Any, b: Any) -> Any:
        return nn.mean(nn.relu(nn.relu(b @ p) @ p))

    options: dict[str, Any] = {"optimizer": Adam(0.1), "precision": "fp32.32", "micro_batches": 2}
    loops = [TrainLoop(loss, weight, rows, stages=count, target=Target(tiles=8), **options) for count in (1, 2)]
    assert loops[0].train(rows) == loops[1].train(rows)
    made = loops[1]._stepper.runner.bill
    assert isinstance(made, PipelineBill)
    assert link_bytes(made.stages, once=True) == ((4 * 36, 0),)


def test_a_loop_in_words() -> None:
    """The update's time and the slowest stage's memory; the direct engine says that nothing reads stages."""
    loop = loop_of(chain, stages=2)
    whole = loop.system_profile
    assert whole is not None
    assert f"{1e6 * whole.seconds_per_update:,.2f} us a step on 1 replica of 2 stages" in str(loop)
    assert "fullest tile of the slowest stage" in str(loop)
    assert "the direct engine has no account, which alone reads stages" in str(
        loop_of(chain, stages=2, engine="direct")
    )
    assert str(whole).startswith("An update on gc200: 1 replica of 2 stages, 2 chips")
    assert "stage 2: " in str(whole)
