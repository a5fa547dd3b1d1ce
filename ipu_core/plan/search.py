"""The search for a Placement: every cut of a product, costed at once as arrays; the cheapest that fits wins."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipu_core import cost
from ipu_core.plan.accumulation import Accumulation, run_length, stage_count
from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Product, chain_cycles, item_bytes
from ipu_core.target import Target

__all__ = ["search"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_PARTS: Final = 124  # parts a chosen Accumulation has at most: two summing stages
AXIS_CUTS: Final = 48  # cuts tried along one axis
SERIAL_CUTS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
SERIAL_CANDIDATES: Final = 96  # cheapest cuts over tiles for which serial cuts are tried at a time


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
    plain = _costed(target, product, accumulation, grid | {"sm": 1, "sn": 1, "hold": 0})
    fits = plain["memory"] <= memory
    best = _cheapest(plain, fits) if fits.any() else None
    limit = best["cycles"] if best is not None else np.inf
    order = np.argsort(plain["cycles"], kind="stable")
    order = order[~fits[order] & (plain["cycles"][order] < limit)]
    smallest: dict[str, Any] | None = None
    for start in range(0, order.size, SERIAL_CANDIDATES):
        some = {name: plain[name][order[start : start + SERIAL_CANDIDATES]][:, None] for name in grid}
        serial = _costed(target, product, accumulation, some | _serial(product))
        inside = serial["memory"] <= memory
        if inside.any():
            found = _cheapest(serial, inside)
            return _placement(found if best is None or found["cycles"] < best["cycles"] else best)
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
    parts, part_tiles, chunk = cut["parts"], cut["p"], cut["chunk"]
    each = _ceil(parts, part_tiles)  # parts per tile
    batch = _ceil(product.batch, cut["b"])
    rows = _ceil(_ceil(product.m, cut["m"]), cut["sm"])
    columns = product.grain * _ceil(_ceil(_ceil(product.n, product.grain), cut["n"]), cut["sn"])
    columns = np.minimum(columns, max(1, product.n))
    depth = np.minimum(each * chunk, max(1, product.k))
    size, partial, out = (item_bytes(name) for name in (product.operands, *accumulation.types))
    a = batch * rows * depth * size * (1 if product.b else columns)
    b = batch * depth * columns * size * (1 if product.b else 0)
    shares_a = (cut["order"] == 0) & (cut["n"] % 2 == 0) & (product.b is not None)
    shares_b = (cut["order"] == 1) & (cut["m"] % 2 == 0)
    arriving = np.where(shares_a, a / 2, a), np.where(shares_b, b / 2, b)
    leaving = product.a.chunk * size / cut["sm"] + (product.b.chunk if product.b else 0) * size / cut["sn"]
    chains = batch * each * chain_cycles(target, product, accumulation, rows, chunk, columns)
    steps = cut["sm"] * cut["sn"]
    short = [(size % np.maximum(1, _ceil(size, cut[axis])) > 0) for size, axis in ((product.m, "m"), (product.n, "n"))]
    cycles = steps * chains + _gathers(target, cut, *arriving, leaving, *short)
    direct = (parts == 1) & (accumulation.types[0] == accumulation.types[1])
    sub = _ceil(rows, part_tiles)
    summing = _summing(target, accumulation, parts, each, part_tiles, batch * sub * columns, partial)
    results = batch * np.where(direct, rows, sub) * columns * out
    cycles = cycles + steps * (_phase(target, results) + np.where(direct, 0, summing))
    partials = np.where(direct, 0, each * batch * rows * columns * partial)
    gathered = np.where(direct, 0, (parts - each) * batch * sub * columns * partial)
    bytes_needed = np.maximum(a + b + partials + np.where(direct, results, 0), partials + gathered + results)
    shape = cycles.shape
    wide = {name: np.broadcast_to(value, shape) for name, value in cut.items()}
    return wide | {"cycles": cycles, "memory": np.broadcast_to(bytes_needed, shape)}


def _phase(target: Target, size: Any) -> Floats:
    """Cycles of a barrier and an exchange of so many bytes at the busiest tile."""
    cycles: Floats = (
        target.sync_cycles + target.exchange_fixed_cycles + np.asarray(size) / target.exchange_bytes_per_cycle
    )
    return cycles


def _gathers(
    target: Target, cut: dict[str, Any], a: Floats, b: Floats, leaving: Floats, short_m: Any, short_n: Any
) -> Floats:
    """Cycles of bringing all pieces of both operands to the tiles, over all serial steps.

    A short last block takes a copy of its own where its operand is held.
    """
    sm, sn, hold = cut["sm"], cut["sn"], np.asarray(cut["hold"])
    together = sm * sn * _phase(target, np.maximum(a + b, leaving))
    hold_a = sm * (1 + short_m) * _phase(target, a) + sm * sn * _phase(target, b)
    hold_b = sn * (1 + short_n) * _phase(target, b) + sm * sn * _phase(target, a)
    cycles: Floats = np.where(hold == 0, together, np.where(hold == 1, hold_a, hold_b))
    return cycles


def _summing(
    target: Target, accumulation: Accumulation, parts: Ints, each: Ints, part_tiles: Ints, results: Ints, size: int
) -> Floats:
    """Cycles of summing the parts on one tile's share of the results, with the exchange before the first stage."""
    exchanged = np.where(part_tiles > 1, (parts - each) * results * size, 0)
    cycles = np.where(part_tiles > 1, _phase(target, exchanged), target.sync_cycles)
    left = parts
    kinds, which = np.unique(parts, return_inverse=True)
    counts = [stage_count(int(n)) if accumulation.stages is None else accumulation.stages for n in kinds]
    stages = np.array(counts)[which].reshape(parts.shape)
    run = np.array([run_length(int(n), count) for n, count in zip(kinds, counts, strict=True)])[which].reshape(
        parts.shape
    )
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
    cuts = {name: int(found[key]) for name, key in names.items()}
    hold = ("none", "a", "b")[int(found["hold"])]
    return Placement(**cuts, hold=hold, order=("columns", "rows")[int(found["order"])]), int(found["parts"])
