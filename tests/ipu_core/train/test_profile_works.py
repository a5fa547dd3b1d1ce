"""What a training step's profile knows of its equations, against counts of its own; rooflines, layers, lines, pages."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ipu_core import Adam, TrainLoop, nn, report
from ipu_core.chip.target import Target
from ipu_core.engine.profile import Profile
from ipu_core.ir.bodies import equations_of
from ipu_core.report.beside import differing, settings_in_words, side_by_side, to_data
from ipu_core.report.operations import Operation
from ipu_core.train.execution import Execution
from ipu_core.workloads.counts import counted
from tests.ipu_core.browser import check_page, shown_in

RNG = np.random.default_rng(4)
ROWS, IN, HIDDEN, OUT = 32, 48, 96, 8
PARAMS = {"first": {"weight": nn.he_normal(1, (IN, HIDDEN))}, "second": {"weight": nn.he_normal(2, (HIDDEN, OUT))}}
BATCH = RNG.normal(size=(ROWS, IN)).astype(np.float32), RNG.normal(size=(ROWS, OUT)).astype(np.float32)
TARGET = Target("gc200", tiles=16)


def loss(params, batch):
    x, y = batch
    with nn.name_scope("first", (x,)):
        h = nn.relu(x @ params["first"]["weight"])
    with nn.name_scope("second", (h,)):
        scores = h @ params["second"]["weight"]
    return nn.mse_loss(scores, y)


LINE = loss.__code__.co_firstlineno + 3  # of the first product


def made(precision: str = "fp16.16/stochastic", micro_batches: int = 1) -> TrainLoop:
    return TrainLoop(
        loss, PARAMS, BATCH, optimizer=Adam(1e-3), precision=precision, target=TARGET, micro_batches=micro_batches
    )


def profile_of(loop: TrainLoop) -> Profile:
    assert loop.profile is not None
    return loop.profile


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "fp32.32"])
def test_flops_and_bytes_are_those_of_the_equations(precision: str, micro_batches: int) -> None:
    loop = made(precision, micro_batches)
    profile = profile_of(loop)
    # Both products forward, the second's gradient of its input, and two of weights; none for the first's input.
    products = 2 * ROWS * (IN * HIDDEN + HIDDEN * OUT) + ROWS * HIDDEN * OUT
    counts = counted(loop.block)
    assert sum(n for name, n in counts.items() if name != "tile memory") == products
    assert profile.memory_bytes == counts["tile memory"]
    assert sum(row.flops for row in report.roofline(profile, {})) == profile.flops
    by_product = sum(
        step.count * profile.works[name].flops
        for step, names in zip(profile.steps, profile.counted, strict=True)
        for name in names
        if profile.works[name].operation == "dot"
    )
    assert by_product == 2 * products
    counted_once = [name for names in profile.counted for name in names]
    assert len(counted_once) == len(set(counted_once))
    for counts, step in zip(profile.counted, profile.steps, strict=True):
        for name in counts:
            own = [one for one, names in zip(profile.steps, profile.equations, strict=True) if name in names]
            assert step.account.compute_cycles == max(one.account.compute_cycles for one in own)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_share_of_peak_is_the_time_at_peak_over_the_time(micro_batches: int) -> None:
    profile = profile_of(made(micro_batches=micro_batches))
    roofs = {(row.role, row.operation): row for row in report.roofline(profile)}
    row = roofs["forward", "dot"]
    flops = 2 * ROWS * (IN * HIDDEN + HIDDEN * OUT)
    peak = 2 * 64 * 16 * TARGET.clock  # FP16.16: 64 multiply-accumulates a cycle and tile
    assert row.flops == flops
    assert row.peak == pytest.approx(peak)
    assert row.share == pytest.approx(flops / peak / (row.cycles / TARGET.clock))
    # Halves: operands and results, each once, weights in each micro-batch.
    weights = micro_batches * (IN * HIDDEN + HIDDEN * OUT)
    size = 2 * (ROWS * IN + ROWS * HIDDEN + ROWS * HIDDEN + ROWS * OUT + weights)
    assert (row.memory_bytes, row.intensity) == (size, flops / size)
    assert row.exchange_intensity == flops / row.exchange_bytes
    times = {"arithmetic": flops / peak, "tile memory": size / (24 * 16 * TARGET.clock),
             "exchange": row.exchange_bytes / (4 * 16 * TARGET.clock)}  # fmt: skip
    assert row.bound == max(times, key=lambda name: times[name])
    assert row.flops_per_second == pytest.approx(row.share * peak)


def test_rooflines_have_the_operations_of_the_profile() -> None:
    profile = profile_of(made())
    by_operation = {(one.role, one.operation): one for one in report.by_operation(profile)}
    for row in report.roofline(profile):
        assert row.link_seconds == 0 or (row.role, row.bound) == ("stream", "link")
        one = by_operation.pop((row.role, row.operation))
        assert (row.cycles, row.exchange_bytes) == (one.cycles, one.bytes)
        assert row.share is not None
        assert 0 <= row.share <= 1
    assert not by_operation
    steps = report.roofs_of_steps(profile)
    linked = sum(row.link_seconds for row in steps)
    assert linked == pytest.approx((profile.from_host + profile.to_host) / TARGET.host_bandwidth)
    assert [row.role for row in steps] == [step.name for step in profile.steps]
    for name in ("cycles", "flops", "memory_bytes", "exchange_bytes"):
        assert sum(getattr(row, name) for row in steps) == sum(getattr(row, name) for row in report.roofline(profile))


def test_what_the_target_has_no_rate_for_has_no_share() -> None:
    loop = made("fp32.32")
    alone = Target("c600", tiles=16)
    step = next(i for i, names in enumerate(loop.profile.counted) if any("dot" in name for name in names))
    moved = Profile(alone, 0, loop.profile.steps, loop.profile.memory, True, works=loop.profile.works)
    assert moved.peak_seconds(step) is None
    assert report.roofs_of_steps(moved)[step].share is None
    assert loop.profile.peak_seconds(step) > 0


def test_layers_add_up_to_the_profile() -> None:
    profile = profile_of(made())
    layers = report.by_layer(profile)
    names = {each.role for each in layers}
    assert {"first", "second"} <= names
    for total, name in ((profile.cycles, "cycles"), (profile.exchanged, "bytes"), (len(profile.steps), "steps")):
        assert sum(getattr(each, name) for each in layers) == total
    assert report.by_layer(profile, 1) == layers  # no name has dots here
    with pytest.raises(ValueError, match="depth must be at least 1, not 0"):
        report.by_layer(profile, 0)


def test_steps_have_the_line_that_asked_for_them() -> None:
    loop = made()
    profile = profile_of(loop)
    sources = {equation.name: equation.source for equation in equations_of(loop.block)}
    product = next(name for name in sources if name.startswith("first") and ".forward.dot" in name)
    number = next(i for i, names in enumerate(profile.equations) if product in names)
    line = f"{Path(__file__).name}:{LINE}"
    assert sources[product] == line
    assert line in profile.sources(number)
    printed = next(text for text in str(profile).splitlines() if text.startswith(profile.steps[number].name))
    assert printed.endswith(line) or f"{line}," in printed
    own = {line for number in range(len(profile.steps)) for line in profile.sources(number)}
    assert {one.partition(":")[0] for one in own} == {Path(__file__).name}  # none of the library's


def test_the_data_of_two_profiles_say_what_was_set_otherwise() -> None:
    loops = made(), made("fp32.32", 2)
    data = [
        to_data(profile_of(loop), settings=settings_in_words({**loop.training.record(), **loop.execution.record()}))
        for loop in loops
    ]
    found = {name: (first, second) for name, first, second in differing(*data)}
    assert found["precision.operands"] == ("float16", "float32")
    assert found["micro_batches"] == ("1", "2")
    assert not [name for name in found if name.startswith(("target", "optimizer"))]
    assert differing(data[0], data[0]) == []
    rows = {name: (first, second) for name, first, second in side_by_side(*data)}
    for side, loop in enumerate(loops):
        memory = profile_of(loop).memory
        assert rows["bytes of the fullest tile"][side] == memory.peak_bytes
        assert rows["bytes of the fullest tile without gaps"][side] == memory.without_gaps[memory.tile]
        assert rows["always live there"][side] + rows["not always live there"][side] == memory.peak_bytes
        assert sum(rows.get(f"  {name}", (0, 0))[side] for name in memory.categories) == memory.peak_bytes
        assert rows["floating-point operations"][side] == profile_of(loop).flops
        assert rows["nanoseconds"][side] == round(1e9 * profile_of(loop).seconds)
        assert rows["nanojoules, at least"][side] == round(1e9 * profile_of(loop).joules[0])
        assert rows["bytes from the host"][side] == profile_of(loop).from_host
    assert json.loads(json.dumps(data[0]))["roofline"][0]["bound"] == report.roofline(profile_of(loops[0]))[0].bound


def test_a_figure_that_an_earlier_version_did_not_write_is_left_out() -> None:
    older = to_data(profile_of(made()))
    for name in ("flops", "memory_bytes", "settings"):
        del older[name]
    del older["memory"]["categories"], older["memory"]["without_gaps"]
    labels = [row[0] for row in side_by_side(older, to_data(profile_of(made())))]
    assert "floating-point operations" not in labels
    assert "bytes of the fullest tile without gaps" not in labels
    assert "always live there" in labels


def test_the_page_shows_rooflines_layers_lines_host_and_bytes_of_a_sample() -> None:
    profile = profile_of(made())
    page = report.to_html(profile, settings={"batch": "32 rows"}, samples=ROWS)
    for row in report.roofline(profile):
        assert f"<td>{row.role}</td><td>{row.operation}</td><td>{row.cycles:,}</td><td>{row.flops:,}</td>" in page
    assert page.count("<circle ") == sum(bool(row.flops) for row in report.roofline(profile))
    assert "float16 into float16: 2.714 TFLOP/s" in page
    assert "<td>first</td>" in page
    assert f"{Path(__file__).name}:{LINE}" in page
    fed = next(each for each in profile.host if each.name == "stream feed batch.0")
    assert fed.bytes == 4 * ROWS * IN
    assert (
        f"<td>{4 * IN}</td></tr>"
        in page.split("<h2>From and to the host")[1].split("<td>stream feed batch.0</td>")[1].split("<tr>")[0]
    )
    assert "<td>batch</td><td>32 rows</td>" in page


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (500, True)])
def test_the_page_fits_its_window(tmp_path: Path, width: int, dark: bool) -> None:
    page = report.to_html(profile_of(made()), "a title", settings={"batch": "32 rows"}, samples=ROWS)
    check_page(page, tmp_path, width, dark=dark)


def test_a_reader_chooses_a_step_and_a_variable(tmp_path: Path) -> None:
    """The page's script shows of every choice what the profile has."""
    profile = profile_of(made())
    number = max(range(len(profile.steps)), key=lambda i: profile.steps[i].bytes_in.sum())
    held = next(v for v in profile.memory.held if v.name == "first.weight")
    clicks = (
        f"get('step').value = {number}; choose(); figure.value = "
        "[...figure.options].findIndex(option => option.text === 'bytes in'); show();"
        f"get('variable').value = {held.number}; place();"
        "document.body.dataset.chosen = get('step-words').textContent + '|' + get('variable-words').textContent;"
    )
    page = report.to_html(profile).replace("</body>", f"<script>{clicks}</script></body>")
    found = re.search(r'data-chosen="([^"]*)"', shown_in(page, tmp_path, 1200))
    assert found is not None
    step, variable = found[1].split("|")
    moved, by_tile = profile.steps[number].bytes_in, profile.memory.tiles_of("first.weight")
    for words, column in ((step, moved), (variable, by_tile)):
        assert f"{np.count_nonzero(column)} of them have some" in words
        assert f"in all {int(column.sum()):,} bytes, at most {int(column.max()):,} on one" in words


def test_operations_of_the_page_are_the_json() -> None:
    profile = profile_of(made())
    data = to_data(profile)
    assert [Operation(**each) for each in data["layers"]] == report.by_layer(profile)
    assert sum(step["count"] * step["flops"] for step in data["steps"]) == profile.flops
    assert sum(step["count"] * step["memory_bytes"] for step in data["steps"]) == profile.memory_bytes
    assert all(step["begin"] + step["cycles"] <= profile.cycles for step in data["steps"])
    assert math.isclose(sum(row["seconds"] for row in data["roofline"]), profile.seconds)
    assert Execution(target=TARGET).record()["target"]["tiles"] == data["target"]["tiles"]
