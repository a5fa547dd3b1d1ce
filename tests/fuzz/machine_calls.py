"""Sensible arguments of the machine: targets, graphs, tensors, programs, engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ipu_core
import lowprec
from ipu_core import FloatingPointControl, Graph, InOut, Input, Output, Param, Static, Target, errors
from lowprec import Collective
from tests.fuzz.wild import Draw

Arguments = dict[str, Any]
Make = Callable[[Draw], Arguments]
Calls = dict[str, tuple[Callable[..., Any], Make]]
FEW = Target("gc200", tiles=4)
PAIR = ipu_core.System(FEW, chips=2)
FORMATS = ("float32", "float16", "int32")


class Twice(ipu_core.Codelet):
    """Doubles its elements, times a number."""

    source = Input("float32", ndim=1)
    to = Output("float32", ndim=1)
    by = Param(2.0)

    def compute(self) -> None:
        """to = by * source."""
        self.to[...] = self.source * np.float32(2)

    def cycles(self, target: Target) -> int:
        """One for each element."""
        return int(self.source.shape[-1])


class Parts:
    """A graph with something of every kind in it."""

    def __init__(self) -> None:
        self.graph = Graph(FEW)
        self.source = self._mapped(self.graph.add_constant("float32", np.arange(6.0), "source"))
        self.to = self._mapped(self.graph.add_variable("float32", (6,), "to"))
        self.matrix = self._mapped(self.graph.add_variable("float16", (3, 4), "matrix"))
        self.flag = self._mapped(self.graph.add_variable("int32", (), "flag"))
        self.scratch = self._mapped(self.graph.add_variable("float32", (6,), "scratch", temporary=True))
        self.compute_set = self.graph.add_compute_set("twice")
        self.vertex = self.graph.add_vertex(self.compute_set, Twice, 0, {"source": self.source, "to": self.to})
        self.stream = ipu_core.DataStream("in", "float32", (6,))
        self.back = ipu_core.DataStream("out", "float32", (6,), to_device=False)
        self.buffer = ipu_core.RemoteBuffer("buffer", "float32", (6,), 2)

    def _mapped(self, tensor: Any) -> Any:
        self.graph.set_tile_mapping(tensor, 1)
        return tensor

    def programs(self) -> list[Any]:
        """One of every kind that ends."""
        copy = ipu_core.Copy(self.source, self.to)
        return [
            copy, ipu_core.Sequence(), ipu_core.Sequence(copy, copy), ipu_core.Execute(self.compute_set),
            ipu_core.Repeat(2, copy), ipu_core.If(self.flag, copy), ipu_core.Switch(self.flag, {0: copy, 1: copy}),
            ipu_core.Call(copy, "copy"), ipu_core.RepeatWhile(copy, self.flag, copy),
            ipu_core.RemoteStore(self.to, self.buffer, 1), ipu_core.RemoteLoad(self.buffer, self.to),
            ipu_core.StreamCopy(self.back, self.to), ipu_core.StreamCopy(self.stream, self.to),
            ipu_core.CrossReplica(self.to, self.to, 4, collective=Collective()),
            ipu_core.CrossReplicas(ipu_core.CrossReplica(self.to, self.scratch, 2, "all_reduce_max")),
            ipu_core.Overlap(ipu_core.RemoteLoad(self.buffer, self.to), copy),
        ]  # fmt: skip

    def engine(self) -> ipu_core.Engine:
        """One that runs all of them."""
        found = ipu_core.Engine(self.graph, self.programs())
        found.connect(self.stream, np.ones(6, "f4"))
        found.connect(self.back, [])
        return found


def method(name: str) -> Callable[..., Any]:
    """A method of what `_on` is, which stays as it is."""
    return lambda _on, **given: getattr(_on, name)(**given)


def spread(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that takes several arguments where one, a list, is given."""
    return lambda **given: f(*given.pop(name), **given)


def _call(f: Callable[..., Any], make: Callable[[Draw, Parts], Arguments]) -> tuple[Callable[..., Any], Make]:
    return f, lambda d: make(d, Parts())


def _on_graph(name: str, make: Callable[[Draw, Parts], Arguments]) -> tuple[Callable[..., Any], Make]:
    def made(d: Draw) -> Arguments:
        parts = Parts()
        return {"_on": parts.graph, **make(d, parts)}

    return method(name), made


def _on_engine(name: str, make: Callable[[Draw, Parts], Arguments]) -> tuple[Callable[..., Any], Make]:
    def made(d: Draw) -> Arguments:
        parts = Parts()
        return {"_on": parts.engine(), **make(d, parts)}

    return method(name), made


