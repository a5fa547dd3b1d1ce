"""Small studies for the tests of the command line, and what runs them."""

import json
import subprocess
import sys
from pathlib import Path

from ipu_core.__main__ import main

SMALL = ["--layers", "64-16-10", "--steps", "40", "--batch", "32", "--lr", "0.5", "--engine", "direct"]


TWO = ["--precisions", "fp32.32", "fp16.16/stochastic", "--seeds", "2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ipu_core", *arguments], capture_output=True, text=True, check=False)


def results(folder: Path) -> list[dict[str, object]]:
    """The whole lines; the last may be being written by another process."""
    *lines, _ = (folder / "results.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines]


def exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
