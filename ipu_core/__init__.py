"""The machine and the training on it: a precision-first model of the IPU, usable at three depths.

machine    Target, Graph, Codelet (Input, Output, InOut, Param), programs (Sequence, Execute, Copy, Repeat, ...),
           Engine, Profile, FloatingPointControl: Poplar's programming model, with cycles, exchange and memory
programs   trace a function to a Block; value_and_grad, Precision, plan (an Accumulation and a place for every sum),
           lower; evaluate, execute and Machine run it; nn has operations and layers
training   TrainLoop with Sgd, Lars, Adam, AdamW or Lamb trains in one precision, compare sets several side by side;
           a Training says what decides the bits, an Execution where they are made
"""

from ipu_core import interruption  # noqa: F401  # first: it answers Ctrl-C while the rest is imported

# isort: split
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from lowprec import Accumulation
from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core import errors, nn, poptorch
    from ipu_core.capture import TorchModel, TorchSchedule, from_torch, from_torch_optimizer
    from ipu_core.compile.lowering.lower import lower
    from ipu_core.compile.machine import Machine
    from ipu_core.compile.planning import plan
    from ipu_core.control import FloatingPointControl
    from ipu_core.emulation import emulate
    from ipu_core.engine import Engine, Profile
    from ipu_core.graph import (
        Call,
        Codelet,
        Copy,
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
        StreamCopy,
        Switch,
        Tensor,
    )
    from ipu_core.ir.autodiff import value_and_grad
    from ipu_core.ir.block import Block
    from ipu_core.ir.evaluate import evaluate
    from ipu_core.ir.execute import execute
    from ipu_core.ir.precision import Precision
    from ipu_core.ir.rules import PrecisionRule
    from ipu_core.ir.scaling import OperandScaling
    from ipu_core.ir.tracing import trace
    from ipu_core.ir.unit_scaling import UnitScaled, unit_scale
    from ipu_core.jaxpr import JaxModel, from_jax
    from ipu_core.study.blame import Blame, Sensitivity, blame, cheapest, sensitivity
    from ipu_core.study.compare import compare
    from ipu_core.target import Target
    from ipu_core.train.batches import Epochs, Samples
    from ipu_core.train.callbacks import Checkpoint, EarlyStop, Evaluate
    from ipu_core.train.loop import TrainLoop
    from ipu_core.train.optim import Adam, AdamW, Group, Lamb, Lars, Optimiser, Sgd, mup_groups
    from ipu_core.train.options import Execution, Training
    from ipu_core.train.predictor import Predictor
    from ipu_core.train.scaling import LossScale
    from ipu_core.train.watch import Record, Watch

__all__ = [
    "Accumulation",
    "Adam",
    "AdamW",
    "Blame",
    "Block",
    "Call",
    "Checkpoint",
    "Codelet",
    "Copy",
    "DataStream",
    "EarlyStop",
    "Engine",
    "Epochs",
    "Evaluate",
    "Execute",
    "Execution",
    "FloatingPointControl",
    "Graph",
    "Group",
    "If",
    "InOut",
    "Input",
    "JaxModel",
    "Lamb",
    "Lars",
    "LossScale",
    "Machine",
    "OperandScaling",
    "Optimiser",
    "Output",
    "Overlap",
    "Param",
    "Precision",
    "PrecisionRule",
    "Predictor",
    "Profile",
    "Record",
    "RemoteBuffer",
    "RemoteLoad",
    "RemoteStore",
    "Repeat",
    "RepeatWhile",
    "Samples",
    "Sensitivity",
    "Sequence",
    "Sgd",
    "StreamCopy",
    "Switch",
    "Target",
    "Tensor",
    "TorchModel",
    "TorchSchedule",
    "TrainLoop",
    "Training",
    "UnitScaled",
    "Watch",
    "blame",
    "cheapest",
    "compare",
    "emulate",
    "errors",
    "evaluate",
    "execute",
    "from_jax",
    "from_torch",
    "from_torch_optimizer",
    "lower",
    "mup_groups",
    "nn",
    "plan",
    "poptorch",
    "sensitivity",
    "trace",
    "unit_scale",
    "value_and_grad",
]

# Names are loaded when they are first asked for: a study shows its bars before the machine is there.
__getattr__ = lazy_names(
    __name__,
    {
        "arrays": "",
        "capture": "TorchModel TorchSchedule from_torch from_torch_optimizer",
        "compile": "",
        "compile.lowering": "lower",
        "compile.machine": "Machine",
        "compile.planning": "plan",
        "control": "control FloatingPointControl",
        "cost": "",
        "emulation": "emulate",
        "engine": "engine Engine Profile",
        "errors": "",
        "graph": "graph Call Codelet Copy DataStream Execute Graph If InOut Input Output Overlap Param RemoteBuffer "
        "RemoteLoad RemoteStore Repeat RepeatWhile Sequence StreamCopy Switch Tensor",
        "ir": "",
        "ir.autodiff": "value_and_grad",
        "ir.block": "Block",
        "ir.evaluate": "evaluate",
        "ir.execute": "execute",
        "ir.precision": "Precision",
        "ir.rules": "PrecisionRule",
        "ir.scaling": "OperandScaling",
        "ir.tracing": "trace",
        "ir.unit_scaling": "UnitScaled unit_scale",
        "jaxpr": "JaxModel from_jax",
        "library": "",
        "nn": "",
        "poptorch": "",
        "report": "",
        "study": "",
        "study.blame": "Blame Sensitivity blame cheapest sensitivity",
        "study.compare": "compare",
        "target": "target Target",
        "train": "",
        "train.batches": "Epochs Samples",
        "train.callbacks": "Checkpoint EarlyStop Evaluate",
        "train.loop": "TrainLoop",
        "train.optim": "Adam AdamW Group Lamb Lars Optimiser Sgd mup_groups",
        "train.options": "Execution Training",
        "train.predictor": "Predictor",
        "train.scaling": "LossScale",
        "train.watch": "Record Watch",
    },
)


class _Package(ModuleType):
    """Keeps `plan` the function, in whose place the import system would put the package of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "plan" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)
