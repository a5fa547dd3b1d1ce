"""Convergence studies: one model trained in several precisions and seeds, compared, stored and drawn."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.study import command as command
    from ipu_core.study import profiles as profiles

# Loaded when asked for: the command line shows its bars before what trains is imported.
__getattr__ = lazy_names(__name__, {"command": "", "profiles": ""})
