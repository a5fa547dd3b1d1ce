"""Published figures of the machine and of training on it, each beside ours: the ledger.

print(figures.ledger())                     # every light row: published, here, error, verdict, source
print(figures.ledger("gc200-peak-fp16.16")) # one, in full
figures.ledger(models=True).to_json()       # those that take minutes too
"""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.figures import command as command
    from ipu_core.figures.catalogue import ledger
    from ipu_core.figures.figure import Figure
    from ipu_core.figures.rows import Ledger, Row

__all__ = ["Figure", "Ledger", "Row", "ledger"]

__getattr__ = lazy_names(__name__, {"command": "", "catalogue": "ledger", "figure": "Figure", "rows": "Ledger Row"})
