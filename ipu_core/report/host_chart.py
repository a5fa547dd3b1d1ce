"""What the host sends and gets along a run: when, how much, at which rate, and how much a sample."""

import html
from collections.abc import Sequence
from typing import Any, Final

from ipu_core.engine.profile import HostTransfer, Profile
from ipu_core.report.charts import chart, text
from ipu_core.report.page import WIDTH, box, table

_LEFT: Final = 90.0
_LANE: Final = 34.0
_SHOWN: Final = 400  # executions of one transfer; more are drawn as one bar from the first to the last
COLUMNS: Final = ("stream", "passes", "bytes", "runs", "in all", "first at", "takes", "rate")


def host_part(profile: Profile, samples: int | None = None) -> str:
    """The picture and the table; words where nothing passes.

    Args:
        profile: of any program.
        samples: of one run; None: nobody said.
    """
    if not profile.host:
        return "<p>Nothing passes between the host and the tiles.</p>"
    columns = COLUMNS if samples is None else (*COLUMNS, "bytes a sample")
    rows = [host_row(each, profile, samples) for each in profile.host]
    return _lanes(profile) + table(columns, rows)


def host_row(each: HostTransfer, profile: Profile, samples: int | None) -> tuple[Any, ...]:
    """One transfer in words."""
    first, takes = (1e6 * profile.target.seconds(cycles) for cycles in (each.begin, each.cycles))
    way, rate = "to the tiles" if each.to_tiles else "to the host", f"{each.bytes_per_second / 1e9:.3g} GB/s"
    cells = (
        each.name,
        way,
        each.bytes,
        each.runs,
        each.bytes * each.runs,
        f"{first:,.2f} us",
        f"{takes:,.2f} us",
        rate,
    )
    return cells if samples is None else (*cells, f"{each.bytes * each.runs / samples:,.6g}")


def _lanes(profile: Profile) -> str:
    """Time across, a lane for each way."""
    shapes = []
    scale = (WIDTH - _LEFT - 5) / max(1, profile.cycles)
    for lane, (to_tiles, name) in enumerate(((True, "to the tiles"), (False, "to the host"))):
        top = 5 + lane * _LANE
        shapes.append(text(4, top + 18, name))
        shapes.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - 5}" y1="{top + 26}" y2="{top + 26}"/>')
        for each in profile.host:
            if each.to_tiles is to_tiles:
                tip = html.escape(f"{each.name}: {each.bytes:,} bytes, {each.runs:,} times")
                for begin, cycles in _bars(each):
                    width = max(1.0, cycles * scale)  # a few bytes would be invisible
                    shapes.append(box(_LEFT + begin * scale, top + 2, width, 24, "exchange", tip))
    words = f"cycles; in all {profile.cycles:,}, {profile.microseconds:,.2f} us"
    shapes.append(text(_LEFT, 2 * _LANE + 20, "0", "start", "faint"))
    shapes.append(text(WIDTH - 5, 2 * _LANE + 20, words, "end", "faint"))
    return chart(2 * _LANE + 28, shapes)


def _bars(each: HostTransfer) -> Sequence[tuple[int, int]]:
    """Begin and length of what is drawn of a transfer."""
    if each.runs > _SHOWN:
        return [(each.begin, (each.runs - 1) * each.every + each.cycles)]
    return [(each.begin + number * each.every, each.cycles) for number in range(each.runs)]
