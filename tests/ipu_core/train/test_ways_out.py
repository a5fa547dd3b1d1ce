"""What a refusal of tile memory says would free some: each way is taken, and frees what was said."""

import re
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, AdamW, Engine, Execution, Graph, OutOfTileMemory, Predictor, Sgd, Training, TrainLoop, nn
from ipu_core.chip.target import Target
from ipu_core.compile.bill import bill
from ipu_core.compile.machine import Machine
from ipu_core.graph import Copy, Sequence
from ipu_core.train.fullest import billed
from ipu_core.train.keywords import LoopOptions
from ipu_core.train.optimizer_memory import by_optimizer
from ipu_core.train.stepper import traced
from ipu_core.train.ways_out import values_needed, ways_out

RNG = np.random.default_rng(7)
ROWS, WIDTH, LAYERS = 64, 64, 4
PARAMS = [nn.he_normal(number, (WIDTH, WIDTH)) for number in range(LAYERS)]
BATCH = tuple(RNG.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in "xy")
ROOMY, SMALL = (Target("gc200", tiles=8, tile_memory=size) for size in (638_976, 22_000))
WAY = re.compile(r"(\w+)=(\([^)]*\)|'[^']*'|\w+) frees ([\d,]+) bytes( \(its values alone fit then\))?")


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    for number, weight in enumerate(params):
        with nn.name_scope(f"layers.{number}", (x,)):
            x = nn.gelu(nn.tanh(x @ weight) * 0.5 + 1.0)
    return nn.mse_loss(x, y)


def options(**changes: Any) -> dict[str, Any]:
    return {"optimizer": AdamW(1e-3), "precision": "fp16.16/nearest", "target": SMALL, **changes}


def refused(**changes: Any) -> OutOfTileMemory:
    with pytest.raises(OutOfTileMemory) as caught:
        TrainLoop(loss, PARAMS, BATCH, **options(**changes))
    return caught.value


def ways_of(error: OutOfTileMemory) -> dict[str, tuple[Any, int, bool]]:
    """Name in words -> (argument and its value, bytes that it frees, whether the values fit then)."""
    return {
        f"{name}={value}": ((name, eval(value)), int(freed.replace(",", "")), bool(fits))
        for name, value, freed, fits in WAY.findall(str(error))
    }


def test_every_way_frees_what_is_said() -> None:
    error = refused()
    ways = ways_of(error)
    assert {name for (name, _), _, _ in ways.values()} == {"streamed", "precision", "micro_batches", "recompute"}
    training = Training(optimizer=AdamW(1e-3), precision="fp16.16/nearest", family=SMALL.family)
    ideal = traced(loss, PARAMS, BATCH, training)
    own = values_needed(ideal, training, Execution(target=SMALL))
    assert own == error.needed  # the values alone were too many
    for (name, value), freed, fits in ways.values():
        changed = options(**{name: value})
        precision, micro_batches = changed["precision"], changed.get("micro_batches", 1)
        other = Training(optimizer=AdamW(1e-3), precision=precision, micro_batches=micro_batches, family=SMALL.family)
        where = {key: changed[key] for key in ("streamed", "recompute") if key in changed}
        needed = values_needed(traced(loss, PARAMS, BATCH, other), other, Execution(target=SMALL, **where))
        assert (freed, fits) == (own - needed, needed <= SMALL.tile_memory)


def test_moments_that_are_streamed_leave_the_fullest_tile() -> None:
    """Two moments in float32 of 4 matrices on 8 tiles are what streaming the optimizer's state frees, by hand.

    What is updated comes back one parameter at a time, so as much as one's two moments stays or takes its turn.
    """
    _, freed, _ = ways_of(refused())["streamed='optimizer.*'"]
    each = 2 * 4 * WIDTH * WIDTH // 8
    assert (LAYERS - 1) * each <= freed <= LAYERS * each


