"""Rows looked up and added at indices on tiles: runs of a large table's rows on tiles of their own, to the bits and at
the cost that are counted one by one."""

from typing import Any

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.errors import FloatingPointException
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library import rows, tables
from ipu_core.library.elementwise import add_array
from library.conftest import Count, count
from lowprec import Accumulation, float32
from lowprec import scatter_add as summed
from lowprec.integers import ceil_div

RNG = np.random.default_rng(0)
INDICES = RNG.integers(-4000, 4000, (9, 5)).astype(np.int32)
INDICES[:2] = [[0, 1999, 2000, 3999, -1], [1333, 1334, 2667, 2668, 307]]  # where runs begin and end
INDICES[2] = 7  # which is added to five times
UPDATES = (RNG.normal(size=(9, 5, 6)) * 2.0 ** RNG.integers(-12, 12, (9, 5, 1))).astype(np.float16)


def scattered(out: str, tiles: int, indices: Any = INDICES, rows: int = 4000) -> tuple[Engine, list[Any], Any]:
    graph = Graph(Target("gc200", tiles=tiles))
    where = add_array(graph, "int32", indices.shape, "where", temporary=False)
    updates = add_array(graph, "float16", UPDATES.shape, "updates", temporary=False)
    result = add_array(graph, out, (rows, 6), "result", temporary=False)
    programs = tables.scatter_add(graph, where, updates, result)
    engine = Engine(graph, Sequence(*programs))
    engine.write(where, indices)
    engine.write(updates, UPDATES)
    return engine, programs, result


def test_runs_of_rows_round_partial_sums_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHARE", 256)
    graph = Graph(Target("gc200", tiles=11))
    where = add_array(graph, "int32", INDICES.shape, "where", temporary=False)
    updates = add_array(graph, "float16", UPDATES.shape, "updates", temporary=False)
    result = add_array(graph, "float32", (4000, 6), "result", temporary=False)
    order = Accumulation(1, accumulate="bfloat16", out="float32")
    engine = Engine(graph, Sequence(*tables.scatter_add(graph, where, updates, result, accumulation=order)))
    engine.write(where, INDICES)
    engine.write(updates, UPDATES)
    engine.run()
    assert np.array_equal(engine.read(result), summed(INDICES, UPDATES, 4000, accumulation=order))
    assert not np.array_equal(engine.read(result), summed(INDICES, UPDATES, 4000))


def test_runs_of_rows_have_the_largest_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHARE", 256)
    flat, values = INDICES.reshape(-1) % 4000, UPDATES.reshape(-1, 6)
    wanted = np.zeros((4000, 6), np.float16)
    for row in np.unique(flat):
        wanted[row] = values[flat == row].max(axis=0)
    graph = Graph(Target("gc200", tiles=11))
    where = add_array(graph, "int32", INDICES.shape, "where", temporary=False)
    updates = add_array(graph, "float16", UPDATES.shape, "updates", temporary=False)
    result = add_array(graph, "float16", (4000, 6), "result", temporary=False)
    engine = Engine(graph, Sequence(*tables.scatter_add(graph, where, updates, result, maximum=True)))
    engine.write(where, INDICES)
    engine.write(updates, UPDATES)
    engine.run()
    assert np.array_equal(engine.read(result), wanted)


