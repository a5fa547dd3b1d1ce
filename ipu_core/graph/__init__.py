"""Poplar's programming model: variables on tiles, codelets, compute sets of vertex groups, programs."""

from ipu_core.graph.codelet import Codelet, InOut, Input, Output, Param, Static
from ipu_core.graph.graph import Graph
from ipu_core.graph.printer import program_text
from ipu_core.graph.program import (
    AbortOnNaN,
    Call,
    Copies,
    Copy,
    CrossReplica,
    CrossReplicas,
    Execute,
    If,
    Overlap,
    Program,
    RemoteLoad,
    RemoteStore,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamCopy,
    Switch,
    Sync,
    WriteUndef,
)
from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, Vertex, VertexGroup

__all__ = [
    "AbortOnNaN",
    "Call",
    "Codelet",
    "ComputeSet",
    "Copies",
    "Copy",
    "CrossReplica",
    "CrossReplicas",
    "DataStream",
    "Execute",
    "Graph",
    "If",
    "InOut",
    "Input",
    "Output",
    "Overlap",
    "Param",
    "Program",
    "RemoteBuffer",
    "RemoteLoad",
    "RemoteStore",
    "Repeat",
    "RepeatWhile",
    "Sequence",
    "Static",
    "StreamCopy",
    "Switch",
    "Sync",
    "Tensor",
    "Variable",
    "Vertex",
    "VertexGroup",
    "WriteUndef",
    "program_text",
]
