"""What the talks ran, made again: verdicts turn with what was measured, and the trainings are what their rows say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core.ir.bodies import equations_of
from ipu_core.reproduce import REPRODUCTIONS, graph_nets, small_batches, stashed, unit_bert
from ipu_core.reproduce.finding import apart
from ipu_core.reproduce.small_batches import BATCHES, RATES, Trained
from ipu_core.reproduce.stashed import Kept
from ipu_core.study.models.size import Size

TINY = Size(width=16, layers=1, heads=2, context=32)


def test_means_apart_by_standard_errors() -> None:
    assert apart([1.0], [0.5]) is None
    assert apart([1.1, 1.2, 1.3], [1.0, 1.1, 1.2])  # seed by seed all as far
    assert not apart([1.1, 0.8, 1.3], [1.0, 1.0, 1.0])
    assert not apart([1.0, 1.0], [1.1, 1.2])


# Stashes


def stashes(**changed: float) -> dict[str, list[float]]:
    ends = (
        dict.fromkeys(stashed.ROWS, 2.6) | {"beta2 .885": 2.65, "all three": 2.66, "all three, scaled": 2.66} | changed
    )
    return {row: [end, end + 0.011, end - 0.01] for row, end in ends.items()}


FOUND = dict.fromkeys(stashed.STASHES, Kept(0.01, 0.0, 0.02))


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        ({}, [True, True, None, None]),
        ({"stash143": 2.62}, [False, True, None, None]),
        ({"float8_e3m4": 2.62}, [False, True, None, None]),
        ({"all three": 2.6}, [True, False, None, None]),
    ],
)
def test_verdicts_on_stashes(changed: dict[str, float], verdicts: list[bool | None]) -> None:
    assert [f.holds for f in stashed.judged(stashes(**changed), FOUND)] == verdicts


def test_the_scaled_stash_is_that_of_a_tensor_times_16() -> None:
    x = np.float32([0.001, 0.01, 0.3, -2.7, 14, 16, 300])
    ours = lowprec.round(x, stashed.SCALED, overflow="saturate")
    assert np.array_equal(ours, lowprec.round(x * 16, "stash143", overflow="saturate") / 16)


def test_blocks_keep_what_they_read_in_the_rows_stash() -> None:
    for row, kept in (("as they are", set()), ("stash143", {lowprec.stash143}), ("all three", {lowprec.stash143})):
        loop, _ = stashed.loop_of(stashed.ROWS[row], TINY, 2, 0)
        formats = {e.output.type.format for e in equations_of(loop.block) if e.op == "convert"}
        assert formats & {lowprec.stash143} == kept
        masks = [e for e in equations_of(loop.block) if e.op == "dropout_mask"]
        assert bool(masks) == (row == "all three")
    found = stashed.kept(TINY, 3, 0)
    assert found["stash143"].error > found["stash143, scaled"].error > 0
    assert found["stash143"].zero > found["stash143, scaled"].zero


# Graph nets


def graphs(**changed: float) -> dict[str, list[float]]:
    ends = dict.fromkeys(graph_nets.ROWS, 0.95) | {"whole graph": 0.9} | changed
    return {row: [end, end + 0.002, end - 0.001] for row, end in ends.items()}


SUMS = graph_nets.Sums(
    {"float32": 0.0}, {"float32": 2e-4}, {"float32": 4096, "half after each": 2048, "half after every 16th": 4096}
)


@pytest.mark.parametrize(
    ("changed", "sums", "equality", "filled", "turned"),
    [
        ({}, SUMS, 1e-15, 0.98, None),
        ({"whole graph": 0.98}, SUMS, 1e-15, 0.98, 0),
        ({}, SUMS, 1e-15, 0.8, 1),
        ({}, SUMS, 1e-9, 0.98, 2),
        ({"e4m3 after each": 0.9}, SUMS, 1e-15, 0.98, 4),
        ({}, replace(SUMS, hub={**SUMS.hub, "half after each": 4096}), 1e-15, 0.98, 5),
    ],
)
def test_verdicts_on_graph_nets(changed: Any, sums: Any, equality: float, filled: float, turned: int | None) -> None:
    rows = {"packed": filled, "padded": 0.45}
    holds = [f.holds for f in graph_nets.judged(graphs(**changed), sums, equality, rows)]
    assert holds == [None if i == 3 else i != turned for i in range(6)]


def test_orders_of_a_scatter_change_the_bits_that_they_should() -> None:
    made = graph_nets.sums()
    assert made.changed["float32"] == 0
    assert made.error["float32"] < made.error["half after each"] < made.error["bfloat16 after each"]
    assert made.error["bfloat16 after each"] < made.error["e4m3 after each"]
    assert made.hub == {"float32": 4096, "half after each": 2048, "half after every 16th": 4096}
    filled = graph_nets.filled()
    assert filled["packed"] > 0.95 > 0.5 > filled["padded"]


# Small batches


def of_batches() -> tuple[Any, Any]:
    """As published: of every batch the rates below 0.5 / batch train, and updates stop falling at 64."""
    found = {
        batch: {rate: [Trained(0.97 - batch / 20000 if rate * batch < 2 else 0.1, 10.0)] for rate in RATES}
        for batch in BATCHES
    }
    updates = {p: {m: [max(1000 / m, 20.0)] for m in BATCHES} for p in small_batches.PRECISIONS}
    return found, updates


def test_verdicts_on_small_batches() -> None:
    found, updates = of_batches()
    assert [f.holds for f in small_batches.judged(found, updates)] == [True, True, True, None]
    wide = {**found, 512: found[2]}
    assert small_batches.judged(wide, updates)[0].holds is False
    best = {m: rates if m != 256 else {r: [Trained(0.99, 10.0)] for r in RATES} for m, rates in found.items()}
    assert small_batches.judged(best, updates)[1].holds is False
    fair = {p: {m: [1000 / m] for m in BATCHES} for p in small_batches.PRECISIONS}
    assert small_batches.judged(found, fair)[2].holds is False
    never = {p: {**made, 512: [math.inf]} for p, made in updates.items()}
    words = small_batches.judged(found, never)[2]
    assert words.holds
    assert "512: never" in words.ours


def test_updates_are_counted_to_the_loss() -> None:
    quick, slow = (small_batches.train(16, rate, "fp32.32", 3, 0) for rate in (2.0**-4, 2.0**-13))
    assert 10 < quick.updates < 3 * 90
    assert slow.updates == math.inf
    assert quick.accuracy > 0.9 > slow.accuracy


# BERT under unit scaling


def test_verdicts_on_unit_scaled_bert() -> None:
    ends = dict.fromkeys(unit_bert.ROWS, 2.6)
    found = {row: [end, end + 0.01, end - 0.012] for row, end in ends.items()}
    assert [f.holds for f in unit_bert.judged(found)] == [True] * 4 + [None]
    for row, number in (("unit-fp16", 0), ("unit-fp8", 1), ("unit FP8 on a C600", 2), ("float32", 3)):
        turned = {**found, row: [x + (0.1 if row != "float32" else -0.1) for x in found[row]]}
        assert [f.holds for f in unit_bert.judged(turned)] == [i != number for i in range(4)] + [None]


def test_rows_of_unit_scaled_bert_train_without_a_loss_scale() -> None:
    ends = {row: unit_bert.train(row, TINY, 4, 0) for row in ("float32", "unit-fp8", "unit FP8 on a C600")}
    assert len(set(ends.values())) == 3
    assert all(4 < end < 7 for end in ends.values())


def test_a_row_trains_in_the_order_of_its_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def make_loop(problem: Any, recipe: Any, point: Any) -> Any:
        seen.append((recipe.execution.target.name, recipe.training.loss_scale, point.precision))
        return made(problem, recipe, point)

    made = unit_bert.make_loop
    monkeypatch.setattr(unit_bert, "make_loop", make_loop)
    for row in ("unit-fp16", "unit FP8 on a C600"):
        unit_bert.train(row, TINY, 1, 0)
    assert seen == [("gc200", None, "unit-fp16"), ("c600", None, "fp8.16/unit_scaled=true")]


def test_the_refusal_of_unit_fp8_names_what_a_c600_has() -> None:
    from ipu_core import TrainLoop, nn
    from ipu_core.errors import UnsupportedByTarget
    from ipu_core.train.optim import Sgd

    params, x = {"w": nn.normal(0, (32, 32))}, nn.normal(1, (4, 32))
    with pytest.raises(UnsupportedByTarget, match=r"precisions fp8\.16 and fp8\.16/unit_scaled=true"):
        TrainLoop(lambda p, x: nn.mse(x @ p["w"], x), params, x, optimizer=Sgd(1), precision="unit-fp8", target="c600")


@pytest.mark.slow
def test_unit_scaled_bert_needs_no_loss_scale_and_is_behind_the_usual_parametrisation() -> None:
    findings = REPRODUCTIONS["unit-bert"].run((0, 1, 2), 1.0, lambda words: None)
    assert [finding.holds for finding in findings] == [True, True, True, False, None]


@pytest.mark.parametrize("name", ["stash", "graphs", "small-batches", "unit-bert", "hmc"])
def test_they_are_on_the_command_line(name: str) -> None:
    assert REPRODUCTIONS[name].name == name
