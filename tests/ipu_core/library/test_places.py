"""Tables of rows that places find and leave: on few tiles and many, in one run of the rows and in several."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import Engine, Graph, Target
from ipu_core.graph.program import Copy, Repeat, Sequence
from ipu_core.library.elementwise import add_array, map_array
from ipu_core.library.places import PlaceTable, advance

ROWS = 10
TARGETS = {
    "one tile": Target("gc200", tiles=1),
    "a run": Target("gc200", tiles=5),
    "several runs": replace(Target("gc200", tiles=9), tile_memory=640),
    "a run a row": replace(Target("gc200", tiles=40), tile_memory=160),
}


def places(graph: Graph, first: int) -> Any:
    start = map_array(graph.target, graph.add_constant("int32", np.array([first], np.int32)))
    place = add_array(graph, "int32", (1,), "place", temporary=False)
    return start, place


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("columns", [1, 6, 7])
@pytest.mark.parametrize("fmt", ["float32", "float16", "int32"])
def test_rows_are_left_and_found_at_their_places(name: str, columns: int, fmt: str) -> None:
    """All rows but one are left again from the last to the first, each as the row of its neighbour."""
    graph = Graph(TARGETS[name])
    dtype = np.dtype(fmt)
    values = np.arange(ROWS * columns).reshape(ROWS, columns).astype(dtype)
    rows, out = (add_array(graph, fmt, (ROWS, columns), each, temporary=False) for each in ("rows", "out"))
    row = add_array(graph, fmt, (1, columns), "row", temporary=False)
    start, place = places(graph, ROWS - 2)
    table = PlaceTable.add(graph, fmt, (ROWS, columns), "table")
    found, left = table.row_at(place, row, "find"), table.set_row(row, place, "leave")
    body = Sequence(*found, *advance(graph, place, 1, "on"), *left, *advance(graph, place, -2, "back"))
    program = Sequence(
        *table.undefined(), *table.filled(rows), Copy(start, place), Repeat(ROWS - 1, body), *table.shown(out)
    )
    engine = Engine(graph, program, allow_out_of_memory=True)
    engine.write(rows, values)
    engine.run()
    np.testing.assert_array_equal(engine.read(out), values[[0, *range(ROWS - 1)]])
    np.testing.assert_array_equal(engine.read(place), [-1])


def test_large_tables_are_cut_into_runs_of_rows_that_share_no_tile() -> None:
    cut = {}
    for name, target in TARGETS.items():
        table = PlaceTable.add(Graph(target), "float32", (ROWS, 6), "table")
        cut[name] = -(-ROWS // table.each)
        tiles = [tile for block in table.blocks for tile in block.tiles]
        assert len(tiles) == len(set(tiles)) <= target.tiles
        assert sum(block.lies.size for block in table.blocks) == ROWS * 6
    assert cut["one tile"] == cut["a run"] == 1
    assert 1 < cut["several runs"] < cut["a run a row"] <= ROWS
