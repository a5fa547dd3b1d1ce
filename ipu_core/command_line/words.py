"""What the command line's options are usually, and the words that say so."""

from typing import Any

from ipu_core.study.settings import USUAL, Settings
from ipu_core.study.typed import PRECISIONS

DEFAULT = Settings()
USUAL_OF_MODELS = {
    "precision": PRECISIONS[-1], "target": DEFAULT.target, "micro_batches": 1, "recompute": DEFAULT.recompute,
    "replicas": 1, "collective": None,
}  # fmt: skip
OF_SYSTEMS = (
    "system", "stages", "pipeline_schedule", "global_batch", "host_samples_per_second", "configurations",
)  # fmt: skip
OPTION = {"pipeline_schedule": "schedule"}
"""What an option is called where its name here is another."""
OF_WORKLOADS = ("stage", "micro_batch", "update_overhead", *OF_SYSTEMS)


def option(name: str) -> str:
    """An option as it is typed."""
    return f"--{OPTION.get(name, name).replace('_', '-')}"


def usual(words: str, field: str) -> str:
    """Help that says a field's default, and each model's own."""
    own = "".join(f", {model} {usual[field]:g}" for model, usual in USUAL.items())
    return f"{words} (default {getattr(DEFAULT, field):g}{own})"


def choice(default: str, names: Any) -> str:
    """Help that says what there is, and what is usual."""
    return f"{', '.join(names)}" + (f" (default {default})" if default else "")
