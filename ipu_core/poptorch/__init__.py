"""PopTorch's words for those who come from there: `from ipu_core import poptorch` in the place of `import poptorch`.

    options = poptorch.Options().deviceIterations(4)
    options.Training.gradientAccumulation(8)
    loader = poptorch.DataLoader(options, dataset, batch_size=16, shuffle=True)  # batches of 4 x 8 x 16 rows
    model = poptorch.trainingModel(module, options, poptorch.optim.AdamW(module.parameters(), 1e-3))
    for x, y in loader:
        scores, loss = model(x, y)  # what the module gives, of the last micro-batch
    torch.save(module.state_dict(), "trained.pt")  # the module has the trained weights

What is behind them is `from_torch`, `TrainLoop` and `Predictor`; a model is captured and compiled at its first call. A
name that PopTorch has and this has not says why in one sentence. Where the two differ: a step whose scaled gradients
overflow changes nothing; an inference model is in eval mode.
"""

from typing import Any

from ipu_core.poptorch import optim
from ipu_core.poptorch.blocks import BeginBlock, Block, BlockFunction, identity_loss, removeBlocks
from ipu_core.poptorch.executor import PoplarExecutor
from ipu_core.poptorch.inference import InferenceModel, inferenceModel
from ipu_core.poptorch.loader import DataLoader
from ipu_core.poptorch.options import Options, TensorLocationSettings
from ipu_core.poptorch.stages import AutoStage, PipelinedExecution, ShardedExecution, Stage
from ipu_core.poptorch.training import TrainingModel, trainingModel
from ipu_core.poptorch.words import NOT_HERE, DataLoaderMode, MeanReductionStrategy, OutputMode, ReductionType

__all__ = [
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "DataLoader",
    "DataLoaderMode",
    "InferenceModel",
    "MeanReductionStrategy",
    "Options",
    "OutputMode",
    "PipelinedExecution",
    "PoplarExecutor",
    "ReductionType",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "TrainingModel",
    "identity_loss",
    "inferenceModel",
    "optim",
    "removeBlocks",
    "trainingModel",
]


def __getattr__(name: str) -> Any:
    if name in NOT_HERE:
        raise AttributeError(f"poptorch.{name} is not here: {NOT_HERE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
