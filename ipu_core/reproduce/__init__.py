"""Published results, reproduced at a size for a small machine: the claim, our figure and the verdict."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.reproduce.catalogue import REPRODUCTIONS, reproduce
    from ipu_core.reproduce.finding import Finding, Progress, Reproduction, table

__all__ = ["NAMES", "REPRODUCTIONS", "Finding", "Progress", "Reproduction", "reproduce", "table"]

NAMES = (
    "sums", "accumulators", "tensor-cores", "fixed-point", "few-bits", "weights", "fp8", "four-bits", "reversible",
    "packing", "unit-bert", "stash", "graphs", "hmc", "small-batches",
)  # fmt: skip
"""The names of REPRODUCTIONS, for the command line's help, which imports nothing that trains."""

__getattr__ = lazy_names(
    __name__, {"catalogue": "REPRODUCTIONS reproduce", "finding": "Finding Progress Reproduction table"}
)
