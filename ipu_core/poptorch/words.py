"""PopTorch's enumerations, and the names it has that this has not, each with the reason."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class OutputMode(enum.Enum):
    """What comes back from a call: of every batch, the sum of all, of the last, or of every n-th."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.Enum):
    """How gradients of micro-batches are put together, or a loss is (`identity_loss`)."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.Enum):
    """When the mean of micro-batches' gradients is divided: each time, as a running mean, or at the end."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(enum.Enum):
    """Whether batches are loaded when they are asked for, or one ahead by a thread."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


PHASES = "BeginBlock(layer, ipu_id=) and PipelinedExecution make stages; there are no phases, and no chip has several"
CHIPS = "replicas are alike: replicationFactor says how many, and all of a step's rows are in one call"
STORED = "nothing is compiled to a file: TrainLoop.save keeps a run"
OPERATION = "no operation here does it"
NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys(["Phase", "Liveness", "SerialPhasedExecution", "ParallelPhasedExecution"], PHASES),
    **dict.fromkeys([
        "CommGroupType", "VariableRetrievalMode", "Distributed",
    ], CHIPS),
    **dict.fromkeys([
        "load", "ConnectionType", "SharingStrategy", "SyncPattern",
    ], STORED),
    **dict.fromkeys([
        "ctc_beam_search_decoder", "ipu_print_tensor", "cond", "nop", "dynamic_slice", "dynamic_update",
        "custom_op", "CPU", "serializedMatMul", "MatMulSerializationMode",
        "set_available_memory", "set_overlap_for_input", "set_overlap_for_output", "OverlapMode", "MultiConv",
        "MultiConvPlanType", "nearest", "fps",
    ], OPERATION),
    "recomputationCheckpoint": "TrainLoop(recompute=) names the parts of a model that are made again for gradients",
    "for_loop": "recurrent layers are loops on the device; any other loop is unrolled as the module is captured",
    "AsynchronousDataAccessor": "DataLoader(mode=DataLoaderMode.Async) loads one batch ahead",
    "HalfFloatCastingBehavior": "formats are those of the module, or of Options(precision=)",
    "NameScope": "layers are called by their names in the module",
    "ipuHardwareIsAvailable": "everything is modelled: there is no hardware",
    "ipuHardwareVersion": "everything is modelled: Options(target=) is the chip",
    "setLogLevel": "nothing is logged",
    "profiling": "a model's profile is its account",
    "isRunningOnIpu": "a module is captured once, and runs as it was captured",
    **dict.fromkeys([
        "registerCustomArgParser", "ICustomArgParser",
    ], "inputs and outputs are tensors, mappings, dataclasses, tuples and lists"),
    **dict.fromkeys([
        "Error", "RecoverableError", "UnrecoverableError", "createPoptorchError",
    ], "errors are Python's, and those of ipu_core.errors, such as OutOfTileMemory"),
    **dict.fromkeys([
        "registerPreCompileHook", "registerPostCompileHook",
    ], "compile() may be called by itself, with what is to be done before and after it"),
    **dict.fromkeys([
        "distributed", "experimental", "testing", "autocasting", "enums", "ops", "options",
    ], "names are in poptorch itself, not in modules of it"),
    "Attribute": "layers lie where the planner puts them", "ConfigFileError": "options are made in Python",
    "accessAttributes": "layers lie where the planner puts them",
    "getIpuTensorId": "tensors are called by their names in the module",
    "registerPersistentData": "what lives from step to step is a buffer of the module",
}  # fmt: skip
"""Names of PopTorch's module."""

TRAINING_NOT_HERE: dict[str, str] = {
    "setConvolutionDithering": "where convolutions begin on the tiles decides no bit and no cycle here",
}
"""Setters of `Options.Training`."""

PRECISION_NOT_HERE: dict[str, str] = {
    "halfFloatCasting": "formats are those of the module, or of Options(precision=)",
    "runningStatisticsAlwaysFloat": "running statistics are float32 always",
    "autocastEnabled": "formats are those of the module, or of Options(precision=)",
    "autocastPolicy": "formats are those of the module, or of Options(precision=)",
}
"""Setters of `Options.Precision`."""

LOCATIONS_NOT_HERE: dict[str, str] = {
    **dict.fromkeys([
        "setActivationLocation", "setAccumulatorLocation",
    ], "weights and moments alone go to streaming memory as a kind; TrainLoop(streamed=) takes names of activations"),
    "numIOTiles": "all tiles compute",
}  # fmt: skip
"""Setters of `Options.TensorLocations`."""

LOCATION_NOT_HERE: dict[str, str] = dict.fromkeys(("useIOTilesToLoad", "useIOTilesToStore"), "all tiles compute")
"""Setters of `TensorLocationSettings`."""

OPTIONS_NOT_HERE: dict[str, str] = {
    **dict.fromkeys([
        "Distributed", "inputReplicaGrouping", "broadcastBuffers", "autoRoundNumIPUs", "syncPattern",
    ], CHIPS),
    **dict.fromkeys([
        "enableExecutableCaching", "useOfflineIpuTarget", "connectionType",
    ], STORED),
    "Jit": "modules are captured by torch.export",
    "_Popart": "there is no PopART behind it",
    "setAvailableMemoryProportion": "the planner of products has no such bound",
    "anchorTensor": "a tensor within a model is seen by model.loop and TrainLoop(watch=), not by its PopART name",
    "enableProfiling": "model.profile is the account, without being asked for",
    "logCycleCount": "model.cycleCount() gives it",
    "useIpuId": "everything is modelled: Options(target=) is the chip",
    "enableSyntheticData": "host I/O costs nothing in the model, and data is never made up",
    "enableStableNorm": "norms are computed in one way",
    "updatableNamedBuffers": "copyWeightsToDevice takes all buffers",
    "sourceLocationExcludes": "nothing is logged", "appendToLocationExcludes": "nothing is logged",
    "logDir": "nothing is logged", "maxRepeatLogs": "nothing is logged",
    "showCompilationProgressBar": "nothing is printed", "modelName": "nothing is written",
    "disableModuleNamescope": "layers are called by their names in the module",
    "relaxOptimizerAttributesChecks": "an optimizer may change its learning rates alone, always",
    "loadFromFile": "options are made in Python", "toDict": "print(options) shows them",
    "checkIsFrozen": "a setter of options that are fixed says so",
}  # fmt: skip
"""Options of PopTorch's, setters and groups."""

MODEL_NOT_HERE: dict[str, str] = {
    **dict.fromkeys(
        [
            "save",
            "compileAndExport",
            "loadExecutable",
        ],
        STORED,
    ),
    "replicaGrouping": CHIPS,
    "compilationTime": "compile() takes the time that it takes, and nothing counts it",
    "copyWeightsToHostIfNeeded": "the module has the weights after every call",
    "getTensorNames": "model.loop.sums() names products and sums",
    "getAnchoredTensor": OPTIONS_NOT_HERE["anchorTensor"],
    "getPerfCounters": "the transfers of the host are not on the account; getLatency() gives the compute part",
    "getHostIpuLatency": "the transfers of the host are not on the account",
    "getIpuHostLatency": "the transfers of the host are not on the account",
    "rng_state": "random bits are those of the seed and the number of the step",
    "copyNamedBuffersToDevice": "copyWeightsToDevice takes all buffers",
}
"""Methods of PopTorch's models."""

INFERENCE_NOT_HERE: dict[str, str] = {
    "setOptimizer": "an inferenceModel trains nothing",
    "copyWeightsToHost": "an inferenceModel changes no weights",
}
"""Those of models that train alone."""
