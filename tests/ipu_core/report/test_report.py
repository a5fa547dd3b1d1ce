"""Reports show the profile's own numbers, in every form."""

import io
import json
import math
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import report
from ipu_core.chip.target import Target
from ipu_core.engine import Engine, Profile
from ipu_core.graph import Codelet, Copy, DataStream, Execute, Graph, Input, Output, Repeat, Sequence, StreamCopy
from ipu_core.report.beside import ratio, read_data, side_by_side
from ipu_core.report.operations import Operation, step_names
from tests.examples import first
from tests.ipu_core.browser import check_page


class Move(Codelet):
    x = Input(ndim=1)
    y = Output(ndim=1)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> np.ndarray:
        return 10 + np.arange(4)


def profile(rounds: int = 3) -> Profile:
    graph = Graph(Target("gc200", tiles=6))
    x, y, z = (graph.add_variable("float16", (4, 10), name) for name in ("x<1>", "y", "z"))
    for tensor, tiles in ((x, [0, 1, 2, 3]), (y, [1, 2, 3, 4]), (z, [0, 0, 0, 5])):
        graph.map_intervals(tensor, [0, 10, 20, 30], tiles)
    cs = graph.add_compute_set("move & go")
    graph.add_vertices(cs, Move, [0, 1, 2, 3], {"x": x, "y": y})
    return Engine(graph, Repeat(rounds, Sequence(Execute(cs), Copy(y, z)))).profile()


def test_tables() -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=200)
    seen = profile()
    report.show(seen, console)
    printed = console.file.getvalue()
    for expected in (
        "move & go",
        "copy y -> z",
        f"{seen.cycles:,}",
        f"{seen.memory.peak_bytes:,}",
        "gathered operands",
    ):
        assert expected in printed


def test_what_passes_to_and_from_the_host_is_said_with_its_rate() -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=200)
    graph = Graph(Target("gc200", tiles=6, host_share=2e9))
    x = graph.add_variable("float16", (4, 10), "x")
    graph.map_intervals(x, [0, 10, 20, 30], [0, 1, 2, 3])
    seen = Engine(graph, StreamCopy(DataStream("down", "float16", (4, 10)), x)).profile()
    words = "80 bytes from it and 0 to it, 0.15 us at 2 GB/s each way, its machine's share, sync included"
    report.show(seen, console)
    assert words in console.file.getvalue()
    assert f"<td>host</td><td>{escape(words)}</td>" in report.to_html(seen)
    assert "<td>host</td>" not in report.to_html(profile())


def test_comparison() -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=200)
    console.print(report.compare(profile(2), profile(4), ("two", "four")))
    printed = console.file.getvalue()
    assert "2.000" in printed
    assert "cycles of move & go" in printed


def test_a_steps_cycles_and_bytes_are_of_all_its_runs_and_shown_for_one() -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=200)
    seen, once = profile(3), profile(1)
    for three, one in zip(seen.steps, once.steps, strict=True):
        assert (three.cycles, three.exchanged) == (3 * one.cycles, 3 * one.exchanged)
        assert three.account.exchanged == one.exchanged > 0
    assert seen.exchanged == sum(step.exchanged for step in seen.steps) == 3 * once.exchanged
    each, cells = [step.exchanged for step in once.steps], [f"<td>{step.exchanged}</td>" for step in once.steps]
    report.show(seen, console)
    for text in (str(seen), console.file.getvalue()):
        lines = [next(line for line in text.splitlines() if step.name in line) for step in seen.steps]
        assert [str(number) in line.split() for number, line in zip(each, lines, strict=True)] == [True, True]
    rows = report.to_html(seen).split("<h2>Steps")[1].split("</table>")[0].split("<tr>")[2:]
    assert [cell in row for cell, row in zip(cells, rows, strict=True)] == [True, True]
    assert [step["exchanged"] for step in seen.to_json()["steps"]] == each


def test_json_holds_the_totals() -> None:
    seen = profile()
    data = json.loads(json.dumps(seen.to_json()))
    assert data["cycles"] == sum(step["count"] * step["cycles"] for step in data["steps"]) == seen.cycles
    assert sum(data["bytes_in"]) == data["exchanged"]
    assert max(data["memory"]["peak"]) == seen.memory.peak_bytes
    assert sum(data["memory"]["categories"].values()) == seen.memory.peak_bytes


def test_trace_covers_the_run(tmp_path: Path) -> None:
    seen = profile()
    report.write_chrome(seen, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    chip = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert sum(event["args"]["cycles"] for event in chip) == seen.cycles
    tile = [e for e in events if e["ph"] == "X" and e["tid"] == 4 and e["cat"] == "compute"]
    assert sum(event["args"]["cycles"] for event in tile) == seen.compute_by_tile[3] == 3 * 6 * 13
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"chip", *(f"tile {t}" for t in range(6))}


