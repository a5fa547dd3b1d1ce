"""The roofline picture: what every operation attains, below the roofs of the target, on logarithmic scales."""

import html
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from ipu_core.engine.profile import Profile
from ipu_core.report.charts import chart, text
from ipu_core.report.page import WIDTH, table
from ipu_core.report.roofs import Roof

_LEFT: Final = 70.0
_RIGHT: Final = WIDTH - 20.0
_TOP: Final = 16.0
_BOTTOM: Final = 300.0
_LEAST: Final = 1e-6  # of the highest roof: what attains less lies on the picture's floor
_NAMED: Final = 8  # of the longest; the others have their names where a browser shows them
_CHARACTER: Final = 6.5  # units of the width, about
_LINE: Final = 13
COLUMNS: Final = (
    "role", "operation", "cycles", "flops", "flops / byte of tile memory", "flops / byte exchanged", "TFLOP/s",
    "share of peak", "lowest roof",
)  # fmt: skip
RULES: Final = "svg circle{fill:var(--memory);fill-opacity:.75;stroke:var(--ink)}svg .roof{stroke:var(--ink)}"


def roof_rows(roofs: Sequence[Roof]) -> list[tuple[object, ...]]:
    """The table of operations."""
    return [
        (
            one.role, one.operation, one.cycles, one.flops, _number(one.intensity), _number(one.exchange_intensity),
            f"{one.flops_per_second / 1e12:.3g}", share_words(one), one.bound,
        )
        for one in roofs
    ]  # fmt: skip


def share_words(roof: Roof) -> str:
    """The share of peak in percent; nothing where there is no arithmetic or no figure."""
    return f"{100 * roof.share:.3g} %" if roof.share and roof.flops else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def roof_part(profile: Profile, roofs: Sequence[Roof]) -> str:
    """The picture and the table; words where nothing is known of what the steps compute."""
    shown = [one for one in roofs if one.intensity and one.flops_per_second]
    if not shown:
        return "<p>Nobody said what the steps of this program compute.</p>"
    return roof_chart(profile, shown) + table(COLUMNS, roof_rows(roofs))


class _Plane(NamedTuple):
    """The picture's logarithmic scales.

    Attributes:
        low, high: flops a byte, at its left and right.
        floor, top: flops a second, at its bottom and top.
    """

    low: float
    high: float
    floor: float
    top: float

    def x(self, intensity: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log(intensity / self.low) / math.log(self.high / self.low)

    def y(self, rate: float) -> float:
        share = math.log(max(rate, self.floor) / self.floor) / math.log(self.top / self.floor)
        return _BOTTOM - (_BOTTOM - _TOP) * share


def roof_chart(profile: Profile, roofs: Sequence[Roof]) -> str:
    """Circles at (flops a byte of tile memory, FLOP/s), the larger the more cycles, below memory's and peaks' roofs."""
    feed = profile.target.sram_bandwidth
    peaks = {
        work.formats: work.flops / seconds
        for work in profile.works.values()
        if work.flops and (seconds := work.seconds(profile.target))
    }
    most = max([*peaks.values(), *(one.flops_per_second for one in roofs)])
    across = [one.intensity for one in roofs if one.intensity]
    low, high = min(across) / 2, max(*across, most / feed) * 2
    least = max(min(one.flops_per_second for one in roofs) / 2, most * _LEAST)
    plane = _Plane(low, high, min(least, feed * low), 2 * most)
    shapes = [*_axes(plane), _roof(plane, low, feed * low, most / feed, most)]
    for formats, peak in sorted(peaks.items()):
        knee = peak / feed
        shapes.append(_roof(plane, knee, peak, high, peak))
        words = f"{formats[0]} into {formats[1]}: {peak / 1e12:,.4g} TFLOP/s"
        shapes.append(text(plane.x(knee) + 4, plane.y(peak) - 4, words, "start", "faint"))
    return chart(_BOTTOM + 40, [*shapes, *_circles(plane, roofs)])


def _roof(plane: _Plane, low: float, least: float, high: float, most: float) -> str:
    ends = plane.x(low), plane.y(least), plane.x(high), plane.y(most)
    return '<line class="roof" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(*ends)


def _circles(plane: _Plane, roofs: Sequence[Roof]) -> list[str]:
    """The operations, the longest first; names of long ones beside them, where no other name is."""
    longest = max(one.cycles for one in roofs)
    circles, names = list[str](), list[str]()
    taken: list[tuple[float, float, float]] = []  # first and last x of a name, and its y
    for one in sorted(roofs, key=lambda each: -each.cycles):
        x, y = plane.x(one.intensity or plane.low), plane.y(one.flops_per_second)
        radius = 3 + 12 * math.sqrt(one.cycles / longest)
        label = one.role if one.role == one.operation else f"{one.role} {one.operation}"
        tip = f"{label}: {_number(one.intensity)} flops a byte, {one.flops_per_second / 1e12:.3g} TFLOP/s"
        tip += f", {share_words(one) or 'no known share'} of peak, {one.cycles:,} cycles"
        circles.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{html.escape(tip)}</title></circle>')
        if len(circles) > _NAMED:
            continue
        left, length = x > (_LEFT + _RIGHT) / 2, _CHARACTER * len(label)
        first = x - radius - 2 - length if left else x + radius + 2
        for at in (y + 4, y - 10, y + 18, y - 24, y + 32):
            if at < _BOTTOM and all(
                abs(at - other) >= _LINE or first > b or first + length < a for a, b, other in taken
            ):
                taken.append((first, first + length, at))
                names.append(text(first + length if left else first, at, label, "end" if left else "start"))
                break
    return [*circles, *names]


def _axes(plane: _Plane) -> list[str]:
    shapes = []
    for power in range(math.ceil(math.log10(plane.low)), math.floor(math.log10(plane.high)) + 1):
        x = plane.x(10.0**power)
        shapes.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        shapes.append(text(x, _BOTTOM + 15, f"{10.0**power:g}", "middle"))
    for power in range(math.ceil(math.log10(plane.floor)), math.floor(math.log10(plane.top)) + 1):
        y = plane.y(10.0**power)
        shapes.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(text(_LEFT - 6, y + 4, f"{10.0 ** (power - 12):g}", "end"))
    shapes.append(text((_LEFT + _RIGHT) / 2, _BOTTOM + 32, "flops for each byte of tile memory", "middle", "faint"))
    shapes.append(text(4, _TOP - 4, "TFLOP/s", "start", "faint"))
    return shapes
