"""A study's page: whole, by itself, without a network, and as headless Chromium shows it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ipu_core import Sgd, compare, nn
from ipu_core.diagnose.measure import LOWEST
from ipu_core.diagnose.watch import Record
from ipu_core.report.charts import Curve, exponent_bars, heat_map, line_chart
from ipu_core.study.files import point_file
from ipu_core.study.page import COLUMNS, _histograms, _shares
from ipu_core.study.results import Study
from tests.examples import first
from tests.ipu_core.browser import check_page

RNG = np.random.default_rng(5)
PARAMS = {"weight": RNG.normal(size=(8, 4)).astype(np.float32), "bias": np.zeros(4, np.float32)}
BATCHES = [{"x": RNG.normal(size=(6, 8)).astype(np.float32), "y": RNG.integers(0, 4, 6).astype(np.int32)}] * 3
PRECISIONS = ["fp32.32", "fp16.16/nearest"]


def loss(params, batch):
    return nn.softmax_cross_entropy(batch["x"] @ params["weight"] + params["bias"], batch["y"])


@pytest.fixture(scope="module")
def study() -> Study:
    made = compare(loss, PARAMS, BATCHES, PRECISIONS, optimizer=Sgd(1e-4), steps=12, seeds=2, engine="direct", watch=4,
                   title="a <study> & more")  # fmt: skip
    made.report = "weight: lost <by rounding>"
    return made


def shapes(text: str, kind: str) -> list[dict[str, str]]:
    """The attributes of all elements of a kind."""
    return [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each in re.findall(rf"<{kind} ([^>]*)>", text)]


def test_the_page_is_well_formed_and_asks_for_nothing(study: Study) -> None:
    page, opened = study.page(), list[str]()

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("link", "script", "img", "iframe")
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in ("meta", "line"):
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag != "line":
                assert opened.pop() == tag

    Checker().feed(page)
    assert not opened
    assert "url(" not in page
    assert "@import" not in page


def test_the_page_holds_what_the_study_does(study: Study) -> None:
    page = study.page()
    assert "<h1>a &lt;study&gt; &amp; more</h1>" in page
    assert '<pre id="report">weight: lost &lt;by rounding&gt;</pre>' in page
    for cell in study.table().rows[0]:
        assert f"<td>{cell}</td>" in page
    assert page.count("<polyline") == len(PRECISIONS)
    assert "group" in page.split("The plan of every sum")[1]
    points = re.findall(r"<summary>(.*? seed \d)</summary>", page)
    assert points == [f"{name} seed {seed}" for seed in range(2) for name in PRECISIONS]
    assert page.count("<h3>lost</h3>") == 2  # FP32 loses none
    assert page.count("<h3>exponents</h3>") == 4


def test_a_study_that_was_not_watched_has_a_page_without_looks(study: Study) -> None:
    plain = Study(study.title, study.precisions, study.settings, study.plan, study.results)
    assert "What rounding did" not in plain.page()
    assert "<h2>Why</h2>" not in plain.page()


def test_a_heat_map_puts_every_cell_in_its_row_and_column() -> None:
    values = np.array([[0.0, 0.5, 0.5, np.nan], [0.25, 0.25, 0.25, 0.25]])
    levels = np.array([[0, 1, 1, -1], [2, 2, 2, 2]])
    text = heat_map(["one", "other"], [0, 10, 20, 30], levels, ["a", "b", "c"], values, lambda x: f"{x:g}")
    first, second, third = shapes(text, "rect")
    assert (first["class"], second["class"], third["class"]) == ("a", "b", "c")
    assert float(second["x"]) == pytest.approx(float(first["x"]) + float(first["width"]), abs=0.02)
    assert float(second["width"]) == pytest.approx(2 * float(first["width"]), abs=0.02)
    assert float(third["width"]) == pytest.approx(4 * float(first["width"]), abs=0.02)
    assert (first["y"], second["y"]) == ("0.00", "0.00")
    assert float(third["y"]) > 0
    assert "<title>one, from step 10: 0.5</title>" in text


def test_a_curve_lies_between_its_ends_and_has_gaps_where_it_is_not_finite() -> None:
    steps = np.arange(1, 101)
    losses = np.geomspace(10.0, 0.1, 100)
    losses[40:60] = np.nan
    text = line_chart([Curve("a", steps, losses, losses, losses)])
    lines = shapes(text, "polyline")
    assert len(lines) == 2
    heights = [float(pair.split(",")[1]) for line in lines for pair in line["points"].split()]
    assert heights == sorted(heights)
    assert (min(heights), max(heights)) == (10.0, 290.0)


def test_bars_stand_over_their_exponents() -> None:
    counts = np.zeros(20)
    counts[5], counts[7] = 1, 4
    text = exponent_bars(np.zeros(20), counts, -10, [(-6, "smallest")], "weights")
    low, high = shapes(text, "rect")
    assert float(high["height"]) == pytest.approx(4 * float(low["height"]))
    assert "<title>2^-5: 20 %</title>" in text
    assert "<title>2^-3: 80 %</title>" in text
    assert "smallest" in text


def test_saving_writes_the_page_and_what_was_watched(study: Study, tmp_path: Path) -> None:
    folder = study.save(tmp_path / "kept")
    assert (folder / "page.html").read_text("utf-8") == study.page()
    for point, record in study.records.items():
        again = Record.read(point_file(folder, "watch", point))
        assert again.rows.tobytes() == record.rows.tobytes()
        assert again.steps.tolist() == [0, 4, 8]
    assert len(study.records) == 4
    assert all("record" not in result for result in study.results)


@pytest.mark.parametrize("width, dark", first(2, [(1200, False), (500, True), (1200, True), (500, False)]))
def test_chromium_shows_the_page_without_overflow(study: Study, tmp_path: Path, width: int, dark: bool) -> None:
    check_page(study.page(), tmp_path, width, dark=dark)


def looks(count: int) -> Record:
    """A record of three values in which nothing happened."""
    made = compare(loss, PARAMS, BATCHES, ["fp16.16/nearest"], optimizer=Sgd(0.1), steps=1, seeds=1, engine="direct",
                   watch=1)  # fmt: skip
    (record,) = made.records.values()
    rows = np.repeat(record.rows[:, :3], count, axis=0)
    for name in set(rows.dtype.names) - {"elements"}:
        rows[name] = 0
    rows["step"], rows["elements"] = np.arange(count)[:, None], 100
    return Record(record.values[:3], rows)


def test_a_column_of_several_looks_shows_their_largest_share() -> None:
    record = looks(2 * COLUMNS)
    record.rows["underflow"][7, 1] = 60  # column 3
    record.rows["elements"][8:10, 1] = 0  # column 4
    before, column, after = shapes(_shares(record, "underflow", np.array([1])), "rect")
    assert (before["class"], column["class"], after["class"]) == ("share0", "share6", "share0")
    assert float(before["width"]) == pytest.approx(3 * float(column["width"]), abs=0.05)
    assert float(after["width"]) == pytest.approx((COLUMNS - 5) * float(column["width"]), abs=0.7)


def test_the_first_and_the_last_histogram_are_told_apart() -> None:
    record = looks(3)
    for look, exponent in enumerate((-8, -6, -4)):
        record.rows["histogram"][look, :, exponent - LOWEST] = 9
    record.rows["underflow"][0, 2] = 1
    bars = re.findall(r'class="(early|late)"><title>(2\^-?\d+)', _histograms(record))
    assert bars == [("early", "2^-8"), ("late", "2^-4")]
