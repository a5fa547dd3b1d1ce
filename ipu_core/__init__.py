"""The machine and the training on it: a precision-first model of the IPU, usable at three depths.

machine    Target, Graph, Codelet (Input, Output, InOut, Param, Static), programs (Sequence, Execute, Copy, ...),
           Engine, Profile, FloatingPointControl: Poplar's programming model, with cycles, exchange and memory
           add_traced puts a function of nn into a Graph
programs   trace a function to a Block; value_and_grad, Precision, plan (an Accumulation and a place for every sum),
           lower; evaluate, execute and Machine run it; nn has operations and layers
training   TrainLoop trains in one precision with Sgd, Lars, Asgd, Adam, AdamW, NAdam, RAdam, Adamax, Lamb, RmsProp,
           Adagrad, Adadelta, Adafactor, Lion or Rprop, compare sets several side by side; a Training says what decides
           the bits, an Execution where they are made; Clones train beside each other on one chip; Hmc samples from a
           density
"""

from ipu_core import interruption  # noqa: F401  # first: it answers Ctrl-C while the rest is imported

# isort: split
import warnings
from typing import TYPE_CHECKING, Any

from lowprec import Accumulation
from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core import errors, figures, nn, packing, poptorch, workloads
    from ipu_core.chip.control import FloatingPointControl
    from ipu_core.chip.hardware_random import HardwareRandom
    from ipu_core.chip.system import System
    from ipu_core.chip.target import Target
    from ipu_core.compile.inline import add_traced
    from ipu_core.compile.lowering.lower import lower
    from ipu_core.compile.machine import Machine
    from ipu_core.compile.planning import plan
    from ipu_core.diagnose.blame import Blame, Sensitivity, blame, cheapest, sensitivity
    from ipu_core.diagnose.diverge import Divergence, diverge
    from ipu_core.diagnose.watch import Record, Watch
    from ipu_core.engine import Engine, Profile
    from ipu_core.errors import (
        ChangesNothing,
        DataRace,
        FloatingPointException,
        IpuError,
        MappedTwice,
        NotCovered,
        NotFinite,
        NothingSaved,
        OtherOrders,
        OtherStudy,
        OutOfStreamingMemory,
        OutOfTileMemory,
        UnmappedTensor,
        UnsupportedByTarget,
        Unvalidated,
    )
    from ipu_core.frontends.emulation import emulate
    from ipu_core.frontends.jax import JaxModel, from_jax, from_optax
    from ipu_core.frontends.torch import TorchModel, TorchSchedule, from_torch, from_torch_optimizer
    from ipu_core.graph import (
        AbortOnNaN,
        Call,
        Codelet,
        Copies,
        Copy,
        CrossReplica,
        CrossReplicas,
        DataStream,
        Execute,
        Graph,
        If,
        InOut,
        Input,
        Output,
        Overlap,
        Param,
        RemoteBuffer,
        RemoteLoad,
        RemoteStore,
        Repeat,
        RepeatWhile,
        Sequence,
        Static,
        StreamCopy,
        Switch,
        Sync,
        Tensor,
        WriteUndef,
    )
    from ipu_core.ir.block import Block
    from ipu_core.ir.passes.autodiff import value_and_grad
    from ipu_core.ir.passes.scale_check import UnbalancedScale
    from ipu_core.ir.precision.operand_scaling import OperandScaling
    from ipu_core.ir.precision.precision import Precision
    from ipu_core.ir.precision.rules import PrecisionRule
    from ipu_core.ir.run.evaluate import evaluate
    from ipu_core.ir.run.execute import execute
    from ipu_core.ir.trace.custom import custom_gradient
    from ipu_core.ir.trace.tracing import trace
    from ipu_core.ir.unit_scaling import UnitScaled, unit_scale
    from ipu_core.ir.verify import InvalidBlock
    from ipu_core.sampling.chains import Chains
    from ipu_core.sampling.hmc import Hmc
    from ipu_core.study.compare import compare
    from ipu_core.study.recompute_curve import RecomputeCurve, recompute_curve
    from ipu_core.study.sweep import sweep
    from ipu_core.study.swept import Sweep
    from ipu_core.train.callbacks import Checkpoint, EarlyStop, Evaluate
    from ipu_core.train.clone import Clone
    from ipu_core.train.clones import Clones
    from ipu_core.train.data.batches import Epochs, Samples
    from ipu_core.train.execution import Execution
    from ipu_core.train.loop import TrainLoop
    from ipu_core.train.loss_scale import LossScale
    from ipu_core.train.optim import (
        Adadelta,
        Adafactor,
        Adagrad,
        Adam,
        Adamax,
        AdamW,
        Asgd,
        Group,
        Lamb,
        Lars,
        Lion,
        NAdam,
        Optimizer,
        RAdam,
        RmsProp,
        Rprop,
        Sgd,
    )
    from ipu_core.train.predictor import Predictor
    from ipu_core.train.recipes import recipe
    from ipu_core.train.training import Training
    from ipu_core.train.units import mup_groups

