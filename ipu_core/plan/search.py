"""The search for a Placement: cuts over tiles and in time together; the cheapest of all that fit wins.

Every cut over tiles is costed at once, uncut in time but for its k's, which are cut as seldom as the memory allows.
Cuts of rows and columns in time, and held operands, are then tried for those cuts over tiles that could still win: a
lower bound of what they would cost rules out the others. So nothing in the space is missed, the candidates do not
depend on the memory, and more memory never makes the modelled cycles more.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipu_core.plan.estimate import UNBOUNDED, Task, ceil, costed, lower_bound
from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Product
from ipu_core.target import Target
from lowprec import Accumulation

__all__ = ["search"]

Ints = npt.NDArray[np.int64]
Found = dict[str, Any]

MOST_PARTS: Final = 124  # parts a chosen Accumulation has at most: two summing stages
AXIS_CUTS: Final = 48  # cuts tried along one axis
SERIAL_CUTS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
TOGETHER: Final = 48  # cuts over tiles for which cuts in time are costed at a time


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
    task = Task(target, product, accumulation)
    uncut = {"sm": 1, "sn": 1, "hold": 0}
    grid = _grid(task, choose_splits)
    plain = costed(task, grid | uncut, memory)
    best = _cheapest(plain, plain["memory"] <= memory)
    whole = costed(task, grid | uncut, UNBOUNDED)
    better = _serial_best(task, whole, plain, best, memory)
    return _placement(better or best or _smallest(task, grid))


def _serial_best(task: Task, whole: Found, plain: Found, best: Found | None, memory: int) -> Found | None:
    """The best candidate with rows or columns cut in time, if one is better than the `best` without, or there is none.

    Args:
        task: what is to be placed.
        whole, plain: the cuts over tiles costed with unbounded memory, and with the memory there is.
        best: the best of `plain` that fits.
        memory: bytes per tile.
    """
    crowded = np.flatnonzero(whole["memory"] > memory)  # where everything fits, a cut in time only adds to the cycles
    if not crowded.size:
        return None
    bound = lower_bound(task, {name: values[crowded] for name, values in whole.items()}, memory)
    inside = np.ones(crowded.size, bool) if best is None else bound < best["cycles"]
    crowded, bound = crowded[inside], bound[inside]
    names = ("m", "n", "p", "b", "order", "chunk", "parts")
    found = None
    order = np.argsort(bound, kind="stable")
    for start in range(0, order.size, TOGETHER):
        some = order[start : start + TOGETHER]
        if best is not None and bound[some[0]] >= best["cycles"]:
            break
        cuts = {name: whole[name][crowded[some]][:, None] for name in names}
        serial = costed(task, cuts | _serial(task.product), memory)
        one = _cheapest(serial, serial["memory"] <= memory)
        if one is not None and (best is None or one["cycles"] < best["cycles"]):
            best = found = one
    return found


def _cuts(size: int, most: int) -> Ints:
    """Numbers of cuts that give different blocks, at most AXIS_CUTS of them, spread evenly in proportion."""
    counts = np.arange(1, min(size, most) + 1) if size else np.ones(1, np.int64)
    blocks = -(-max(1, size) // counts)
    _, first = np.unique(-blocks, return_index=True)
    chosen: Ints = counts[first]
    if chosen.size > AXIS_CUTS:
        chosen = chosen[np.unique(np.geomspace(1, chosen.size, AXIS_CUTS).astype(np.int64) - 1)]
    return chosen


def _grid(task: Task, choose_splits: bool) -> Found:
    """All cuts over tiles."""
    target, product, accumulation = task
    group = accumulation.group_of(product.k)
    groups = max(1, -(-product.k // group))
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
        chosen["chunk"] = group * ceil(groups, chosen["p"])
        chosen["parts"] = chosen["p"]
    else:
        chosen["chunk"] = np.full_like(chosen["p"], min(max(1, product.k), accumulation.part_length(product.k)))
        chosen["parts"] = np.full_like(chosen["p"], parts)
    return chosen


def _serial(product: Product) -> Found:
    """All cuts of rows and columns in time, with nothing or either operand held."""
    rows, columns, hold = (
        axis.ravel()[None, :]
        for axis in np.meshgrid(SERIAL_CUTS, SERIAL_CUTS, range(3 if product.b else 1), indexing="ij")
    )
    keep = ((hold == 0) | (hold == 1) & (columns > 1) | (hold == 2) & (rows > 1))[0]
    return {"sm": rows[:, keep], "sn": columns[:, keep], "hold": hold[:, keep]}


def _smallest(task: Task, grid: Found) -> Found:
    """The candidate that needs least memory: everything cut in time as often as can be."""
    serial = costed(task, grid | {"sm": SERIAL_CUTS[-1], "sn": SERIAL_CUTS[-1], "hold": 0}, 0)
    found = _cheapest(serial, serial["memory"] == serial["memory"].min())
    assert found is not None  # one of them is the smallest
    return found


def _cheapest(costs: Found, allowed: npt.NDArray[np.bool_]) -> Found | None:
    """The allowed candidate with the fewest cycles, then the fewest tiles, then the first; None without any."""
    where = np.flatnonzero(allowed)
    if not where.size:
        return None
    cycles = costs["cycles"].reshape(-1)[where]
    where = where[cycles == cycles.min()]
    flat = {name: np.asarray(values).reshape(-1)[where] for name, values in costs.items()}
    first = np.argmin(flat["m"] * flat["n"] * flat["p"] * flat["b"])
    return {name: values[first] for name, values in flat.items()}


def _placement(found: Found) -> tuple[Placement, int]:
    names = {"rows": "m", "columns": "n", "parts": "p", "batch": "b", "serial_rows": "sm", "serial_columns": "sn"}
    names |= {"serial_depth": "depths"}
    cuts = {name: int(found[key]) for name, key in names.items()}
    hold = ("none", "a", "b")[int(found["hold"])]
    return Placement(**cuts, hold=hold, order=("columns", "rows")[int(found["order"])]), int(found["parts"])
