"""Draws the floors of the house from the imports: `python -m tests.draw_floors` writes notebooks/floors.svg.

A box is a floor with the number of its modules, an arrow the imports of one floor from another; arrows that only repeat
a longer way down are left out. What is drawn stands in the picture's description too, so that a test can tell whether
it is still true.
"""

from __future__ import annotations

import json
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

from tests.test_floors import FLOORS, IMPORTS, ROOT, SOURCES, floor_of, module_name

PICTURE = ROOT / "notebooks" / "floors.svg"
KERNELS = "kernels"  # C++: the compiled backend imports its module, and no floor but lowprec does
GATHERS = "ipu_core"  # only gathers public names
WIDTH, HEIGHT, ACROSS, UP = 1.5, 0.56, 1.9, 0.95

Edges = dict[str, dict[str, int]]


def imports_between() -> Edges:
    """How many import lines lead from each floor to each other one."""
    found: Edges = {floor: {} for floor in FLOORS}
    lines = Counter((floor_of(i.importer), floor_of(i.imported)) for i in IMPORTS if i.importer != GATHERS)
    for (upper, lower), count in sorted(lines.items()):
        if upper != lower:
            found[upper][lower] = count
    found["lowprec"][KERNELS] = sum("_kernels" in i.imported for i in IMPORTS)
    return found


def shortest(edges: Edges) -> Edges:
    """Without the arrows whose end can be reached by a longer way."""

    def reach(floor: str) -> set[str]:
        return {floor}.union(*(reach(lower) for lower in edges.get(floor, {})))

    return {
        upper: {
            lower: count
            for lower, count in below.items()
            if not any(lower in reach(other) for other in below if other != lower)
        }
        for upper, below in edges.items()
    }


def places(edges: Edges) -> dict[str, tuple[float, float]]:
    """The middle of each box: as high as the longest way down, beside what else is there, above what it stands on."""
    height: dict[str, int] = {}
    across: dict[str, float] = {}
    for floor in TopologicalSorter(edges).static_order():
        height[floor] = max((height[lower] + 1 for lower in edges.get(floor, {})), default=0)
    for level in range(max(height.values()) + 1):
        here = sorted(floor for floor in height if height[floor] == level)
        wanted = {
            floor: sum(across[lower] for lower in edges.get(floor, {})) / max(1, len(edges.get(floor, {})))
            for floor in here
        }
        here.sort(key=lambda floor: (wanted[floor], floor))
        middle = sum(wanted.values()) / len(here)
        across |= {floor: middle + (at - (len(here) - 1) / 2) * ACROSS for at, floor in enumerate(here)}
    return {floor: (across[floor], height[floor] * UP) for floor in height}


def draw(path: Path = PICTURE) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    plt.rcParams.update({"svg.hashsalt": "floors", "svg.fonttype": "none", "font.family": "sans-serif"})
    edges = imports_between()
    drawn = shortest(edges)
    at = places(drawn)
    modules = Counter(floor_of(module_name(path)) for path in SOURCES)
    left, right = min(x for x, _ in at.values()) - WIDTH, max(x for x, _ in at.values()) + WIDTH
    top = max(y for _, y in at.values())
    figure, axes = plt.subplots(figsize=(1.1 * (right - left), 1.1 * (top + 1)))
    most = max(count for below in drawn.values() for count in below.values())
    for upper, below in drawn.items():
        for lower, count in below.items():
            (x0, y0), (x1, y1) = at[upper], at[lower]
            start, end = (x0, y0 - HEIGHT / 2), (x1, y1 + HEIGHT / 2)
            axes.add_patch(FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=9, color="#64748b", shrinkA=0, shrinkB=0,
                linewidth=0.8 + 2.4 * count / most, zorder=1,
            ))  # fmt: skip
            down = min(0.45, 0.24 / (start[1] - end[1]))  # beside the box it comes from, free of those it passes
            axes.text(
                start[0] + down * (end[0] - start[0]), start[1] + down * (end[1] - start[1]), str(count),
                fontsize=7, color="#475569", ha="center", va="center", zorder=1.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    for floor, (x, y) in at.items():
        axes.add_patch(FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="#f8fafc", edgecolor="#334155", zorder=2,
        ))  # fmt: skip
        axes.text(x, y + 0.08, floor, ha="center", va="center", fontsize=10, zorder=3)
        said = f"{modules[floor]} modules" if modules[floor] else "C++"
        axes.text(x, y - 0.15, said, ha="center", va="center", fontsize=7, color="#64748b", zorder=3)
    axes.set_xlim(left, right)
    axes.set_ylim(-0.5, top + 0.5)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Description": json.dumps(edges)})
    plt.close(figure)
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    draw()
    print(f"{PICTURE.relative_to(ROOT)}: {len(SOURCES)} modules on {len(FLOORS)} floors")
