"""A graph of torch.export run on values of a trace, operation by operation.

What depends on neither parameters nor inputs (masks, positions) is computed by torch itself, when the graph is run, and
becomes constants; everything else goes through the table of operations. Operations in place write to slots.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ipu_core.capture.errors import not_covered
from ipu_core.capture.operations import OPERATIONS, VIEWS, WRITES
from ipu_core.capture.operations.call import Call
from ipu_core.capture.slots import Slot, View, read
from ipu_core.ir.builder import Builder
from ipu_core.ir.pytree import flatten
from ipu_core.ir.values import Traced, Value, broadcast, shape_of
from ipu_core.nn import stop_gradient

SHAPES_ONLY = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided".split()
)
"""Operations that look at the shape of a tensor and not at its numbers."""
REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Operations that run a graph of their own, with the number of settings before it."""
CHECKS = frozenset("_assert_tensor_metadata _assert_async _assert_scalar sym_constrain_range _guards_fn".split())


class Interpreter:
    """Runs a graph in one trace.

    Args:
        torch: the module.
        builder: of the trace.
    """

    def __init__(self, torch: Any, builder: Builder) -> None:
        self._torch, self._builder = torch, builder
        self._arrays: dict[int, tuple[Any, Value]] = {}

    def run(self, graph: Any, inputs: Sequence[Slot]) -> list[Any]:
        """The results of a graph module for its inputs, in slots.

        Raises:
            NotCovered: an operation that has no counterpart.
        """
        given, slots = iter(inputs), dict[Any, Any]()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                slots[node] = next(given)
            elif node.op == "get_attr":
                slots[node] = operator.attrgetter(node.target)(graph)
            elif node.op == "output":
                return list(_looked_up(node.args[0], slots))
            elif node.op == "call_function":
                slots[node] = self._call(node, slots)
        raise AssertionError("a graph ends with its output")

    def _call(self, node: Any, slots: Mapping[Any, Any]) -> Any:
        name = name_of(node)
        args, kwargs = _looked_up(node.args, slots), _looked_up(node.kwargs, slots)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if name in REGIONS:
            return self._region(name, args)
        if name in CHECKS:
            return None
        if not hasattr(node.target, "_schema"):
            return self._plain(node, name, args, kwargs)
        values = read(args), {key: read(value) for key, value in kwargs.items()}
        if not any(isinstance(x, Traced) for x in flatten(list(values))[0]) and name not in RANDOM:
            return self._by_torch(node, args, *values)
        if name in SHAPES_ONLY:
            values = _stand_in(self._torch, node, values[0]), values[1]
            return self._by_torch(node, (), *values)
        return self._traced(node, name, args, *values)

    def _plain(self, node: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Arithmetic of Python's on sizes."""
        if any(isinstance(x, Slot) for x in args):
            raise not_covered(name, node)
        return node.target(*args, **kwargs)

    def _region(self, name: str, args: Sequence[Any]) -> Any:
        """A graph within the graph, with or without gradients."""
        settings, (inner, *operands) = args[: REGIONS[name]], args[REGIONS[name] :]
        results = self.run(inner, operands)
        if name == "wrap_with_set_grad_enabled" and not settings[0]:
            return [Slot(_constant(slot.read())) for slot in results]
        return results

    def _by_torch(self, node: Any, slots: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What depends on no parameter and no input; torch itself keeps views and writes in place."""
        with self._torch.no_grad():
            result = node.target(*args, **kwargs)
        schema = node.target._schema
        for slot, argument in zip(slots, schema.arguments, strict=False):
            if isinstance(slot, Slot) and argument.alias_info is not None and argument.alias_info.is_write:
                slot.touch()
                if schema.returns and isinstance(result, self._torch.Tensor):
                    return slot
        view = None
        name = name_of(node)
        if slots and name in VIEWS and isinstance(slots[0], Slot):
            view = self._view(node, name, slots[0], [*args[1:]])
        return _slots(result, self._torch.Tensor, view)

    def _traced(self, node: Any, name: str, slots: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An operation by the table."""
        base = name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name
        function = OPERATIONS.get(f"{base}.{node.target._overloadname}") or OPERATIONS.get(base)
        if function is None:
            raise not_covered(f"aten.{name}", node)
        result = self._computed(node, function, args, kwargs)
        for position, new in zip(WRITES.get(base, ()), result[1:] if base in WRITES else (), strict=False):
            if isinstance(slots[position], Slot):
                slots[position].write(new)
        result = result[0] if base in WRITES else result
        if base != name:
            self._written(node, name, slots[0], result)
            return slots[0]
        self._check(node, name, result)
        view = self._view(node, name, slots[0], list(args[1:])) if name in VIEWS else None
        return _slots(result, (Traced, np.ndarray, int, float), view)

    def _computed(self, node: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = [self._value(x) for x in _in_order(node.target._schema, args, kwargs)]
        call = Call(node, self._builder)
        exact = self._builder.scoped(family="loss") if call.kind() == "int" else nullcontext()  # in float32
        try:
            with exact:
                return function(call, *given)
        except (NotImplementedError, TypeError, ValueError, IndexError) as error:
            raise not_covered(f"aten.{name_of(node)}", node, str(error)) from error

    def _written(self, node: Any, name: str, slot: Slot, value: Value) -> None:
        try:
            slot.write(_as_shaped(value, Call(node, self._builder)))
        except NotImplementedError as error:
            raise not_covered(f"aten.{name}", node, str(error)) from None

    def _view(self, node: Any, name: str, base: Slot, rest: list[Any]) -> View:
        """How the result of an operation shows its first operand."""
        show, put = VIEWS[name]
        schema = node.target._schema
        call = Call(node, self._builder)

        def shown(value: Value) -> Value:
            return show(call, *[self._value(x) for x in _in_order(schema, [value, *rest], node.kwargs)])

        def written(value: Value, new: Value) -> Value:
            assert put is not None
            return put(call, self._value(value), self._value(new), *rest)

        return View(base, shown, None if put is None else written)

    def _value(self, value: Any) -> Any:
        """An operand as the table's functions take it: tensors of torch become arrays, each once, or numbers."""
        if isinstance(value, self._torch.Tensor):
            kept, array = self._arrays.get(id(value), (None, None))
            if kept is not value or kept._version != array[1]:
                array = _array(value), value._version
                self._arrays[id(value)] = value, array
            return array[0]
        return [self._value(x) for x in value] if isinstance(value, list | tuple) else value

    def _check(self, node: Any, name: str, result: Any) -> None:
        """The table's function gave what torch would have given, as far as shapes say."""
        expected = node.meta.get("val")
        results, wanted = (result, expected) if isinstance(result, list | tuple) else ([result], [expected])
        for value, fake in zip(results, wanted or (), strict=False):
            if hasattr(fake, "shape") and value is not None and shape_of(value) != tuple(fake.shape):
                raise not_covered(f"aten.{name}", node, f"its result is {shape_of(value)}, not {tuple(fake.shape)}")


RANDOM = frozenset("dropout feature_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint "
                   "randperm normal_ uniform_ multinomial".split())  # fmt: skip
"""Operations that draw: never constants."""


def name_of(node: Any) -> str:
    """The name of an operation, without its overload."""
    target = node.target
    return str(target._schema.name.rpartition("::")[2]) if hasattr(target, "_schema") else str(target.__name__)


def _looked_up(value: Any, slots: Mapping[Any, Any]) -> Any:
    """Nodes replaced by what they gave."""
    if isinstance(value, list | tuple):
        return type(value)(_looked_up(x, slots) for x in value) if type(value) in (list, tuple) else [
            _looked_up(x, slots) for x in value
        ]
    if isinstance(value, Mapping):
        return {key: _looked_up(x, slots) for key, x in value.items()}
    if isinstance(value, slice):
        return value
    return slots[value] if hasattr(value, "meta") and value in slots else value


def _in_order(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments by position, as the schema lists them."""
    rest = schema.arguments[len(args) :]
    return [*args, *(kwargs[a.name] if a.name in kwargs else a.default_value for a in rest)]


def _stand_in(torch: Any, node: Any, args: Sequence[Any]) -> list[Any]:
    """Arguments with empty tensors for those that are traced."""
    return [
        torch.empty(tuple(given.meta["val"].shape), dtype=given.meta["val"].dtype) if isinstance(x, Traced) else x
        for given, x in zip(node.args, args, strict=True)
    ]


def _slots(result: Any, kind: Any, view: View | None = None) -> Any:
    if isinstance(result, list | tuple):
        return [_slots(x, kind) for x in result]
    return Slot(result, view) if isinstance(result, kind) else result


def _constant(value: Value) -> Value:
    return stop_gradient(value) if isinstance(value, Traced) and not isinstance(value.format, str) else value


def _array(tensor: Any) -> Any:
    """A tensor of torch as an array of float32, int32 or truth values; one without axes as a number."""
    if tensor.dim() == 0:
        return tensor.item()
    array = np.array(tensor.detach().float().numpy() if tensor.is_floating_point() else tensor.detach().numpy())
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def _as_shaped(value: Value, call: Call) -> Value:
    """What is written in place has the shape of where it is written, and its kind where it is a number."""
    if isinstance(value, Traced) or np.ndim(value):
        return broadcast(value, call.shape)
    return np.full(call.shape, value, np.int32 if call.kind() == "int" else np.float32)
