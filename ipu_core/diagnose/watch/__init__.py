"""Watching a run: what its values are like and what their rounding does to them, every so many steps, in one file."""

from ipu_core.diagnose.watch.record import Record
from ipu_core.diagnose.watch.watch import Watch

__all__ = ["Record", "Watch"]
