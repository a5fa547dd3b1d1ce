"""Convergence studies: one model trained in several precisions and seeds, compared, stored and drawn."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.study import command as command

# What the command line asks for only when its bars are there.
__getattr__ = lazy_names(__name__, {"command": ""})
