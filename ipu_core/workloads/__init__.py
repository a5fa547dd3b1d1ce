"""Workloads that machines ran, with their published shapes, cuts and settings: modelled beside measured.

made = workloads.account(workloads.bert_large(), target="bow")   # from shapes alone, nothing is allocated
made.cycles_per_micro_batch, made.ratio, made.profile            # modelled, over measured, and the whole account
loss, params = workloads.gpt2().loss, workloads.gpt2().params    # the model itself, for `trace` or `TrainLoop`
"""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.workloads import command as command
    from ipu_core.workloads import system_command as system_command
    from ipu_core.workloads.catalogue import workload
    from ipu_core.workloads.choices import Configuration, Configurations, configurations
    from ipu_core.workloads.cuts import cut
    from ipu_core.workloads.published import Measured, Part, Stage, Workload
    from ipu_core.workloads.sequences import lstm_deepbench, wavenet
    from ipu_core.workloads.stage_account import StageAccount, account
    from ipu_core.workloads.system_run import SystemRun, on_system
    from ipu_core.workloads.transformers import bert_base, bert_large, gpt2
    from ipu_core.workloads.vision import resnet50

__all__ = [
    "NAMES", "Configuration", "Configurations", "Measured", "Part", "Stage", "StageAccount", "SystemRun", "Workload",
    "account", "bert_base", "bert_large", "configurations", "cut", "gpt2", "lstm_deepbench", "on_system", "resnet50",
    "wavenet", "workload",
]  # fmt: skip

NAMES = ("bert-large", "bert-base", "gpt2", "resnet50", "lstm-deepbench", "wavenet")
"""As the command line has them."""

__getattr__ = lazy_names(
    __name__,
    {
        "command": "",
        "system_command": "",
        "stage_account": "StageAccount account",
        "catalogue": "workload",
        "choices": "Configuration Configurations configurations",
        "cuts": "cut",
        "system_run": "SystemRun on_system",
        "sequences": "lstm_deepbench wavenet",
        "transformers": "bert_base bert_large gpt2",
        "vision": "resnet50",
        "published": "Measured Part Stage Workload",
    },
)
