"""Watching a run: what its values are like and what their rounding does to them, every so many steps, in one file."""

from ipu_core.train.watch.record import Record
from ipu_core.train.watch.watch import Watch

__all__ = ["Record", "Watch"]
