"""The picture of the floors shows the imports that there are."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from tests.draw_floors import KERNELS, PICTURE, draw, imports_between, places, shortest


def described(path: Path) -> dict[str, dict[str, int]]:
    """What a picture says that it shows."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    assert found is not None
    edges: dict[str, dict[str, int]] = json.loads(unescape(found[1]))
    return edges


def test_the_picture_is_of_today() -> None:
    now, then = imports_between(), described(PICTURE)
    assert {floor: set(below) for floor, below in now.items()} == {
        floor: set(below) for floor, below in then.items()
    }, "floors import others than the picture shows: python -m tests.draw_floors"
    lines = [sum(count for below in edges.values() for count in below.values()) for edges in (now, then)]
    assert abs(lines[0] - lines[1]) <= lines[1] / 10, "many imports are new: python -m tests.draw_floors"


def test_arrows_lead_down_and_repeat_nothing(tmp_path: Path) -> None:
    edges = {"a": {"b": 3, "c": 1}, "b": {"c": 2, KERNELS: 1}, "c": {}}
    drawn = shortest(edges)
    assert drawn == {"a": {"b": 3}, "b": {"c": 2, KERNELS: 1}, "c": {}}
    at = places(drawn)
    assert all(at[upper][1] > at[lower][1] for upper, below in drawn.items() for lower in below)
    draw(tmp_path / "floors.svg")
    assert described(tmp_path / "floors.svg") == imports_between()
    text = (tmp_path / "floors.svg").read_text()
    assert all(f">{floor}<" in text or floor in text for floor in imports_between())
