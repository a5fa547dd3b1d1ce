"""Bars by tile or step, and those of what is chosen on the page: a step's bytes by tile, a variable's tiles."""

import html
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.report.page import WIDTH, box, squeezed

HEIGHT: Final = 120
_EMPTY: Final = 4  # a limit this many times above all values would leave their picture empty
RULES: Final = ".choose{display:flex;gap:1em;flex-wrap:wrap}.choose select{max-width:100%;font:inherit}"


def limited_bars(values: Any, limit: int, along: str) -> str:
    """Bars over an index, with the limit as a line where it is near; many values share a bar, which shows the largest.

    Args:
        values: bytes.
        limit: bytes of a tile.
        along: what the index counts, in words.
    """
    largest = int(values.max(initial=0))
    far = largest * _EMPTY < limit
    top = max(1, largest if far else max(limit, largest))
    bars = _bars(values, top, limit)
    if not far:
        line = HEIGHT - HEIGHT * limit / top
        bars.append(f'<line x1="0" x2="{WIDTH}" y1="{line:.1f}" y2="{line:.1f}"/>')
    shown = f"{limit:,} bytes" + (", far above the picture" if far else ", the line")
    return f"{squeezed(HEIGHT, bars)}<p>{along}; the highest bar is {largest:,} bytes; a tile has {shown}</p>"


def _bars(values: Any, top: int, limit: int | None = None) -> list[str]:
    groups = np.array_split(values, min(len(values), WIDTH)) if len(values) else []
    width = WIDTH / max(1, len(groups))
    shapes = []
    for i, group in enumerate(groups):
        most = int(group.max())
        size = HEIGHT * most / top
        kind = "sync" if limit is not None and most > limit else "memory"
        shapes.append(box(i * width, HEIGHT - size, width, size, kind))
    return shapes


def chosen(name: str, place: str, first: Ints, unit: str) -> str:
    """Bars by tile of what a reader chooses; where no script runs they are of the first choice.

    Args:
        name: of the part of the page, "step" or "variable", which its script fills.
        place: in words, what is chosen.
        first: the first choice's figures by tile.
        unit: of these.
    """
    label = f'<label>{html.escape(place)} <select id="{name}"></select></label>'
    more = '<label>of it <select id="figure"></select></label>' if name == "step" else ""
    words = column_words(first, unit)
    return (
        f'<div class="choose">{label}{more}</div><div id="{name}-bars">'
        f"{squeezed(HEIGHT, _bars(first, max(1, int(first.max(initial=0)))))}</div>"
        f'<p id="{name}-words">{words}</p>'
    )


def column_words(column: Ints, unit: str) -> str:
    """What the bars of a choice show, as the page's script says it, too."""
    held = int(np.count_nonzero(column))
    tiles = f"tile 0 to {column.size - 1:,}, {held:,} of them have some"
    return f"{tiles}; in all {int(column.sum()):,} {unit}, at most {int(column.max(initial=0)):,} on one"


def filled(runs: Sequence[Sequence[int]], tiles: int) -> Ints:
    """A column as (first tile, last tile, figure) by tile."""
    column = np.zeros(tiles, np.int64)
    for first, last, figure in runs:
        column[first : last + 1] = figure
    return column


SCRIPT: Final = """
const data = JSON.parse(document.getElementById('profile').textContent), tiles = data.target.tiles;
const get = id => document.getElementById(id), count = x => x.toLocaleString('en-US');
const unit = figure => figure === 'compute' ? 'cycles' : 'bytes';
const fill = (select, names) => names.forEach((name, i) => select.add(new Option(name, i)));
function draw(id, runs, unit) {
  const column = new Array(tiles).fill(0);
  for (const [first, last, figure] of runs) column.fill(figure, first, last + 1);
  const bars = Math.min(tiles, 1000), most = Math.max(1, ...column), svg = get(id + '-bars').firstElementChild;
  const ns = 'http://www.w3.org/2000/svg', width = 1000 / bars, each = Math.floor(tiles / bars), more = tiles % bars;
  svg.replaceChildren();
  for (let i = 0, at = 0; i < bars; i++) {
    const size = each + (i < more ? 1 : 0), high = 120 * Math.max(...column.slice(at, at + size)) / most;
    const bar = document.createElementNS(ns, 'rect');
    for (const [name, value] of [['x', i * width], ['y', 120 - high], ['width', width], ['height', high]])
      bar.setAttribute(name, value.toFixed(2));
    bar.setAttribute('class', 'memory');
    svg.append(bar);
    at += size;
  }
  const held = column.filter(x => x).length, total = column.reduce((a, b) => a + b, 0);
  get(id + '-words').textContent = `tile 0 to ${count(tiles - 1)}, ${count(held)} of them have some; in all ` +
    `${count(total)} ${unit}, at most ${count(Math.max(...column))} on one`;
}
const steps = data.by_tile.steps, held = data.memory.held, figure = get('figure');
function choose() {
  const before = figure.selectedOptions[0]?.text, names = Object.keys(steps[get('step').value]);
  figure.replaceChildren();
  fill(figure, names);
  figure.value = Math.max(0, names.indexOf(before));
  show();
}
function show() {
  const name = figure.selectedOptions[0]?.text;
  draw('step', name ? data.by_tile.columns[steps[get('step').value][name]] : [], unit(name));
}
const place = () => draw('variable', held.columns[held.variables[get('variable').value].column], 'bytes');
if (steps.length) {
  fill(get('step'), data.steps.map(step => step.name));
  get('step').value = get('step-bars').parentElement.dataset.first ?? 0;
  get('step').onchange = choose;
  figure.onchange = show;
  choose();
}
if (held.variables.length) {
  fill(get('variable'), held.variables.map(each => each.name + ': ' + each.type));
  get('variable').value = get('variable-bars').parentElement.dataset.first ?? 0;
  get('variable').onchange = place;
  place();
}
"""
"""Draws what is chosen, from the data that the page carries."""
