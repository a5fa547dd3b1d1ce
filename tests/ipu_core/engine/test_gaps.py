"""Gaps between variables, always-live bytes, tiles of variables, and when steps begin, against counts of their own."""

import itertools

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.engine.data import column_runs
from ipu_core.engine.profile import Profile
from ipu_core.graph import Copy, DataStream, Graph, Program, Repeat, Sequence, StreamCopy
from ipu_core.report.bars import filled

TILES = 6


def chains(seed: int) -> tuple[Graph, Program]:
    """Temporaries of odd sizes on several tiles, copied one to the next in loops."""
    rng = np.random.default_rng(seed)
    graph = Graph(Target("gc200", tiles=TILES))
    size = int(rng.integers(7, 60))
    tensors = []
    for number in range(6):
        tensor = graph.add_variable("float16", (size,), f"v{number}", temporary=number not in (0, 5))
        graph.map_linearly(tensor, rng.permutation(TILES)[: rng.integers(1, TILES + 1)], int(rng.integers(1, 5)))
        tensors.append(tensor)
    copies: list[Program] = [Copy(a, b) for a, b in itertools.pairwise(tensors)]
    return graph, Sequence(copies[0], Repeat(3, Sequence(*copies[1:4])), copies[4])


def slowly(graph: Graph, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Peak and gaps by tile, word by word: which temporaries live at each point is known of a chain of copies."""
    always = engine.memory.always_live
    held = [v.mapping.elements_per_tile(TILES) * 2 for v in graph.variables]
    peaks, gaps = np.zeros(TILES, int), np.zeros(TILES, int)
    kept = [number for number in (0, 5)]
    best = np.full(TILES, -1)
    for step in range(5):
        live = [number for number in {step, step + 1} if number not in kept]
        # In the loop v1 is read again by the next round, so it lives through all of it.
        live += [1] if step in (2, 3) else []
        moved = engine.profile().steps[step].account.memory
        for tile in range(TILES):
            bytes_ = sum(-(-int(held[n][tile]) // 8) * 8 for n in live) + sum(int(m[tile]) for m in moved.values())
            if bytes_ > best[tile]:
                best[tile] = bytes_
                gaps[tile] = sum(-int(held[n][tile]) % 8 for n in live) + sum(-int(held[n][tile]) % 8 for n in kept)
    peaks = always + best
    return peaks, gaps


@pytest.mark.parametrize("seed", range(20))
def test_gaps_are_what_no_element_fills(seed: int) -> None:
    graph, program = chains(seed)
    engine = Engine(graph, program)
    memory = engine.memory
    peaks, gaps = slowly(graph, engine)
    assert memory.peak.tolist() == peaks.tolist()
    assert memory.gaps.tolist() == gaps.tolist()
    assert (memory.without_gaps + memory.gaps).tolist() == memory.peak.tolist()
    assert (memory.always_live + memory.not_always_live).tolist() == memory.peak.tolist()
    others = [size for name, size in memory.categories.items() if name not in memory.always]
    assert sum(others) == memory.not_always_live[memory.tile]
    assert memory.share == memory.peak_bytes / Target("gc200").tile_memory


def test_the_tiles_of_a_variable_hold_all_its_bytes() -> None:
    graph, program = chains(3)
    memory = Engine(graph, program).memory
    for variable in graph.variables:
        by_tile = memory.tiles_of(variable.name)
        where, lies = np.zeros(TILES, int), variable.mapping
        for start, end, tile in zip(lies.starts.tolist(), lies.ends.tolist(), lies.tiles.tolist(), strict=True):
            where[tile] += 2 * (end - start)
        assert by_tile.tolist() == where.tolist()
        assert by_tile.sum() == variable.nbytes
    with pytest.raises(ValueError, match="no variable is called 'v9'; nearest are v"):
        memory.tiles_of("v9")


def played(outline: tuple[tuple[int, str], ...], cycles: dict[str, int]) -> list[tuple[str, int]]:
    """Every execution with its first cycle, by going through the program line by line."""

    def block(at: int, depth: int, now: int) -> tuple[int, int]:
        while at < len(outline) and outline[at][0] == depth:
            words = outline[at][1]
            if words.startswith("repeat "):
                for _ in range(int(words.split()[1])):
                    end, now = block(at + 1, depth + 1, now)
                at = end
            else:
                found.append((words, now))
                now += cycles[words]
                at += 1
        return at, now

    found: list[tuple[str, int]] = []
    block(0, 0, 0)
    return found


def test_steps_begin_when_the_program_gets_to_them() -> None:
    graph = Graph(Target("gc200", tiles=TILES))
    a, b, c, d = (graph.add_variable("float16", (40 * n,), name) for n, name in enumerate("abcd", 1))
    for tile, tensor in enumerate((a, b, c, d)):
        graph.set_tile_mapping(tensor, tile)
    inner = Repeat(4, Sequence(Copy(a, b[:40]), Copy(b, c[:80])))
    engine = Engine(graph, Sequence(Copy(a, d[:40]), Repeat(3, Sequence(Copy(c, d[:120]), inner)), Copy(d[:40], a)))
    profile = engine.profile()
    cycles = {step.name: step.account.cycles for step in profile.steps}
    executions = played(profile.outline, cycles)
    assert len(executions) == sum(step.count for step in profile.steps)
    for step in profile.steps:
        begins = [begin for name, begin in executions if name == step.name]
        assert len(begins) == step.count
        assert step.begin == begins[0]
        assert step.every == (begins[1] - begins[0] if len(begins) > 1 else 0)
    last, begin = executions[-1]
    assert begin + cycles[last] == profile.cycles


def streamed() -> Profile:
    graph = Graph(Target("gc200", tiles=TILES, host_share=2e9))
    x, y = (graph.add_variable("float16", (4, 1000), name) for name in "xy")
    for tensor in (x, y):
        graph.map_intervals(tensor, [0, 1000, 2000, 3000], [0, 1, 2, 3])
    down, up = (DataStream(name, "float16", (4, 1000), to_device=into) for name, into in (("d", True), ("u", False)))
    program = Sequence(Repeat(5, Sequence(StreamCopy(down, x), Copy(x[:2], y[2:]))), StreamCopy(up, y))
    return Engine(graph, program).profile()


def test_the_hosts_transfers_are_those_of_the_streams() -> None:
    profile = streamed()
    first, second = profile.host
    assert (first.name, first.to_tiles, first.bytes, first.runs, first.begin) == ("stream d", True, 8000, 5, 0)
    assert (second.name, second.to_tiles, second.bytes, second.runs) == ("stream u", False, 8000, 1)
    assert sum(each.bytes * each.runs for each in profile.host if each.to_tiles) == profile.from_host == 40_000
    assert sum(each.bytes * each.runs for each in profile.host if not each.to_tiles) == profile.to_host == 8000
    assert second.begin + second.cycles == profile.cycles
    assert first.every == (profile.cycles - second.cycles) // 5
    assert first.bytes_per_second == pytest.approx(2e9, rel=1e-3)  # what the link does; whole cycles round it


@pytest.mark.parametrize("seed", range(10))
def test_columns_in_runs_are_the_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    column = np.repeat(rng.integers(0, 3, 8), rng.integers(0, 6, 8)).astype(np.int64)
    runs = column_runs(column)
    assert filled(runs, column.size).tolist() == column.tolist()
    assert all(a[1] < b[0] and (a[1] + 1 < b[0] or a[2] != b[2]) for a, b in itertools.pairwise(runs))
    assert all(figure for _, _, figure in runs)


def test_the_data_have_every_step_and_variable_by_tile() -> None:
    profile = streamed()
    data = profile.to_json()
    for step, numbers in zip(profile.steps, data["by_tile"]["steps"], strict=True):
        got = {name: filled(data["by_tile"]["columns"][number], TILES) for name, number in numbers.items()}
        none = np.zeros(TILES, int)
        assert got.get("bytes in", none).tolist() == step.bytes_in.tolist()
        assert got.get("bytes out", none).tolist() == step.bytes_out.tolist()
        assert got.get("compute", none).tolist() == step.account.compute.tolist()
    runs = sum(step.count * step.bytes_in for step in profile.steps)
    assert runs.tolist() == profile.bytes_in.tolist() == data["bytes_in"]
    held = data["memory"]["held"]
    for variable in held["variables"]:
        column = filled(held["columns"][variable["column"]], TILES)
        assert column.tolist() == profile.memory.tiles_of(variable["name"]).tolist()
    assert {variable["type"] for variable in held["variables"]} == {"float16[4,1000]"}