def test_page_is_well_formed_and_self_contained(tmp_path: Path) -> None:
    report.write_html(profile(), tmp_path / "page.html", "a <title>")
    page = (tmp_path / "page.html").read_text()
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            if tag != "meta":
                open_tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(page)
    assert not open_tags
    assert "a &lt;title&gt;" in page
    assert "move &amp; go" in page
    assert "prefers-color-scheme:dark" in page
    peak = profile().memory.peak_bytes
    assert f"tile 0 to 5; the highest bar is {peak:,} bytes; a tile has 638,976 bytes, far above the picture" in page
    data = page.split('id="profile">')[1].split("</script>")[0]
    assert json.loads(data)["memory"]["fullest_tile"] == profile().memory.tile


@pytest.mark.parametrize("width, dark", first(2, [(1200, False), (500, True), (1200, True), (500, False)]))
def test_chromium_shows_the_page_without_overflow(tmp_path: Path, width: int, dark: bool) -> None:
    check_page(report.to_html(profile(), "a title"), tmp_path, width, dark=dark)


def test_the_page_has_a_cycle_axis_names_of_steps_operations_tiles_variables_and_the_program() -> None:
    seen = profile()
    page = report.to_html(seen, names={"move & go": ("forward", "move")})
    axis = page.split('class="ticks">')[1].split("</div>")[0]
    assert [part.split(">")[1].split("<")[0] for part in axis.split("<span")[1:]][:3] == ["0", "200", "400"]
    assert f"cycles; in all {seen.cycles:,}, {seen.microseconds:,.2f} us" in page
    numbers = page.split('class="numbers">')[1].split("</div>")[0]
    assert [part.split(">")[1].split("<")[0] for part in numbers.split("<span")[1:]] == ["1", "1", "1", "2", "2", "2"]
    assert '<ol class="named"><li>move &amp; go</li><li>copy y -&gt; z</li></ol>' in page
    assert "<td>forward</td><td>move</td><td>1</td>" in page
    assert "<pre>repeat 3 times\n  move &amp; go\n  copy y -&gt; z</pre>" in page
    tile = (3, *(int(column[3]) for column in (seen.compute_by_tile, seen.bytes_in, seen.bytes_out, seen.memory.peak)))
    assert "<tr>" + "".join(f"<td>{value:,}</td>" for value in tile) + "</tr>" in page
    assert all(
        f"<td>{name.replace('<', '&lt;').replace('>', '&gt;')}</td>" in page for name, _ in seen.memory.variables
    )


def test_operations_add_up_to_the_profile() -> None:
    seen = profile()
    found = report.by_operation(seen, {"move & go": ("forward", "move")})
    assert {(each.role, each.operation) for each in found} == {("forward", "move"), ("copy", "copy")}
    assert sum(each.cycles for each in found) == seen.cycles
    assert sum(each.bytes for each in found) == seen.exchanged
    assert [sum(getattr(each, name) for each in found) for name in ("compute", "exchange", "sync")] == [
        seen.compute_cycles, seen.exchange_cycles, seen.sync_cycles,
    ]  # fmt: skip
    assert [each.label for each in found if each.role == "copy"] == ["copy"]


def labelled(*names: str, joined: int = 0) -> Profile:
    """One compute set of each name, those of the last `joined` at once."""
    graph = Graph(Target("gc200", tiles=6))
    sets = []
    for name in names:
        x, y = (graph.add_variable("float32", (4, 5)) for _ in "xy")
        graph.set_tile_mapping(x, 4)
        graph.set_tile_mapping(y, 5)
        sets.append(graph.add_compute_set(name))
        graph.add_vertices(sets[-1], Move, [0, 1, 2, 3], {"x": x, "y": y})
    if joined:
        sets[-joined:] = [graph.join(sets[-joined:], f"{names[-joined]}: and {joined - 1} more")]
    return Engine(graph, Sequence(*map(Execute, sets))).profile()


def test_names_with_colons_are_found_by_the_longest_label_that_fits() -> None:
    seen = labelled("a:b.dot.1", "a:b.dot.1: choice", "a:b: c.add.2", "a.neg.3: new: x", "d:e")
    names = {"a:b.dot.1": ("forward", "dot"), "a:b: c.add.2": ("forward", "add"), "a.neg.3": ("update", "neg"),
             "a": ("wrong", "wrong")}  # fmt: skip
    found = {each.label: (each.steps, each.cycles) for each in report.by_operation(seen, names)}
    each = seen.cycles // 5
    assert found == {"forward dot": (2, 2 * each), "forward add": (1, each), "update neg": (1, each),
                     "execute": (1, each)}  # fmt: skip
    own = report.by_operation(seen, step_names(seen))
    assert sorted(each.label for each in own) == sorted(step.name for step in seen.steps)