def _on_tensor(name: str, given: Callable[[Draw], Any]) -> tuple[Callable[..., Any], Make]:
    return lambda _on, given: getattr(_on, name)(*given), lambda d: {"_on": Parts().matrix, "given": given(d)}


def _run(graph: Any, programs: Any, number: int = 0, **how: Any) -> Any:
    engine = ipu_core.Engine(graph, programs, **how)
    engine.run(number)
    return engine.profile(number).cycles


def _engine(d: Draw, p: Parts) -> Arguments:
    programs = d.one_of((p.programs()[:12], d.one_of(p.programs()[:11])))
    return {"graph": p.graph, "programs": programs} | ({"key": d.integer(0, 9)} if d.chance(0.3) else {}) | (
        {"control": FloatingPointControl(nanoo=True)} if d.chance(0.3) else {})  # fmt: skip


def _tensor(d: Draw, p: Parts) -> Any:
    return d.one_of((p.source, p.to, p.matrix, p.flag, p.matrix.T, p.to[1:4]))


def _six(d: Draw, p: Parts) -> Any:
    return d.one_of((p.to, p.to, p.source, p.scratch))


def _program() -> Calls:
    step: Callable[[Draw, Parts], Any] = lambda d, p: d.one_of(p.programs())  # noqa: E731
    return {
        "Sequence": _call(spread(ipu_core.Sequence, "steps"), lambda d, p: {"steps": [step(d, p), step(d, p)]}),
        "Overlap": _call(spread(ipu_core.Overlap, "steps"), lambda d, p: {"steps": [step(d, p), step(d, p)]}),
        "Execute": _call(ipu_core.Execute, lambda d, p: {"compute_set": p.compute_set}),
        "Copy": _call(ipu_core.Copy, lambda d, p: {
            "source": d.one_of((p.source, p.scratch, p.matrix)), "destination": p.to}),
        "Repeat": _call(ipu_core.Repeat, lambda d, p: {
            "count": d.integer(0, 3), "body": step(d, p), "runs": d.chance(0.5)}),
        "RepeatWhile": _call(ipu_core.RepeatWhile, lambda d, p: {
            "condition": step(d, p), "predicate": p.flag, "body": step(d, p)}),
        "If": _call(ipu_core.If, lambda d, p: {
            "predicate": p.flag, "then": step(d, p), "otherwise": step(d, p)}),
        "Switch": _call(ipu_core.Switch, lambda d, p: {
            "control": p.flag, "cases": {0: step(d, p), 1: step(d, p)}, "default": step(d, p)}),
        "Call": _call(ipu_core.Call, lambda d, p: {"function": step(d, p), "name": "f"}),
        "StreamCopy": _call(ipu_core.StreamCopy, lambda d, p: {
            "stream": d.one_of((p.stream, p.back)), "tensor": p.to}),
        "RemoteLoad": _call(ipu_core.RemoteLoad, lambda d, p: {
            "buffer": p.buffer, "tensor": p.to, "entry": d.one_of((0, 1, p.flag))}),
        "RemoteStore": _call(ipu_core.RemoteStore, lambda d, p: {
            "tensor": p.to, "buffer": p.buffer, "entry": d.one_of((0, 1, p.flag))}),
        "CrossReplica": _call(ipu_core.CrossReplica, lambda d, p: {
            "source": d.one_of((p.to, p.scratch, p.matrix)), "destination": p.to, "replicas": d.integer(0, 5),
            "kind": d.one_of(("all_reduce", "broadcast", "mean")),
            "collective": d.one_of((None, Collective()))}),
        "CrossReplicas": (ipu_core.CrossReplicas, lambda d: {}),
        "Sync": (ipu_core.Sync, lambda d: {}),
        "WriteUndef": _call(ipu_core.WriteUndef, lambda d, p: {"tensor": _tensor(d, p)}),
        "AbortOnNaN": _call(ipu_core.AbortOnNaN, lambda d, p: {"tensor": _tensor(d, p)}),
        "DataStream": (ipu_core.DataStream, lambda d: {
            "name": "s", "format": d.one_of(FORMATS), "shape": d.shape(), "to_device": d.chance(0.5)}),
        "RemoteBuffer": (ipu_core.RemoteBuffer, lambda d: {
            "name": "b", "format": d.one_of(FORMATS), "shape": d.shape(), "entries": d.integer(1, 3)}),
    }  # fmt: skip