__all__ = [
    "AbortOnNaN",
    "Accumulation",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Asgd",
    "Blame",
    "Block",
    "Call",
    "Chains",
    "ChangesNothing",
    "Checkpoint",
    "Clone",
    "Clones",
    "Codelet",
    "Copies",
    "Copy",
    "CrossReplica",
    "CrossReplicas",
    "DataRace",
    "DataStream",
    "Divergence",
    "EarlyStop",
    "Engine",
    "Epochs",
    "Evaluate",
    "Execute",
    "Execution",
    "FloatingPointControl",
    "FloatingPointException",
    "Graph",
    "Group",
    "HardwareRandom",
    "Hmc",
    "If",
    "InOut",
    "Input",
    "InvalidBlock",
    "IpuError",
    "JaxModel",
    "Lamb",
    "Lars",
    "Lion",
    "LossScale",
    "Machine",
    "MappedTwice",
    "NAdam",
    "NotCovered",
    "NotFinite",
    "NothingSaved",
    "OperandScaling",
    "Optimizer",
    "OtherOrders",
    "OtherStudy",
    "OutOfStreamingMemory",
    "OutOfTileMemory",
    "Output",
    "Overlap",
    "Param",
    "Precision",
    "PrecisionRule",
    "Predictor",
    "Profile",
    "RAdam",
    "RecomputeCurve",
    "Record",
    "RemoteBuffer",
    "RemoteLoad",
    "RemoteStore",
    "Repeat",
    "RepeatWhile",
    "RmsProp",
    "Rprop",
    "Samples",
    "Sensitivity",
    "Sequence",
    "Sgd",
    "Static",
    "StreamCopy",
    "Sweep",
    "Switch",
    "Sync",
    "System",
    "Target",
    "Tensor",
    "TorchModel",
    "TorchSchedule",
    "TrainLoop",
    "Training",
    "UnbalancedScale",
    "UnitScaled",
    "UnmappedTensor",
    "UnsupportedByTarget",
    "Unvalidated",
    "Watch",
    "WriteUndef",
    "add_traced",
    "blame",
    "cheapest",
    "compare",
    "custom_gradient",
    "diverge",
    "emulate",
    "errors",
    "evaluate",
    "execute",
    "figures",
    "from_jax",
    "from_optax",
    "from_torch",
    "from_torch_optimizer",
    "lower",
    "mup_groups",
    "nn",
    "packing",
    "plan",
    "poptorch",
    "recipe",
    "recompute_curve",
    "sensitivity",
    "sweep",
    "trace",
    "unit_scale",
    "value_and_grad",
    "workloads",
]

# Names are loaded when they are first asked for: a study shows its bars before the machine is there.
_find = lazy_names(
    __name__,
    {
        "chip": "",
        "frontends.torch": "TorchModel TorchSchedule from_torch from_torch_optimizer",
        "compile": "",
        "compile.inline": "add_traced",
        "compile.lowering": "lower",
        "compile.machine": "Machine",
        "compile.planning": "plan",
        "chip.control": "FloatingPointControl",
        "chip.hardware_random": "HardwareRandom",
        "diagnose": "",
        "frontends": "",
        "placement": "",
        "reproduce": "",
        "frontends.emulation": "emulate",
        "engine": "engine Engine Profile",
        "errors": "errors ChangesNothing DataRace FloatingPointException IpuError MappedTwice NotCovered NotFinite "
        "NothingSaved OtherOrders OtherStudy OutOfStreamingMemory OutOfTileMemory UnmappedTensor UnsupportedByTarget "
        "Unvalidated",
        "graph": "graph AbortOnNaN Call Codelet Copies Copy CrossReplica CrossReplicas DataStream Execute Graph If "
        "InOut Input Output Overlap Param RemoteBuffer RemoteLoad RemoteStore Repeat RepeatWhile Sequence Static "
        "StreamCopy Switch Sync Tensor WriteUndef",
        "ir": "",
        "ir.passes.autodiff": "value_and_grad",
        "ir.passes.scale_check": "UnbalancedScale",
        "ir.block": "Block",
        "ir.run.evaluate": "evaluate",
        "ir.run.execute": "execute",
        "ir.precision.precision": "Precision",
        "ir.precision.rules": "PrecisionRule",
        "ir.precision.operand_scaling": "OperandScaling",
        "ir.trace.custom": "custom_gradient",
        "ir.trace.tracing": "trace",
        "ir.unit_scaling": "UnitScaled unit_scale",
        "ir.verify": "InvalidBlock",
        "frontends.jax": "JaxModel from_jax from_optax",
        "library": "",
        "nn": "",
        "figures": "",
        "packing": "",
        "workloads": "",
        "poptorch": "",
        "report": "",
        "sampling": "",
        "sampling.chains": "Chains",
        "sampling.hmc": "Hmc",
        "study": "",
        "diagnose.blame": "Blame Sensitivity blame cheapest sensitivity",
        "study.compare": "compare",
        "study.sweep": "sweep",
        "study.swept": "Sweep",
        "study.recompute_curve": "RecomputeCurve recompute_curve",
        "chip.system": "System",
        "chip.target": "Target",
        "train": "",
        "train.data.batches": "Epochs Samples",
        "train.callbacks": "Checkpoint EarlyStop Evaluate",
        "train.clone": "Clone",
        "train.clones": "Clones",
        "train.loop": "TrainLoop",
        "train.optim": "Adadelta Adafactor Adagrad Adam AdamW Adamax Asgd Group Lamb Lars Lion NAdam Optimizer RAdam "
        "RmsProp Rprop Sgd",
        "train.units": "mup_groups",
        "train.execution": "Execution",
        "train.training": "Training",
        "train.recipes": "recipe",
        "train.predictor": "Predictor",
        "train.loss_scale": "LossScale",
        "diagnose.diverge": "Divergence diverge",
        "diagnose.watch": "Record Watch",
    },
)


def __getattr__(name: str) -> Any:
    if name == "Optimiser":  # as version 0.1.0 spelt it
        warnings.warn("ipu_core.Optimiser is spelt ipu_core.Optimizer now", DeprecationWarning, stacklevel=2)
        name = "Optimizer"
    return _find(name)


def __dir__() -> list[str]:
    return sorted(__all__)
