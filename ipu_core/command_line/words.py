"""What the command line's options are usually, and the words that say so."""

from typing import Any

from ipu_core.study.settings import USUAL, Settings
from ipu_core.study.typed import PRECISIONS

DEFAULT = Settings()
USUAL_OF_MODELS = {
    "precision": PRECISIONS[-1], "target": DEFAULT.target, "micro_batches": 1, "recompute": DEFAULT.recompute,
    "replicas": 1, "collective": None, "stages": 1, "pipeline_schedule": "grouped",
}  # fmt: skip
OF_SYSTEMS = ("system", "global_batch", "host_samples_per_second", "configurations")
OF_CHIPS = ("stages", "pipeline_schedule", "replicas", "collective")
"""Options of several chips that workloads and models have."""
OF_WORKLOADS = ("stage", "micro_batch", "update_overhead", *OF_SYSTEMS)


def option(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def usual(words: str, field: str) -> str:
    """Help that says a field's default, and each model's own."""
    own = "".join(f", {model} {usual[field]:g}" for model, usual in USUAL.items())
    return f"{words} (default {getattr(DEFAULT, field):g}{own})"


def choice(default: str, names: Any) -> str:
    """Help that says what there is, and what is usual."""
    return f"{', '.join(names)}" + (f" (default {default})" if default else "")