def _graph() -> Calls:
    return {
        "Graph": (ipu_core.Graph, lambda d: {"target": d.one_of(("gc2", "bow", FEW))}),
        "Graph.add_variable": _on_graph("add_variable", lambda d, p: {
            "fmt": d.one_of(FORMATS), "shape": d.shape(), "name": "x", "temporary": d.chance(0.3)}),
        "Graph.add_constant": _on_graph("add_constant", lambda d, p: {
            "fmt": d.one_of(FORMATS), "values": d.array(), "name": "x"}),
        "Graph.set_tile_mapping": _on_graph("set_tile_mapping", lambda d, p: {
            "item": d.one_of((_tensor(d, p), p.vertex)), "tile": d.integer(0, 4)}),
        "Graph.map_intervals": _on_graph("map_intervals", lambda d, p: {
            "tensor": _tensor(d, p), "starts": [0, 2, 4], "tiles": [0, 1, d.integer(0, 4)]}),
        "Graph.map_linearly": _on_graph("map_linearly", lambda d, p: {
            "tensor": _tensor(d, p), "tiles": d.one_of((None, 2, [1, 3])), "grain": d.integer(1, 3)}),
        "Graph.map_blocks": _on_graph("map_blocks", lambda d, p: {
            "tensor": p.matrix, "borders": [[0, 2, 3], [0, 4]], "tiles": [[0], [1]]}),
        "Graph.add_compute_set": _on_graph("add_compute_set", lambda d, p: {"name": "x"}),
        "Graph.join": _on_graph("join", lambda d, p: {
            "compute_sets": [p.compute_set, p.graph.add_compute_set("b")], "name": "c"}),
        "Graph.add_vertex": _on_graph("add_vertex", lambda d, p: {
            "compute_set": p.compute_set, "codelet": Twice, "tile": 1,
            "fields": {"source": p.source, "to": p.to}, "params": {"by": 2.0}}),
        "Graph.add_vertices": _on_graph("add_vertices", lambda d, p: {
            "compute_set": p.compute_set, "codelet": Twice, "tiles": np.arange(3),
            "fields": {"source": p.source.reshape(3, 2), "to": p.to.reshape(3, 2)}}),
        "Graph.connect": _on_graph("connect", lambda d, p: {
            "vertex": p.vertex, "field": d.one_of(("source", "to")), "tensor": p.to}),
        "Graph.set_initial_value": _on_graph("set_initial_value", lambda d, p: {
            "vertex": p.vertex, "param": "by", "value": 3.0}),
        "add_traced": _call(_traced, lambda d, p: {
            "graph": p.graph, "f": d.one_of((ipu_core.nn.softmax, ipu_core.nn.tanh, lambda x: x.sum())),
            "tensors": (_six(d, p),), "precision": d.one_of(("fp32.32", "fp16.16/stochastic")),
            "tiles": d.one_of((None, range(2), [3, 1])), "operation": d.one_of((None, 7)),
            "accumulations": None, "temporary": d.chance(0.3), "name": d.one_of(("", "f"))}),
    }  # fmt: skip


def _traced(graph: Any, **given: Any) -> Any:
    """A function added to a graph, and run."""
    program, results = ipu_core.add_traced(graph, **given)
    ipu_core.Engine(graph, program, key=1).run()
    return results


def _wired(vertex: Arguments, programs: Any) -> Any:
    """An engine with a vertex that was added, mapped and connected step by step, which no call before it checked."""
    parts = Parts()
    made = parts.graph.add_vertex(parts.graph.add_compute_set("hand"), Twice)
    parts.graph.set_tile_mapping(made, vertex["tile"])
    for name in ("source", "to"):
        parts.graph.connect(made, name, vertex[name](parts) if callable(vertex[name]) else vertex[name])
    parts.graph.set_initial_value(made, "by", vertex["by"])
    return _run(parts.graph, programs(parts) if callable(programs) else programs)


def _of_engine() -> Calls:
    return {
        "Engine": _call(_run, _engine),
        "Engine.run": _on_engine("run", lambda d, p: {"program": d.integer(0, 14)}),
        "Engine.set_key": _on_engine("set_key", lambda d, p: {"key": d.integer(0, 9)}),
        "Engine.write": _on_engine("write", lambda d, p: {"tensor": _six(d, p), "values": d.array((6,))}),
        "Engine.read": _on_engine("read", lambda d, p: {"tensor": _tensor(d, p)}),
        "Engine.connect": _on_engine("connect", lambda d, p: {
            "stream": d.one_of((p.stream, p.back)), "host": d.one_of((d.array((6,), ("float32",)), [], print))}),
        "Engine.write_remote": _on_engine("write_remote", lambda d, p: {
            "buffer": p.buffer, "entry": d.integer(0, 2), "values": d.array((6,))}),
        "Engine.read_remote": _on_engine("read_remote", lambda d, p: {
            "buffer": p.buffer, "entry": d.integer(0, 2)}),
        "Engine.profile": _on_engine("profile", lambda d, p: {"program": d.integer(0, 14)}),
        "Engine of a vertex": (_wired, lambda d: {
            "vertex": {"tile": 1, "source": lambda p: p.source, "to": lambda p: p.to, "by": 2.0},
            "programs": lambda p: ipu_core.Execute(p.graph.compute_sets[-1])}),
        "Profile": (ipu_core.Profile, lambda d: {
            "target": FEW, "program": 0, "steps": (), "memory": Parts().engine().memory, "measured": True}),
    }  # fmt: skip


