"""What headless Chromium makes of a page: whether anything lies outside, and how ink stands out from the ground."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MEASURE = """<script>
const doc = document.documentElement, wide = [...document.querySelectorAll('body *')].filter(
  e => !e.closest('.wide,pre') && e.getBoundingClientRect().right > doc.clientWidth + 1);
const seen = getComputedStyle(document.body), beyond = doc.scrollWidth - doc.clientWidth;
document.body.dataset.seen = [beyond, wide.length, seen.color, seen.backgroundColor].join(';');
</script>"""


class Seen(NamedTuple):
    """A page in a window: pixels and elements that reach beyond it; brightness of ink and ground, from 0 to 255."""

    beyond: int
    outside: int
    ink: float
    ground: float


def shown_in(page: str, folder: Path, width: int, *, dark: bool = False) -> str:
    """The document that Chromium makes of the text of a page, with all that is folded open, in a window of a width."""
    if BROWSER is None:
        pytest.skip("there is no Chromium here")
    path = folder / "page.html"
    path.write_text(page.replace("<details>", "<details open>").replace("</body>", f"{MEASURE}</body>"), "utf-8")
    scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    shown = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         f"--window-size={width},900", "--dump-dom", *scheme, path.as_uri()],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return shown.stdout


def look_at(page: str, folder: Path, width: int, *, dark: bool) -> Seen:
    """Opens the text of a page and measures it."""
    found = re.search(r'data-seen="([^"]*)"', shown_in(page, folder, width, dark=dark))
    assert found is not None
    beyond, outside, *colours = found[1].split(";")
    ink, ground = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours)
    return Seen(int(beyond), int(outside), ink, ground)


def check_page(page: str, folder: Path, width: int, *, dark: bool) -> None:
    """Nothing lies outside, and what is written stands out, light on dark where that is asked for."""
    seen = look_at(page, folder, width, dark=dark)
    assert (seen.beyond, seen.outside) == (0, 0)
    assert abs(seen.ink - seen.ground) > 150
    assert (seen.ground < seen.ink) == dark
