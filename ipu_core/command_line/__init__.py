"""The command line of ipu_core: its options, what they stand for, and the commands that they are of."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.command_line import stands_for as stands_for

# Loaded when asked for: most command lines are typed in full.
__getattr__ = lazy_names(__name__, {"stands_for": ""})
