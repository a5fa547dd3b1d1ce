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


PIPELINES = "there are no pipelines, phases or stages: a model runs on one chip"
CHIPS = "replicas are alike: replicationFactor says how many, and all of a step's rows are in one call"
STORED = "nothing is compiled to a file: TrainLoop.save keeps a run"
OPERATION = "no operation here does it"
NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys([
        "Stage", "Phase", "AutoStage", "Liveness", "PipelinedExecution", "ShardedExecution",
        "SerialPhasedExecution", "ParallelPhasedExecution",
    ], PIPELINES),
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
    "registerCustomArgParser": "inputs are tensors, mappings, dataclasses, tuples and lists",
}  # fmt: skip
"""Names of PopTorch's module."""

OPTIONS_NOT_HERE: Mapping[str, str] = {
    "setExecutionStrategy": PIPELINES,
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
    "loadFromFile": "options are made in Python",
}  # fmt: skip
"""Options of PopTorch's, setters and groups."""

MODEL_NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "save",
            "compileAndExport",
            "loadExecutable",
        ],
        STORED,
    ),
    "getTensorNames": "model.loop.sums() names products and sums",
    "getAnchoredTensor": OPTIONS_NOT_HERE["anchorTensor"],
    "getPerfCounters": "the transfers of the host are not on the account; getLatency() gives the compute part",
    "getHostIpuLatency": "the transfers of the host are not on the account",
    "getIpuHostLatency": "the transfers of the host are not on the account",
    "rng_state": "random bits are those of the seed and the number of the step",
    "copyNamedBuffersToDevice": "copyWeightsToDevice takes all buffers",
}
"""Methods of PopTorch's models."""
