"""Packing: several sequences, or graphs, side by side in one row of fixed size.

plan = packing.spfhp(packing.Histogram.of(lengths), 512, depth=3)   # packs, padding, efficiency, factor
rows = packing.pack(sequences, 512, depth=3)                        # tokens, positions, segments, starts
rows = packing.write(stream, "packed", 512)                         # the same in a folder, resumable
"""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.packing import command as command
    from ipu_core.packing.folder import PackedFolder, write
    from ipu_core.packing.graphs import PackedGraphs, pack_graphs
    from ipu_core.packing.histogram import Histogram
    from ipu_core.packing.plan import Packing
    from ipu_core.packing.rows import PackedRows, pack
    from ipu_core.packing.sequences import by_sequence
    from ipu_core.packing.strategies import lpfhp, nnlshp, spfhp

__all__ = [
    "NAMES", "Histogram", "PackedFolder", "PackedGraphs", "PackedRows", "Packing", "by_sequence", "lpfhp", "nnlshp",
    "pack", "pack_graphs", "spfhp", "write",
]  # fmt: skip

NAMES = ("wikipedia", "squad")
"""Histograms that come with the package: sequences of BERT's pre-training on Wikipedia, up to 512, and of SQuAD 1.1, up
to 384 (Krell et al. 2021, arXiv 2107.02027)."""

__getattr__ = lazy_names(
    __name__,
    {
        "command": "",
        "folder": "PackedFolder write",
        "graphs": "PackedGraphs pack_graphs",
        "histogram": "Histogram",
        "plan": "Packing",
        "rows": "PackedRows pack",
        "sequences": "by_sequence",
        "strategies": "lpfhp nnlshp spfhp",
    },
)
