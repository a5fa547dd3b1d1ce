"""The search for a Placement: every cut of a product, costed at once as arrays; the cheapest that fits wins."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipu_core import cost
from ipu_core.plan.accumulation import Accumulation
from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Operand, Product, chain_cycles, item_bytes
from ipu_core.plan.under_way import Piece, bytes_under_way, chain_bytes, stages_of
from ipu_core.target import Target

__all__ = ["search"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_PARTS: Final = 124  # parts a chosen Accumulation has at most: two summing stages
AXIS_CUTS: Final = 48  # cuts tried along one axis
SERIAL_CUTS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
SERIAL_CANDIDATES: Final = 96  # cheapest cuts over tiles for which serial cuts are tried at a time
SERIAL_ROUNDS: Final = 4  # how often, once something fits
UNBOUNDED: Final = 1 << 60  # bytes: cut nothing in time


def search(
    target: Target, product: Product, accumulation: Accumulation, memory: int, *, choose_splits: bool = False
) -> tuple[Placement, int]:
    """The Placement with the fewest modelled cycles, and the splits it stands for.

    Args:
        target: the chip.
        product: sizes, formats and layouts.
        accumulation: order and types; its `splits` are fixed unless `choose_splits`.
        memory: bytes per tile for gathered operands, partials and results under way.
        choose_splits: also search the number of parts (each then lies on its own tile).

    Returns:
        The placement and the splits. Where nothing fits, the placement that needs least memory.
    """
    grid = _grid(target, product, accumulation, choose_splits)
    whole = _costed(target, product, accumulation, grid | {"sm": 1, "sn": 1, "hold": 0, "most": UNBOUNDED})
    plain = _costed(target, product, accumulation, grid | {"sm": 1, "sn": 1, "hold": 0, "most": memory})
    fits = plain["memory"] <= memory
    best = _cheapest(plain, fits) if fits.any() else None
    order = np.argsort(whole["cycles"], kind="stable")  # cuts of rows and columns in time only add to these cycles
    order = order[whole["memory"][order] > memory]
    smallest: dict[str, Any] | None = None
    for start in range(0, order.size, SERIAL_CANDIDATES):
        if best is not None and (start >= SERIAL_CANDIDATES * SERIAL_ROUNDS or
                                 whole["cycles"][order[start]] >= best["cycles"]):  # fmt: skip
            break
        some = {name: whole[name][order[start : start + SERIAL_CANDIDATES]][:, None] for name in grid}
        serial = _costed(target, product, accumulation, some | _serial(product) | {"most": memory})
        inside = serial["memory"] <= memory
        if inside.any():
            found = _cheapest(serial, inside)
            best = found if best is None or found["cycles"] < best["cycles"] else best
        least = _cheapest(serial, serial["memory"] == serial["memory"].min())
        smallest = least if smallest is None or least["memory"] < smallest["memory"] else smallest
    choice = best if best is not None else smallest
    return _placement(choice if choice is not None else _cheapest(plain, plain["memory"] == plain["memory"].min()))


def _cuts(size: int, most: int) -> Ints:
    """Numbers of cuts that give different blocks, at most AXIS_CUTS of them, spread evenly in proportion."""
    counts = np.arange(1, min(size, most) + 1) if size else np.ones(1, np.int64)
    blocks = -(-max(1, size) // counts)
    _, first = np.unique(-blocks, return_index=True)
    chosen: Ints = counts[first]
    if chosen.size > AXIS_CUTS:
        chosen = chosen[np.unique(np.geomspace(1, chosen.size, AXIS_CUTS).astype(np.int64) - 1)]
    return chosen


def _grid(target: Target, product: Product, accumulation: Accumulation, choose_splits: bool) -> dict[str, Any]:
    groups = max(1, -(-product.k // accumulation.group))
    parts = max(1, len(accumulation.parts(product.k)))
    part_cuts = _cuts(groups, min(target.tiles, MOST_PARTS)) if choose_splits else _cuts(parts, target.tiles)
    axes = np.meshgrid(
        _cuts(product.m, target.tiles),
        _cuts(-(-product.n // product.grain), target.tiles),
        part_cuts,
        _cuts(product.batch, target.tiles),
        np.arange(2),
        indexing="ij",
    )
    m, n, p, b, rows_first = (axis.ravel().astype(np.int64) for axis in axes)
    keep = (m * n * p * b <= target.tiles) & ((rows_first == 0) | (n * m > 1))
    chosen = {"m": m[keep], "n": n[keep], "p": p[keep], "b": b[keep], "order": rows_first[keep]}
    if choose_splits:
        chosen["chunk"] = accumulation.group * -(-groups // chosen["p"])
        chosen["parts"] = chosen["p"]
    else:
        chosen["chunk"] = np.full_like(chosen["p"], min(max(1, product.k), accumulation.chunk(product.k)))
        chosen["parts"] = np.full_like(chosen["p"], parts)
    return chosen


def _serial(product: Product) -> dict[str, Any]:
    rows, columns, hold = (
        axis.ravel()[None, :]
        for axis in np.meshgrid(SERIAL_CUTS, SERIAL_CUTS, range(3 if product.b else 1), indexing="ij")
    )
    keep = ((hold == 0) | (hold == 1) & (columns > 1) | (hold == 2) & (rows > 1))[0]
    return {"sm": rows[:, keep], "sn": columns[:, keep], "hold": hold[:, keep]}


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


def _costed(target: Target, product: Product, accumulation: Accumulation, cut: dict[str, Any]) -> dict[str, Any]:
    """The candidates with their modelled cycles and the bytes they need on a tile."""
    piece, depths = _piece(product, accumulation, cut)
    steps = cut["sm"] * cut["sn"]
    pieces: Ints = np.where(piece.goes_on, _ceil(cut["chunk"], piece.depth), 1)  # of a part
    first = np.where(piece.goes_on, piece.depth, cut["chunk"])
    chains = chain_cycles(target, product, accumulation, piece.rows, first, piece.columns)
    if (pieces > 1).any():
        last = np.where(pieces > 1, cut["chunk"] - (pieces - 1) * first, first)
        shorter = chain_cycles(target, product, accumulation, piece.rows, last, piece.columns, True)
        more = chain_cycles(target, product, accumulation, piece.rows, first, piece.columns, True)
        chains = chains + np.where(pieces > 1, (pieces - 2) * more + shorter, 0)
    direct = piece.direct(accumulation)
    results = (
        piece.batch * np.where(direct, piece.rows, piece.share) * piece.columns * item_bytes(accumulation.types[1])
    )
    summing = np.where(direct, 0, _summing(target, accumulation, piece, cut["p"]))
    cycles = steps * (piece.batch * piece.each * chains + summing + _phase(target, results))
    cycles = cycles + _gathers(target, product, piece, cut, depths)
    memory = bytes_under_way(product, accumulation, piece)
    wide = {name: np.broadcast_to(value, cycles.shape) for name, value in cut.items()} | {
        "depths": np.broadcast_to(depths, cycles.shape)
    }
    return wide | {"cycles": cycles, "memory": np.broadcast_to(memory, cycles.shape)}


def _piece(product: Product, accumulation: Accumulation, cut: dict[str, Any]) -> tuple[Piece, Any]:
    """The pieces of work, and in how many steps a tile works off its k's: as few as its memory allows."""
    rows = _ceil(_ceil(product.m, cut["m"]), cut["sm"])
    grains = _ceil(_ceil(_ceil(product.n, product.grain), cut["n"]), cut["sn"])
    each = _ceil(cut["parts"], cut["p"])
    whole = np.minimum(each * cut["chunk"], max(1, product.k))
    batch, columns = _ceil(product.batch, cut["b"]), np.minimum(product.grain * grains, max(1, product.n))
    share, hold = _ceil(rows, cut["p"]), np.asarray(cut["hold"])
    plain = Piece(batch, rows, columns, whole, whole, each, cut["parts"], share, hold, False)
    if product.b is None or cut["most"] >= UNBOUNDED:
        return plain, np.ones_like(each)
    rest = chain_bytes(product, accumulation, plain._replace(depth=0, whole=0, goes_on=True))  # beside the operands
    per_k = batch * (rows + columns) * item_bytes(product.operands)
    room = np.maximum(0, (cut["most"] - rest) // np.maximum(1, per_k))
    cuts = (room < whole) & (hold == 0)
    apart = cuts & (room < cut["chunk"]) & (cut["chunk"] > accumulation.group)
    groups = _ceil(cut["chunk"], accumulation.group)
    depth = accumulation.group * _ceil(groups, _ceil(groups, np.clip(room // accumulation.group, 1, groups)))
    together = np.clip(room // np.maximum(1, cut["chunk"]), 1, each)  # whole parts
    pieces = np.where(apart, each * _ceil(cut["chunk"], depth), _ceil(each, together))
    deep = np.where(cuts, np.minimum(np.where(apart, depth, together * cut["chunk"]), whole), whole)
    return plain._replace(depth=deep, goes_on=apart), np.where(cuts, pieces, 1)


def _phase(target: Target, size: Any) -> Floats:
    """Cycles of a barrier and an exchange of so many bytes at the busiest tile."""
    cycles: Floats = (
        target.sync_cycles + target.exchange_fixed_cycles + np.asarray(size) / target.exchange_bytes_per_cycle
    )
    return cycles


def _gathers(target: Target, product: Product, piece: Piece, cut: dict[str, Any], depths: Any) -> Floats:
    """Cycles of bringing all pieces of both operands to the tiles, over all serial steps.

    What neighbours in a supertile share arrives at the double rate. A short last block takes a copy of its own where
    its operand is held.
    """
    a, b = piece.operands(product)
    leaving = _leaving(product.a, "m", product, cut["sm"], depths)
    if product.b is not None:
        leaving = leaving + _leaving(product.b, "n", product, cut["sn"], depths)
        grains = _ceil(product.n, product.grain)
        a = np.where((cut["order"] == 0) & (cut["n"] % 2 == 0), a * (1 - _paired(grains, cut["n"], cut["sn"]) / 2), a)
        b = np.where(
            (cut["order"] == 1) & (cut["m"] % 2 == 0), b * (1 - _paired(product.m, cut["m"], cut["sm"]) / 2), b
        )
    short_a = product.m % np.maximum(1, _ceil(product.m, cut["m"])) > 0
    short_b = product.n % np.maximum(1, _ceil(product.n, cut["n"])) > 0
    sm, sn, hold = cut["sm"], cut["sn"], np.asarray(cut["hold"])
    arriving = (a + b) * (piece.whole / np.maximum(1, depths * piece.depth))  # the last piece may be short
    together = sm * sn * depths * _phase(target, np.maximum(arriving, leaving))
    hold_a = sm * (1 + short_a) * _phase(target, a) + sm * sn * _phase(target, b)
    hold_b = sn * (1 + short_b) * _phase(target, b) + sm * sn * _phase(target, a)
    cycles: Floats = np.where(hold == 0, together, np.where(hold == 1, hold_a, hold_b))
    return cycles


def _paired(size: int, cuts: Any, serial: Any) -> Any:
    """The share of an axis's serial steps in which the last block, which may be short, works as its neighbour does."""
    block = np.maximum(1, _ceil(size, cuts))
    piece = _ceil(block, serial)
    return _ceil(size - (_ceil(size, block) - 1) * block, piece) / np.maximum(1, _ceil(block, piece))


def _leaving(operand: Operand, axis: str, product: Product, cuts: Any, depths: Any) -> Any:
    """Bytes of an operand that leave the busiest tile in a step.

    A cut in time along the axis stored innermost takes its share of every tile's elements in each step, one along an
    outer axis all that some of the tiles have.
    """
    inner = operand.axes[-1]
    share = (cuts if inner == axis else 1) * (depths if inner == "k" else 1)
    return operand.chunk * item_bytes(product.operands) / share


def _summing(target: Target, accumulation: Accumulation, piece: Piece, part_tiles: Ints) -> Floats:
    """Cycles of summing the parts on one tile's share of the results, with the exchange before the first stage."""
    size = item_bytes(accumulation.types[0])
    results = piece.batch * piece.share * piece.columns
    exchanged = np.where(part_tiles > 1, (piece.parts - piece.each) * results * size, 0)
    cycles = np.where(part_tiles > 1, _phase(target, exchanged), target.sync_cycles)
    left = piece.parts
    stages, run = stages_of(accumulation, piece.parts)
    for number in range(int(stages.max())):
        final = stages == number + 1
        terms = np.where(final, left, np.minimum(run, left))
        runs = np.where(final, 1, _ceil(left, terms))
        one = np.where(terms == 1, cost.cast(target, results, size), cost.reduce(target, terms, results, size))
        cycles = cycles + np.where(stages > number, runs * one + (number > 0) * target.sync_cycles, 0)
        left = runs
    return cycles


def _cheapest(costed: dict[str, Any], allowed: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The allowed candidate with the fewest cycles, then the fewest tiles, then the first."""
    where = np.flatnonzero(allowed)
    flat = {name: np.asarray(values).reshape(-1)[where] for name, values in costed.items()}
    tiles = flat["m"] * flat["n"] * flat["p"] * flat["b"]
    first = np.lexsort((tiles, flat["cycles"]))[0]
    return {name: values[first] for name, values in flat.items()}


def _placement(found: dict[str, Any]) -> tuple[Placement, int]:
    names = {"rows": "m", "columns": "n", "parts": "p", "batch": "b", "serial_rows": "sm", "serial_columns": "sn"}
    names |= {"serial_depth": "depths"}
    cuts = {name: int(found[key]) for name, key in names.items()}
    hold = ("none", "a", "b")[int(found["hold"])]
    return Placement(**cuts, hold=hold, order=("columns", "rows")[int(found["order"])]), int(found["parts"])
