"""A self-contained page of HTML that follows a browser's dark mode: its frame, tables and pictures in SVG."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

WIDTH: Final = 1000
"""Of a picture, in its own units; a page shows it as wide as there is room."""
_INK: Final = {"ink": "#222", "page": "#fff", "line": "#ddd", "faint": "#666"}
_DARK_INK: Final = {"ink": "#ddd", "page": "#17191c", "line": "#3a3d42", "faint": "#9a9da3"}
_RULES: Final = (
    ":root{color-scheme:light dark}"
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:1100px;color:var(--ink);background:var(--page)}"
    "h1{font-size:1.5em;overflow-wrap:anywhere}h2{margin-top:1.6em}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 10px;text-align:right;"
    "border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}"
    "td:first-child{min-width:8em;max-width:30em}td:first-child,p{overflow-wrap:anywhere}"
    "svg{max-width:100%;border:1px solid var(--line)}line{stroke:var(--ink)}"
    ".key span{display:inline-block;width:1em;height:1em;margin:0 .3em 0 1em;vertical-align:-.1em}"
)


def page(title: str, parts: Iterable[str], light: Mapping[str, str], dark: Mapping[str, str], rules: str = "") -> str:
    """The whole text of a page.

    Args:
        title: In words.
        parts: HTML, below the title.
        light, dark: Colours by name; a class of each name fills and colours with it.
        rules: More CSS.
    """
    named = "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in light)
    colours = f"{_colours({**_INK, **light})}@media(prefers-color-scheme:dark){{{_colours({**_DARK_INK, **dark})}}}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
        f"<style>{colours}{_RULES}{named}{rules}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>"
    )


def _colours(colours: Mapping[str, str]) -> str:
    return ":root{" + "".join(f"--{name}:{colour};" for name, colour in colours.items()) + "}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; whole numbers are written with commas."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))


def key(names: Mapping[str, str]) -> str:
    """What the colours mean: words by class."""
    shown = "".join(f'<span class="{name}"></span>{html.escape(words)}' for name, words in names.items())
    return f'<p class="key">{shown}</p>'


def squeezed(height: int, shapes: Iterable[str]) -> str:
    """A picture without words, which is squeezed, not cut, where the page is narrow."""
    box = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none"'
    return f"<svg {box}>{''.join(shapes)}</svg>"


def box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A rectangle of a class's colour, with words that a browser shows over it (already escaped)."""
    title = f"<title>{tip}</title>" if tip else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.02):.2f}" height="{height:.2f}"'
    return f'<rect {place} class="{kind}">{title}</rect>'