def test_a_way_that_is_said_to_fit_trains_to_the_same_bits() -> None:
    wide = TrainLoop(loss, PARAMS, BATCH, **options(target=ROOMY))
    room = Target("gc200", tiles=8, tile_memory=40_000)  # planned, then refused
    ways = ways_of(refused(target=room))
    both = "optimizer.*", "params.*"
    assert ways[f"streamed={both!r}"][2]
    loop = TrainLoop(loss, PARAMS, BATCH, **options(target=room, streamed=both))
    assert loop.profile.memory.peak_bytes <= 40_000
    assert loop.train(BATCH) == wide.train(BATCH)


def test_what_frees_nothing_is_said_to() -> None:
    words = str(refused(optimizer=Sgd(0.1), target=Target("gc200", tiles=8, tile_memory=6000)))
    assert "optimizer.*'" not in words  # it keeps no state
    assert re.search(r"next to nothing is freed by .*precision='fp16.16/nearest/first_moment=float16/", words)


def test_only_what_is_not_set_yet_is_named() -> None:
    tight = Target("gc200", tiles=8, tile_memory=8_000)
    words = str(refused(streamed=("optimizer.*", "params.*"), recompute=True, target=tight))
    assert "streamed=" not in words
    assert "recompute=" not in words
    assert "micro_batches=2" in words


def test_nobody_names_what_its_caller_does_not_take() -> None:
    loop = str(refused())
    assert {name for (name, _), _, _ in ways_of(refused()).values()} <= LoopOptions.__annotations__.keys()
    assert "allow_out_of_memory" not in loop
    tiny = Target("gc200", tiles=8, tile_memory=2000)
    for size, before_planning in ((2000, True), (12_000, False)):
        target = Target("gc200", tiles=8, tile_memory=size)
        with pytest.raises(OutOfTileMemory) as predicted:
            Predictor(loss, PARAMS, BATCH, precision="fp16.16/nearest", target=target, engine="tiles")
        assert predicted.value.before_planning is before_planning
        assert predicted.value.ways == ()
        assert "=" not in str(predicted.value).partition("largest variables")[2]
    block = TrainLoop(loss, PARAMS, BATCH, **options(target=ROOMY, optimizer=Adam(1e-3))).block
    for call in (bill, Machine.build):
        with pytest.raises(OutOfTileMemory) as built:
            call(block, tiny)
        assert not any("streamed" in way for way in built.value.ways)
    graph = Graph(Target("gc200", tiles=2, tile_memory=100))
    x, y = (graph.add_variable("float16", (200,), name) for name in "xy")
    graph.set_tile_mapping(x, 0)
    graph.set_tile_mapping(y, 1)
    with pytest.raises(OutOfTileMemory, match=r"allow_out_of_memory=True goes on regardless$"):
        Engine(graph, Sequence(Copy(x, y)))


def test_a_trace_that_is_refused_leaves_the_refusal_as_it_was() -> None:
    def broken(training: Training) -> Any:
        raise ValueError("no such step")

    training = Training(optimizer=Sgd(0.1), precision="fp32.32")
    assert ways_out(broken, training, Execution(target=SMALL)) == ()


def test_the_table_by_optimizer_is_near_the_accounts() -> None:
    training = Training(optimizer=AdamW(1e-3), precision="fp16.16/nearest", family=ROOMY.family)
    execution = Execution(target=ROOMY)

    def trace(own: Training) -> Any:
        return traced(loss, PARAMS, BATCH, own)

    memory = billed(trace(training), training, execution).done.memory
    needs = {need.optimizer: need for need in by_optimizer(trace, training, execution, memory)}
    own = needs.pop("AdamW(lr=0.001), as accounted")
    assert own.whole == memory.peak_bytes
    assert needs["AdamW float32"] == own._replace(optimizer="AdamW float32")
    assert needs["AdamW float32"].values - needs["Sgd"].values == pytest.approx(2 * 4 * LAYERS * WIDTH**2 / 8, rel=0.3)
    assert needs["AdamW float16"].values < needs["AdamW float32"].values
    assert own.share == own.whole / ROOMY.tile_memory
    plain = Training(optimizer=Sgd(1.0), precision="fp16.16/nearest", family=ROOMY.family)
    account = billed(trace(plain), plain, execution).done.memory.peak_bytes
    assert needs["Sgd"].whole == pytest.approx(account, rel=0.15)