def test_a_step_of_several_operations_counts_for_all_of_them_together() -> None:
    names = {"x": ("forward", "add"), "y": ("forward", "add"), "z": ("update", "add"), "w": ("backward", "square")}
    for those, label in ((("x", "y"), "forward add"), (("z", "y", "x"), "forward, update add"),
                         (("y", "z"), "forward, update add"), (("w", "x: again"), "backward, forward add, square"),
                         (("x", "other"), "execute, forward add, execute")):  # fmt: skip
        seen = labelled("w", *those, joined=len(those))
        assert seen.steps[1].name == f"{those[0]}: and {len(those) - 1} more"
        assert seen.steps[1].operations == those
        assert [step["operations"] for step in seen.to_json()["steps"]] == [["w"], list(those)]
        found = {each.label: each.cycles for each in report.by_operation(seen, names)}
        assert found == {"backward square": seen.steps[0].cycles, label: seen.steps[1].cycles}
        own = report.by_operation(seen, step_names(seen))
        assert {each.label for each in own} == {step.name for step in seen.steps}


WHOLE = {
    "cycles": 7, "compute_cycles": 4, "exchange_cycles": 2, "sync_cycles": 1, "exchanged": 8,
    "memory": {"peak": [1, 2]},
    "operations": [dict(zip(Operation._fields, ("forward", "dot", 1, 7, 4, 2, 1, 8), strict=True))],
}  # fmt: skip


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(WHOLE))
    assert read_data(tmp_path) == WHOLE
    assert side_by_side(read_data(tmp_path), read_data(tmp_path / "profile.json"))[-1] == (
        "cycles of forward dot",
        7,
        7,
    )


@pytest.mark.parametrize(
    "other",
    [
        {}, [], 3, None, "text", [WHOLE], {"operations": []}, {"operations": 3, "cycles": 1}, {"operations": [{}]},
        {"operations": [[1]]}, *({name: WHOLE[name] for name in WHOLE if name != lost} for lost in WHOLE),
        *({**WHOLE, name: wrong} for name in WHOLE for wrong in (None, [], {}, "x", [[]], math.inf)),
        {**WHOLE, "memory": {"peak": []}}, {**WHOLE, "memory": {"peak": ["x"]}},
        {**WHOLE, "operations": [{**WHOLE["operations"][0], "cycles": "many"}]},  # type: ignore[index]
        {**WHOLE, "operations": [{**WHOLE["operations"][0], "cycles": None}]},  # type: ignore[index]
    ],
)  # fmt: skip
def test_another_json_is_no_profile(other: object, tmp_path: Path) -> None:
    if other == {**WHOLE, "operations": []} or other == {**WHOLE, "operations": {}}:
        return  # a program without steps
    path = tmp_path / "p.json"
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"p\.json is no profile that `profile --out` wrote"):
        read_data(path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[" * 100_000, b"\x00", b'{"operations": [{"a": 1}], "cycles": 1}']
)
def test_what_is_no_json_is_no_profile(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"p\.json is no profile that `profile --out` wrote"):
        read_data(tmp_path / "p.json")


def test_two_profiles_are_set_beside_each_other_by_the_longest_of_either() -> None:
    """What only the second has stands where its cycles put it."""

    def data(**cycles: int) -> dict[str, object]:
        each = {"operation": "", "steps": 1, "compute": 0, "exchange": 0, "sync": 0, "bytes": 0}
        operations = [{"role": name, **each, "operation": name, "cycles": n} for name, n in cycles.items()]
        totals = dict.fromkeys(("cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "exchanged"), 7)
        return {**totals, "memory": {"peak": [1, 9, 3]}, "operations": operations}

    rows = side_by_side(data(dot=50, add=20), data(dot=40, sort=30, add=60))
    assert rows[5:] == [("bytes of the fullest tile", 9, 9), ("cycles of add", 20, 60), ("cycles of dot", 50, 40),
                        ("cycles of sort", 0, 30)]  # fmt: skip
    assert [ratio(row) for row in rows[-3:]] == ["3.000", "0.800", "-"]


@pytest.mark.parametrize("of", [report.roofline, report.roofs_of_steps, report.by_layer, report.by_operation])
def test_no_profile_is_refused_in_words(of: Any) -> None:
    """As the direct engine has none."""
    with pytest.raises(TypeError, match="profile must be a Profile, not None"):
        of(None)
