"""The picture: every precision drawn and named, in its colour, and a PNG of the promised size."""

import struct
from pathlib import Path

import numpy as np
import pytest

from ipu_core.study.plot import COLOURS, _apart, in_lines, plot

PRECISIONS = ["fp32.32", "fp16.16/nearest"]


def results(**more: float) -> list[dict[str, object]]:
    steps = np.arange(80)
    return [
        {
            "precision": name,
            "seed": seed,
            "losses": (2 * np.exp(-steps / 30) + 0.1 * (k + seed)).tolist(),
            **more,
        }
        for k, name in enumerate(PRECISIONS)
        for seed in range(3)
    ]


def test_every_precision_has_a_curve_a_band_and_a_name_in_one_colour() -> None:
    axes = plot(results(), PRECISIONS, "title").figure.axes
    assert len(axes) == 1
    curves = [line for line in axes[0].lines if len(line.get_xdata()) > 2]
    assert [line.get_color() for line in curves] == list(COLOURS[:2])
    assert len(axes[0].collections) == 2
    assert {text.get_text() for text in axes[0].texts} == set(PRECISIONS)


def test_panels_appear_with_their_measures() -> None:
    figure = plot(results(test_accuracy=0.9, lost_updates=0.5), PRECISIONS, "title").figure
    assert [axes.get_title(loc="left").split()[0] for axes in figure.axes] == ["training", "test", "single"]


def test_png_has_its_size(tmp_path: Path) -> None:
    picture = plot(results(test_accuracy=0.9), PRECISIONS, "title")
    picture.save(tmp_path / "c.png")
    head = (tmp_path / "c.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (1664, 784)
    assert picture._repr_png_()[:4] == b"\x89PNG"


def test_a_curve_that_diverges_is_still_drawn(tmp_path: Path) -> None:
    broken = results()
    broken[3]["losses"] = [1.0] * 40 + [float("nan")] * 40
    picture = plot(broken, PRECISIONS, "title")
    picture.save(tmp_path / "c.png")
    assert {text.get_text() for text in picture.figure.axes[0].texts} == {PRECISIONS[0], f"{PRECISIONS[1]}\ndiverged"}


@pytest.mark.parametrize(
    "losses", [[0.0] * 9, [1.0, -1.0, 0.5], [float("nan")] * 9, [1.0, float("inf"), 1.0], [1e-300] * 9, [1.0]]
)
def test_losses_that_no_logarithm_has_are_drawn_without_a_warning(losses: list[float], tmp_path: Path) -> None:
    points = [{"precision": name, "seed": 0, "losses": losses} for name in PRECISIONS]
    plot(points, PRECISIONS, "title").save(tmp_path / "c.png")


def test_long_names_are_broken_where_a_setting_ends(tmp_path: Path) -> None:
    assert in_lines("fp16.16/stochastic", 22, 3) == "fp16.16/stochastic"
    assert in_lines("fp16.16/stochastic/weights=float32", 22, 3) == "fp16.16/stochastic\nweights=float32"
    assert in_lines("a/bb/ccc/dddd", 4, 2) == "a/bb\ncc …"
    assert in_lines("mlperf-bert", 8, 2) == "mlperf-…"
    names = ["fp16.16/stochastic" + "/weights=float32/moments=float16" * count for count in (1, 2, 9)]
    points = [{"precision": name, "seed": 0, "losses": [2.0, 1.0], "test_accuracy": 0.5} for name in names]
    picture = plot(points, names, "title " * 60)
    picture.save(tmp_path / "c.png")  # a warning here would mean that the names leave no room
    heights = [text.get_position()[1] for text in picture.figure.axes[0].texts]
    assert 0 <= min(heights) <= max(heights) <= 1


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no finished point"):
        plot([], PRECISIONS, "title")


def test_labels_move_apart_as_little_as_needed() -> None:
    assert np.allclose(_apart([0.1, 0.5], [0.1] * 2), [0.1, 0.5])
    assert np.allclose(_apart([0.5, 0.5, 0.5], [0.1] * 3), [0.4, 0.5, 0.6])
    moved = _apart([0.10, 0.12, 0.21, 0.9], [0.1] * 4)
    assert np.all(np.diff(moved) > 0.1 - 1e-12)
    assert np.isclose(moved[-1], 0.9)
    # A label of three lines takes as much as it is high, and none leaves the panel.
    assert np.allclose(_apart([0.5, 0.5], [0.3, 0.1]), [0.4, 0.6])
    assert np.allclose(_apart([0.0, 0.01], [0.1, 0.3]), [0.05, 0.25])
    assert np.allclose(_apart([0.99, 1.0], [0.1, 0.1]), [0.85, 0.95])


def test_every_measure_has_a_panel_with_its_unit_and_ticks_that_differ(tmp_path: Path) -> None:
    points = results(**{"distance [m]": 123.4, "test_accuracy": 0.9, "perplexity": 7.5})
    for k, point in enumerate(points):
        point["test_accuracy"] = 0.9 + 1e-5 * k
    figure = plot(points, PRECISIONS, "title").figure
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == ["distance [m]", "test accuracy", "perplexity"]
    figure.savefig(tmp_path / "c.png")
    ticks = [text.get_text() for text in figure.axes[2].get_xticklabels()]
    assert len(set(ticks)) == len(ticks) > 1
    assert all(tick.endswith(" %") for tick in ticks)


def test_a_picture_is_saved_as_matplotlib_s_figures_are(tmp_path: Path) -> None:
    picture = plot(results(), PRECISIONS, "title")
    picture.savefig(tmp_path / "c.svg")
    assert "<svg" in (tmp_path / "c.svg").read_text()
    picture.savefig(tmp_path / "c.png", dpi=50)
    assert struct.unpack(">II", (tmp_path / "c.png").read_bytes()[16:24]) == (520, 245)


@pytest.mark.parametrize("where", ["title", "measure"])
def test_a_dollar_is_no_formula(where: str, tmp_path: Path) -> None:
    words = r"from $5 to $6 $\foo$"
    measured = {words: 1.0} if where == "measure" else {}
    plot(results(**measured), PRECISIONS, words if where == "title" else "").save(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 10_000
