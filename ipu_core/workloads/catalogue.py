"""The workloads by the names that the command line takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ipu_core.workloads.cuts import cut
from ipu_core.workloads.published import Workload
from ipu_core.workloads.sequences import lstm_deepbench, wavenet
from ipu_core.workloads.transformers import bert_base, bert_large, gpt2
from ipu_core.workloads.vision import resnet50
from lowprec.checks import integer, shown

WORKLOADS: Mapping[str, Callable[..., Workload]] = {
    "bert-large": bert_large,
    "bert-base": bert_base,
    "gpt2": gpt2,
    "resnet50": resnet50,
    "lstm-deepbench": lstm_deepbench,
    "wavenet": wavenet,
}
OF_CHIP = ("bert-large", "resnet50")
"""Workloads whose settings are those of the chip that they ran on."""


def workload(
    name: str, *, micro_batch: int | None = None, target: str | None = None, stages: int | None = None
) -> Workload:
    """A workload by name, as published but for what is given.

    Args:
        name: of `WORKLOADS`.
        micro_batch: rows.
        target: the chip, which for some says which run is meant.
        stages: chips of a replica, see `cut`.

    Raises:
        ValueError: there is no such workload, or it is never cut into so many.
    """
    if name not in WORKLOADS:
        raise ValueError(f"there is no workload {shown(name)}; there are {', '.join(WORKLOADS)}")
    given: dict[str, Any] = {}
    if micro_batch is not None:
        given["micro_batch"] = integer("micro_batch", micro_batch, 1)
    elif name == "resnet50" and target == "gc2":
        given["micro_batch"] = 4  # as the talk ran it
    if name in OF_CHIP and target is not None:
        given["target"] = target
    if name == "bert-large" and stages is not None:
        given["stages"] = stages
    made = WORKLOADS[name](**given)
    made = made if stages is None else cut(made, stages)
    return made if target is None else made.changed(target=target)
