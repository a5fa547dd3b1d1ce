"""The account of a placement against a count of every element that every tile of its grid needs, turn by turn."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.layout import Stored
from ipu_core.placement.matmul import Placement, Product, product_of, sum_of
from ipu_core.placement.matmul import account as account_module
from ipu_core.placement.matmul.account import account, result_stays
from ipu_core.placement.matmul.geometry import Geometry, Turn, geometry
from lowprec import Accumulation

Box = dict[str, range]
Problem = PlacementProblem[Product]


def boxes(grid: Geometry, turn: Turn) -> Iterator[tuple[int, Box]]:
    """Every vertex of a turn: its tile, and the numbers along b, m, n, k that it works on ("p": its part)."""
    for group in grid.groups(turn):
        for batch in range(grid.batch.size):
            for i in range(group.parts.runs):
                part = group.parts.first + i * group.apart
                k = group.parts.start + i * group.parts.step
                for r in range(group.rows.runs):
                    for c in range(group.columns.runs):
                        place = (batch // grid.batch.block, part // grid.parts.block, group.rows.first + r,
                                 group.columns.first + c)  # fmt: skip
                        tile = int(grid.tile(*(np.array(number) for number in place)))
                        m, n = group.rows.start + r * group.rows.step, group.columns.start + c * group.columns.step
                        yield tile, {
                            "b": range(batch, batch + 1), "p": range(part, part + 1),
                            "k": range(k, k + group.parts.length), "m": range(m, m + group.rows.length),
                            "n": range(n, n + group.columns.length),
                        }  # fmt: skip


def elements(layout: Stored, sizes: dict[str, int], box: Box) -> set[int]:
    """Flat numbers, as stored, of an operand's elements in a box."""
    index = np.ravel_multi_index(np.ix_(*(np.array(box[axis], int) for axis in layout.axes)),
                                 [sizes[axis] for axis in layout.axes])  # fmt: skip
    return set(index.ravel().tolist())


def traffic(moves: set[tuple[int, int, int]], size: int, tiles: int) -> Traffic:
    """Of (from, to, element), each once."""
    moves = {move for move in moves if move[0] != move[1]}
    inbox = [{element for _, to, element in moves if to == tile} for tile in range(tiles + tiles % 2)]
    received = [len(inbox[tile]) for tile in range(tiles)]
    sent = [len({element for home, _, element in moves if home == tile}) for tile in range(tiles)]
    shared = [len(inbox[tile] & inbox[tile ^ 1]) for tile in range(tiles)]
    return Traffic(*(size * np.array(column, np.int64) for column in (received, sent, shared)))


