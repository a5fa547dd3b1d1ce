"""Options of the command line as they are typed: what is no such value is refused in a line."""

import argparse
from pathlib import Path

from ipu_core.ir.passes.checkpoint_names import LAYERS
from ipu_core.train.arguments import Recompute, check_recompute

MOST = 1024  # seeds, workers or threads, of which lowprec takes no more


def scale(text: str) -> float | str:
    """A loss scale."""
    if text in ("automatic", "none"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, 'automatic' or 'none', not {text!r}") from None


def recompute(text: str) -> Recompute:
    """A share of the temporaries' peak, or names of parts, joined by commas."""
    names = text.split(",")
    try:
        if all(name == LAYERS or "." in name.strip("0123456789.") or "*" in name for name in names):
            return check_recompute(names)
        return check_recompute(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number between 0 and 1, or parts such as 'blocks.*' or 'layers', not {text!r}; "
            "MODEL stands before it"
        ) from None


def count(text: str) -> int:
    """A number of seeds, workers or threads."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"must be an integer from 1 to {MOST:,}, not {text!r}")
    return value


def folder(text: str) -> Path:
    """A folder, which need not exist."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder ('.' is this one)")
    return Path(text)
