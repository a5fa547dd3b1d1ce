"""The machine and the training on it: a precision-first model of the IPU."""

from ipu_core.control import FloatingPointControl
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
from ipu_core.target import Target

__all__ = [
    "Call",
    "Codelet",
    "Copy",
    "DataStream",
    "Engine",
    "Execute",
    "FloatingPointControl",
    "Graph",
    "If",
    "InOut",
    "Input",
    "Output",
    "Param",
    "Profile",
    "RemoteBuffer",
    "RemoteLoad",
    "RemoteStore",
    "Repeat",
    "RepeatWhile",
    "Sequence",
    "StreamCopy",
    "Switch",
    "Target",
    "Tensor",
]
