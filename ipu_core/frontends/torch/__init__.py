"""Models of PyTorch as functions of this library: captured by `torch.export`, traced, differentiated and run here.

torch itself is needed to capture a module and to write trained values back, never in a training step.
"""

from ipu_core.frontends.torch.model import TorchModel, from_torch
from ipu_core.frontends.torch.optimizers import from_torch_optimizer
from ipu_core.frontends.torch.schedules import TorchSchedule

__all__ = ["TorchModel", "TorchSchedule", "from_torch", "from_torch_optimizer"]