def counted(problem: Problem, grid: Geometry) -> tuple[int, int, list[int], list[int]]:
    """(compute, exchange) cycles, and bytes received and sent by tile, without held operands."""
    target, product, order = problem
    size, partial, out = (np.dtype(name).itemsize for name in (product.operands, order.accumulate.name, order.out.name))
    compute, phases = 0, []
    unit = product.b and cost.amp_shape(target, product.operands, order.accumulate.name)
    pieces: list[tuple[int, Box]] = []
    for turn in grid.turns():
        pieces = [] if turn.first else pieces
        busy = np.zeros(target.tiles, np.int64)
        reads: list[set[tuple[int, int, int]]] = [set() for _ in product.loaded]
        writes = set()
        for tile, box in boxes(grid, turn):
            m, k, n = (len(box[axis]) for axis in "mkn")
            going = turn.depth > 0
            busy[tile] += (cost.matmul(target, m, k, n, shape=unit, group=order.group_of(product.k), goes_on=going)
                           if unit else cost.reduce(target, k, m * n, size, together=n == 1))  # fmt: skip
            for moved, (_, layout) in zip(reads, product.loaded, strict=True):
                moved |= {(e // layout.chunk, tile, e) for e in elements(layout, product.sizes, box)}
            mine = elements(product.out, product.sizes, box)
            pieces.append((tile, box))
            if result_stays(grid, order) and turn.last:
                writes |= {(tile, e // product.out.chunk, e) for e in mine}
        compute += int(busy.max())
        phases += [sum((traffic(moved, size, target.tiles) for moved in reads), Traffic.none(target.tiles))]
        phases += [traffic(writes, out, target.tiles)]
        if turn.last and not result_stays(grid, order):
            summed = shares(problem, grid, pieces)
            parts = {
                (tile, box["p"].start, e) for tile, box in pieces for e in elements(product.out, product.sizes, box)
            }
            phases += [traffic({(home, tile, part * 10**6 + e) for tile, mine in summed.items()
                                for home, part, e in parts if e in mine}, partial, target.tiles)]  # fmt: skip
            phases += [traffic({(tile, e // product.out.chunk, e) for tile, mine in summed.items() for e in mine}, out,
                               target.tiles)]  # fmt: skip
    received, sent = (sum(phase[side] for phase in phases).tolist() for side in (0, 1))
    return compute, sum(phase.cycles(target) for phase in phases), received, sent


def shares(problem: Problem, grid: Geometry, pieces: list[tuple[int, Box]]) -> dict[int, set[int]]:
    """The results whose parts each tile sums: the tiles of a block's parts share its rows, in order."""
    product, found = problem.sums, dict[int, set[int]]()
    for tile, box in pieces:
        first = box["p"].start // grid.parts.block * grid.share
        mine = box | {"m": box["m"][first : first + grid.share]}
        found.setdefault(tile, set()).update(elements(product.out, product.sizes, mine))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_cycles_and_bytes_equal_a_count_of_every_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles = int(rng.integers(2, 13))
    target = Target("gc200", tiles=tiles, exchange_bytes_per_cycle_shared=int(rng.choice([8, 8, 5])))
    m, k, n, batch = (int(rng.integers(1, most)) for most in (9, 60, 40, 3))
    accumulate = str(rng.choice(["float16", "float32"]))
    order = Accumulation(int(rng.choice([4, 16])), int(rng.integers(1, 5)), accumulate=accumulate, out="float16")
    if rng.random() < 0.7:
        axes = [str(rng.choice(names)) for names in (("bmk", "bkm", "kbm"), ("bkn", "bnk"), ("bmn",))]
        sizes = {"b": batch, "m": m, "k": k, "n": n}
        lies = [Stored(letters, -(-int(np.prod([sizes[axis] for axis in letters])) // int(rng.integers(1, tiles + 1))))
                for letters in axes]  # fmt: skip
        product = product_of(target, m, k, n, batch=batch, lies=lies)
    else:
        product = sum_of(target, m, k, n)
    problem = PlacementProblem(target, product, order)
    cuts = [int(cut) for cut in rng.integers(1, 4, 3)]
    turns = [int(turn) for turn in rng.integers(1, 3, 2)]
    depth = int(rng.integers(1, 4)) if product.b else 1
    placement = Placement(*cuts, 1, *turns, "none", str(rng.choice(["rows", "columns"])), depth)
    while placement.tiles > tiles:
        cuts = [max(1, cut - 1) for cut in cuts]
        placement = Placement(*cuts, 1, *turns, placement.hold, placement.order, depth)
    grid = geometry(problem, placement)
    found = account(problem, grid)
    compute, exchange, received, sent = counted(problem, grid)
    assert (found.received.tolist(), found.sent.tolist()) == (received, sent)
    assert found.exchange == exchange
    chains = sum(cycles for name, cycles in found.supersteps if name in ("matmul", "reduce"))
    assert chains == compute


def test_what_turns_have_in_common_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("gc200", tiles=64)
    problem = PlacementProblem(target, product_of(target, 211, 320, 200), Accumulation(group=16, splits=2))
    grid = geometry(problem, Placement(8, 4, 2, 1, 9, 2, "none", "rows", 10))
    counts = {"chain_cycles": 0, "owned": 0}

    def counted(name: str) -> Any:
        whole = getattr(account_module, name)

        def call(*args: Any, **how: Any) -> Any:
            counts[name] += 1
            return whole(*args, **how)

        return call

    for name in counts:
        monkeypatch.setattr(account_module, name, counted(name))
    account(problem, grid)
    turns = sum(1 for _ in grid.turns())
    assert turns == 9 * 2 * 10
    assert (
        counts["chain_cycles"] <= 2 * 3 * 2 * 2
    )  # two parts; rows and columns of up to 3 and 2 lengths; goes on or not
    assert counts["owned"] <= 4 * 10 * (9 + 2) + 2 * 9 * 2  # of a and b; results


def test_a_held_operand_comes_once_for_all_turns_of_the_other() -> None:
    """For r turns of rows b comes r times, for c of columns a comes c times; once each where it is held."""
    target, r, c = Target("gc200", tiles=8), 3, 2
    problem = PlacementProblem(
        target, product_of(target, 24, 32, 128), Accumulation(accumulate="float16", out="float16")
    )

    def received(*turns: int, hold: str = "none") -> int:
        return int(account(problem, geometry(problem, Placement(2, 2, 1, 1, *turns, hold))).received.sum())

    whole, both = received(1, 1), received(r, c)
    a, b = received(1, c) - whole, received(r, 1) - whole
    assert both == whole + a + b  # all pieces but the first of either operand
    assert a > 0 < b
    assert received(r, c, hold="a") == both - a
    assert received(r, c, hold="b") == both - b