@pytest.mark.parametrize("out", ["float32", "float16"])
@pytest.mark.parametrize("tiles, runs", [(3, 1), (5, 1), (6, 2), (11, 3), (64, 13)])
def test_runs_of_rows_have_the_bits_of_the_whole(
    out: str, tiles: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SHARE", 256)  # 2,496 bytes: 312 rows of two columns
    engine, programs, result = scattered(out, tiles)
    engine.run()
    wanted = summed(INDICES, UPDATES, 4000, accumulate=float32, out_format=out)
    assert engine.read(result).tobytes() == wanted.tobytes()
    groups = programs[0].compute_set.groups
    assert len(groups) == runs
    tile_of = np.concatenate([group.tiles.ravel() for group in groups])
    assert np.array_equal(tile_of, np.arange(3 * runs))
    rows = -(-4000 // runs)
    first = engine.profile().steps[0].account
    assert first.compute_cycles == cost.copy_rows(engine.graph.target, rows + 2 * INDICES.size, 2, 4)
    phases = first.gather, first.scatter
    received, sent = (sum(int(getattr(moved, way).sum()) for moved in phases) for way in ("received", "sent"))
    told = Count(first.compute_cycles, first.exchange_cycles, first.sync_cycles, received, sent)
    assert told == count(programs[:1], engine.graph.target, lambda group: first.compute_cycles)


def test_a_table_as_large_as_a_language_model_s_takes_a_third_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = []
    for share in (tables.SHARE, 1):
        monkeypatch.setattr(tables, "SHARE", share)
        engine, _, _ = scattered("float32", 9, rows=60_000)
        engine.run()
        peaks.append(engine.profile().memory.peak_bytes)
    assert 300_000 < peaks[1] - peaks[0] < 330_000  # two thirds of 60,000 rows of 8 bytes


TABLE = RNG.integers(0, 256, (4000, 7 * 4), np.uint8)


def looked_up(fmt: str, tiles: int, indices: Any = INDICES, rows: int = 4000) -> tuple[Engine, list[Any], Any]:
    graph = Graph(Target("gc200", tiles=tiles))
    where = add_array(graph, "int32", indices.shape, "where", temporary=False)
    table = add_array(graph, fmt, (rows, 7), "table", temporary=False)
    result = add_array(graph, fmt, (*indices.shape, 7), "result", temporary=False)
    programs = tables.gather(graph, table, where, result)
    engine = Engine(graph, Sequence(*programs))
    engine.write(where, indices)
    if rows == 4000:
        engine.write(table, TABLE.view(table.dtype)[:, :7])
    return engine, programs, result


@pytest.mark.parametrize("fmt", ["float32", "float16", "int32", "float8_e4m3"])
@pytest.mark.parametrize("tiles, runs", [(4, 1), (7, 1), (8, 2), (15, 3), (64, None)])
def test_rows_are_looked_up_run_by_run(fmt: str, tiles: int, runs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHARE", 256)  # 2,496 bytes: 312 rows of two columns of float32
    engine, programs, result = looked_up(fmt, tiles)
    engine.run()
    size = result.dtype.itemsize
    assert engine.read(result).tobytes() == TABLE.view(result.dtype)[:, :7][INDICES].tobytes()
    runs = runs or ceil_div(4000 * 2 * size, 2496)
    lookup, *choice = (program.compute_set.groups for program in programs)
    assert np.array_equal(np.sort(np.concatenate([group.tiles.ravel() for group in lookup])), np.arange(4 * runs))
    assert len(choice) == (runs > 1)
    assert max(group.operands["table"].shape[1] for group in lookup) == ceil_div(4000, runs)

    def cycles(group: Any) -> int:
        moved, columns = group.operands["out"].shape[1:]
        return int(cost.copy_rows(engine.graph.target, moved, columns, size))

    steps = [step.account for step in engine.profile().steps]
    phases = [phase for step in steps for phase in (step.gather, step.scatter)]
    received, sent = (sum(int(getattr(moved, way).sum()) for moved in phases) for way in ("received", "sent"))
    told = (sum(getattr(step, f"{part}_cycles") for step in steps) for part in ("compute", "exchange", "sync"))
    assert Count(*told, received, sent) == count(programs, engine.graph.target, cycles)


def test_only_few_rows_of_a_large_table_are_looked_up_run_by_run() -> None:
    for indices, runs in ((30_000, 3), (30_001, 1)):
        _, programs, _ = looked_up("float16", 12, np.zeros(indices, np.int32), 60_000)
        assert len(programs[0].compute_set.groups) == 2 * runs  # of two columns, and of the seventh


def test_a_lookup_in_a_language_model_s_table_takes_a_third_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks, cycles = [], []
    for share in (tables.SHARE, 1):
        monkeypatch.setattr(tables, "SHARE", share)
        engine, _, _ = looked_up("float16", 12, rows=60_000)
        engine.run()
        peaks.append(engine.profile().memory.peak_bytes)
        cycles.append(engine.profile().cycles)
    assert 150_000 < peaks[1] - peaks[0] < 165_000  # two thirds of 60,000 rows of 4 bytes
    assert cycles[0] < 0.5 * cycles[1]


@pytest.mark.parametrize("wrong", [4000, -4001])
@pytest.mark.parametrize("tiles", [3, 64])
def test_indices_outside_all_rows_are_refused(wrong: int, tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHARE", 256)
    indices = INDICES.copy()
    indices[8, 4] = wrong
    for made in (scattered, looked_up):
        engine, _, _ = made("float32", tiles, indices)
        with pytest.raises(IndexError, match="out of bounds for 4000 rows"):
            engine.run()


INVALID = FloatingPointControl(inv=True)
LARGE = np.full((9, 5, 6), 3e38, np.float32)


@pytest.mark.parametrize("along", [False, True])
def test_sums_at_indices_raise_an_enabled_overflow(along: bool) -> None:
    def run(updates: Any, control: FloatingPointControl) -> Any:
        graph = Graph(Target("gc200", tiles=5))
        shape = (9, 5) if along else (9, 5, 6)
        where = add_array(graph, "int32", (9, 5), "where", temporary=False)
        given = add_array(graph, "float32", shape, "updates", temporary=False)
        result = add_array(graph, "float32", (9, 8) if along else (4000, 6), "result", temporary=False)
        add = rows.put_along if along else tables.scatter_add
        engine = Engine(graph, Sequence(*add(graph, where, given, result)), control)
        engine.write(where, np.full((9, 5), 7))
        engine.write(given, updates[..., 0] if along else updates)
        engine.run()
        return engine.read(result)

    with pytest.raises(FloatingPointException, match=r"(scatter_add|put_along): overflow: a result of at least"):
        run(LARGE, FloatingPointControl(oflo=True))
    with pytest.raises(FloatingPointException, match=r"(scatter_add|put_along): invalid operation"):
        run(np.broadcast_to(np.where(np.arange(5)[:, None] % 2, np.inf, -np.inf), LARGE.shape), INVALID)
    quiet = run(LARGE, FloatingPointControl(inv=True, div0=True))
    assert np.isinf(quiet).any()
    ours = run(LARGE / 100, FloatingPointControl(inv=True, div0=True, oflo=True))
    assert ours.tobytes() == run(LARGE / 100, FloatingPointControl()).tobytes()
