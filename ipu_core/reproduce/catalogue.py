"""All published results that are reproduced here, by name, and what makes and prints them."""

from collections.abc import Sequence

from ipu_core.reproduce.accumulators import ACCUMULATORS
from ipu_core.reproduce.few_bits import FEW_BITS
from ipu_core.reproduce.finding import table
from ipu_core.reproduce.fixed_point import FIXED_POINT
from ipu_core.reproduce.four_bits import FOUR_BITS
from ipu_core.reproduce.fp8 import FP8
from ipu_core.reproduce.graph_nets import GRAPHS
from ipu_core.reproduce.packed import PACKING
from ipu_core.reproduce.reversible import REVERSIBLE
from ipu_core.reproduce.sampled import HMC
from ipu_core.reproduce.small_batches import SMALL_BATCHES
from ipu_core.reproduce.stashed import STASH
from ipu_core.reproduce.sums import SUMS
from ipu_core.reproduce.tensor_cores import TENSOR_CORES
from ipu_core.reproduce.unit_bert import UNIT_BERT
from ipu_core.reproduce.weights import WEIGHTS
from ipu_core.study.typed import check_name

EACH = (
    SUMS, ACCUMULATORS, TENSOR_CORES, FIXED_POINT, FEW_BITS, WEIGHTS, FP8, FOUR_BITS, REVERSIBLE, PACKING, UNIT_BERT,
    STASH, GRAPHS, HMC, SMALL_BATCHES,
)  # fmt: skip
REPRODUCTIONS = {each.name: each for each in EACH}


def reproduce(name: str | None = None, seeds: Sequence[int] = (0, 1, 2), share: float = 1.0) -> int:
    """Makes one published result again, or all, and prints the claims beside our figures.

    Args:
        name: a key of REPRODUCTIONS; None: all.
        seeds: of every training run.
        share: of the usual number of steps; the verdicts are meant for 1.

    Returns:
        0, or 1 where a claim does not show.

    Raises:
        ValueError: an unknown name, or a share that is not positive.
    """
    if name is not None:
        check_name("result", name, REPRODUCTIONS)
    if not 0 < share <= 10:
        raise ValueError(f"share must be a number in (0, 10], not {share}")
    failed = False
    for study in REPRODUCTIONS.values() if name is None else [REPRODUCTIONS[name]]:
        # flushed, since a reader of a pipe would see nothing for minutes
        print(f"{study.name}: {study.title} ({study.source})", flush=True)
        if share != 1 or len(seeds) < 3:
            print(
                f"  {share:.0%} of the usual steps, {len(seeds)} seeds: verdicts are meant for all of them, and three"
            )
        findings = study.run(seeds, share, lambda words: print(f"  {words}", flush=True))
        print(f"\n{table(findings)}\n", flush=True)
        # None is no verdict (data that is not installed, noise), and no failure
        failed |= any(finding.holds is False for finding in findings)
    return int(failed)
