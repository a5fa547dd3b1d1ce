"""Models of one's own, found in files by the command line."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.own import models as models

# Loaded when asked for: the command line shows its bars before what captures modules is imported.
__getattr__ = lazy_names(__name__, {"models": ""})