def _of_tensor() -> Calls:
    return {
        "Tensor": _call(ipu_core.Tensor, lambda d, p: {
            "variable": p.matrix.variable, "offset": 0, "shape": (2,), "strides": (1,)}),
        "Tensor.__getitem__": _on_tensor("__getitem__", lambda d: (
            d.one_of((1, slice(1, 3), (0, 1), (Ellipsis, 2), (None, 1))),)),
        "Tensor.transpose": _on_tensor("transpose", lambda d: d.one_of(((1, 0), ()))),
        "Tensor.reshape": _on_tensor("reshape", lambda d: d.one_of(((4, 3), (-1,), ((2, 6),)))),
        "Tensor.broadcast_to": _on_tensor("broadcast_to", lambda d: d.one_of(((2, 3, 4), ((5, 3, 4),)))),
        "Tensor.blocks": _on_tensor("blocks", lambda d: d.one_of(((3, 2), (1, 4)))),
        "Tensor.flatten": _on_tensor("flatten", lambda d: ()),
        "Tensor.indices": _on_tensor("indices", lambda d: ()),
        "Tensor.of": _on_tensor("of", lambda d: (np.zeros(12, "f2"),)),
        "Tensor.__len__": _on_tensor("__len__", lambda d: ()),
    }  # fmt: skip


def _of_target() -> Calls:
    return {
        "Target": (ipu_core.Target, lambda d: {
            "name": d.one_of(("gc2", "gc200", "bow", "c600")), "tiles": d.integer(1, 1216), "tile_memory": 2**17}),
        "Target.check_adder": (FEW.check_adder, lambda d: {"adder": d.one_of(("sequential", "dot4"))}),
        "Target.macs_per_cycle": (FEW.macs_per_cycle, lambda d: {"operands": "float16", "partials": "float32"}),
        "Target.peak_flops": (FEW.peak_flops, lambda d: {"operands": "float16", "partials": "float32"}),
        "Target.seconds": (FEW.seconds, lambda d: {"cycles": 3.0}),
        "Target.transfer_cycles": (FEW.transfer_cycles, lambda d: {"size": 8, "bandwidth": 1e9}),
        "System": (ipu_core.System, lambda d: {
            "name": d.one_of(("c2", "m2000", "bow-pod64", "pod256", "gc200")), "gateway_latency": 1e-6,
            "link_efficiency": 0.9, "host_samples_per_second": d.integer(0, 9), "streaming_memory": 2**30}),
        "System.peak_flops": (PAIR.peak_flops, lambda d: {"operands": "float16", "partials": "float32"}),
        "System.seconds": (PAIR.seconds, lambda d: {"cycles": 3.0}),
        "System.sync_seconds": (PAIR.sync_seconds, lambda d: {"chips": d.integer(1, 2)}),
        "FloatingPointControl": (FloatingPointControl, lambda d: {
            name: d.chance(0.5) for name in ("inv", "div0", "oflo", "esr", "nanoo")}),
        "FloatingPointControl.overflow": (FloatingPointControl().overflow, lambda d: {"fmt": d.fmt()}),
        "FloatingPointControl.rounding": (FloatingPointControl().rounding, lambda d: {
            "rounding": lowprec.Rounding("nearest_even"),
            "fmt": d.fmt()}),
        "HardwareRandom": (ipu_core.HardwareRandom, lambda d: {
            "seed": (d.integer(0, 9), d.integer(0, 9)), "modifier": d.integer(0, 3), "replica": d.integer(0, 2)}),
        "Codelet": (ipu_core.Codelet, lambda d: {}),
        "Param": (Param, lambda d: {"default": 1.0}),
        "Static": (Static, lambda d: {"default": d.one_of((1.0, None, "a"))}),
        **{kind.__name__: (kind, lambda d: {"format": "float32", "ndim": d.integer(0, 2)})
           for kind in (Input, Output, InOut)},
        "errors.OutOfTileMemory": (errors.OutOfTileMemory, lambda d: {
            "tile": 1, "needed": 3, "available": 2, "categories": {}, "variables": [], "step": "a"}),
        "errors.OutOfStreamingMemory": (errors.OutOfStreamingMemory, lambda d: {
            "needed": 3, "available": 2, "buffers": [("a", 3)]}),
    }  # fmt: skip


CALLS: Calls = {**_of_target(), **_graph(), **_program(), **_of_engine(), **_of_tensor()}
