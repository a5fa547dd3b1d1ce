"""A graph of torch.export run on values of a trace, operation by operation.

What depends on neither parameters nor inputs (masks, positions) is computed by torch itself, when the graph is run, and
becomes constants; everything else goes through the table of operations. Operations in place write to slots.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.errors import layer_of, not_covered, source_of
from ipu_core.frontends.torch.operations import OPERATIONS, PIECES, VIEWS, WRITES
from ipu_core.frontends.torch.operations.call import NodeCall, in_order
from ipu_core.frontends.torch.slots import Slot, TensorView, read
from ipu_core.ir.pytree import flatten
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.values import Traced, Value, broadcast, shape_of
from ipu_core.nn import stop_gradient

SHAPES_ONLY = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
"""Operations that read the shape of a tensor and not its numbers: constants, even of traced operands."""
SELDOM = {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Operations that torch tags as random for the sake of their dropout, which is mostly 0."""
REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Operations that run a graph of their own, with the number of settings before it."""
CHECKS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range"}
"""Operations without a result that looks at numbers."""
ON_NUMBERS = {getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "eq", "ne", "ge", "gt", "le", "lt")}
"""What Python computes of sizes that torch does not know: how many places a constant mask has."""


class Interpreter:
    """Runs graphs in one trace.

    Args:
        torch: the module.
        builder: of the trace.
        observe: told of every operation and what it gave, in slots, as soon as it is done.
        wide: whether constants of float64 stay so, and what would be float32 for torch is refused.
    """

    def __init__(
        self, torch: Any, builder: Builder, observe: Callable[[Any, Any], None] | None = None, *, wide: bool = False
    ) -> None:
        self._wide = wide
        self._torch, self._builder, self._observe = torch, builder, observe
        self._arrays: dict[int, tuple[Any, int, Value]] = {}

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
            elif node.op == "call_function":
                slots[node] = self._call(node, slots)
                if self._observe is not None:
                    self._observe(node, slots[node])
        return list(_looked_up(graph.graph.output_node().args[0], slots))

    def _call(self, node: Any, slots: Mapping[Any, Any]) -> Any:
        name, args, kwargs = name_of(node), _looked_up(node.args, slots), _looked_up(node.kwargs, slots)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if name in CHECKS:
            return None
        if name in REGIONS:
            return self._region(name, args[: REGIONS[name]], *args[REGIONS[name] :])
        if node.target in ON_NUMBERS:
            return Slot(node.target(*read(args)))
        if not hasattr(node.target, "_schema"):
            raise not_covered(name, node)
        # places that the table did not compute since nothing was to take them
        if any(isinstance(x, Slot) and x.read() is None for x in args):
            raise not_covered(f"aten.{name}", node, "it takes the places of a maximum or minimum")
        values, named = read(args), {key: read(value) for key, value in kwargs.items()}
        # a draw is never a constant, though its operands are: it would be the same in every step
        if not draws(node) and not any(isinstance(x, Traced) for x in flatten([list(values), named])[0]):
            return self._by_torch(node, name, args, values, named)
        if name == "sym_size":
            return Slot(shape_of(values[0])[values[1]])
        if name in SHAPES_ONLY:
            return self._by_torch(node, name, (), self._stand_in(node, values), named)
        return self._traced(node, name, args, in_order(node.target._schema, values, named))

    def _region(self, name: str, settings: Sequence[Any], inner: Any, *operands: Any) -> list[Any]:
        """Runs a graph within the graph; its results are constants where it is under no_grad."""
        results = self.run(inner, operands)
        constant = name == "wrap_with_set_grad_enabled" and not settings[0]
        return [Slot(_constant(slot.read())) for slot in results] if constant else results

    def _by_torch(
        self, node: Any, name: str, slots: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The result of an operation on constants, by torch itself, which also keeps views and writes in place."""
        # what the table made of constants is an array, and torch takes none
        args, kwargs = ([*map(self._tensor, args)], {key: self._tensor(x) for key, x in kwargs.items()})
        with self._torch.no_grad():
            result = node.target(*args, **kwargs)
        for slot, argument in zip(slots, node.target._schema.arguments, strict=False):
            # torch wrote to the tensor in the slot itself: only that it was written is noted
            if isinstance(slot, Slot) and argument.alias_info is not None and argument.alias_info.is_write:
                with _located(node, name):
                    slot.touch()
                return slot
        return self._slots(node, name, slots, in_order(node.target._schema, args, kwargs), result)

    def _traced(self, node: Any, name: str, slots: Sequence[Any], args: Sequence[Any]) -> Any:
        """The result of an operation by its counterpart here; what torch writes in place is written to slots."""
        function, in_place = counterpart(node)
        if function is None:
            raise not_covered(f"aten.{name}", node)
        if self._wide and (narrow := _narrow_dtype(node)):
            why = f"it gives {narrow} in a module of float64, and here it would have float64's digits: x.to(y.dtype)"
            raise not_covered(f"aten.{name}", node, why)
        result = self._computed(node, name, function, args)
        if name in WRITES:
            result, *written = result
            with _located(node, name):
                for position, new in zip(WRITES[name], written, strict=True):
                    if new is not None:
                        slots[position].write(new)
        if in_place:
            with _located(node, name):
                slots[0].write(_as_shaped(result, NodeCall(node, self._builder)))
            return slots[0]
        _check_shapes(node, name, result)
        return self._slots(node, name, slots, args, result)

    def _computed(self, node: Any, name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        call = NodeCall(node, self._builder)
        # integers that are computed are float32 here: in halves they would be whole up to 2,048 alone
        in_float32 = "loss" if call.kind() == "int" else None
        place = self._builder.scoped(family=in_float32, layer=layer_of(node)[0] or None)
        with _located(node, name), place, self._builder.of_line(source_of(node)):
            return function(call, *map(self._value, args))

    def _slots(self, node: Any, name: str, slots: Sequence[Any], args: Sequence[Any], result: Any) -> Any:
        """A result in a slot, or several; a view of the first operand where the operation makes one."""
        base = slots[0] if slots and isinstance(slots[0], Slot) else None
        if isinstance(result, list | tuple):
            pieces = base is not None and name in PIECES
            return [Slot(x, self._piece(node, base, args, i) if pieces else None) for i, x in enumerate(result)]
        return Slot(result, self._view(node, base, args, *VIEWS[name]) if base and name in VIEWS else None)

    def _view(self, node: Any, base: Slot, args: Sequence[Any], show: Any, put: Any) -> TensorView:
        """The view of its first operand that the result of an operation is."""
        call = NodeCall(node, self._builder)

        def shown(value: Value) -> Value:
            return show(call, self._value(value), *map(self._value, args[1:]))

        def written(value: Value, new: Value) -> Value:
            return put(call, self._value(value), self._value(new), *args[1:])

        return TensorView(base, shown, written if put else None)

    def _piece(self, node: Any, base: Slot | None, args: Sequence[Any], number: int) -> TensorView:
        """The view of the first operand that one of several results is."""
        assert base is not None
        function, _ = counterpart(node)
        return self._view(node, base, args, lambda *given: function(*given)[number] if function else None, None)

    def _tensor(self, value: Any) -> Any:
        """A constant that an operation of the table gave, as torch takes it."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._tensor, value))
        return self._torch.tensor(value) if isinstance(value, np.ndarray) else value

    def _stand_in(self, node: Any, args: Sequence[Any]) -> list[Any]:
        """Arguments with empty tensors for those that are traced."""
        fakes = [given.meta["val"] if isinstance(x, Traced) else None for given, x in zip(node.args, args, strict=True)]
        return [
            x if fake is None else self._torch.empty(tuple(fake.shape), dtype=fake.dtype)
            for x, fake in zip(args, fakes, strict=True)
        ]

    def _value(self, value: Any) -> Any:
        """An operand as the table's functions take it: tensors of torch become arrays, each once, or numbers."""
        if isinstance(value, list | tuple):
            return [self._value(x) for x in value]
        if not isinstance(value, self._torch.Tensor):
            return value
        kept, version, array = self._arrays.get(id(value), (None, 0, None))
        # an operation in place changes a tensor's version, not its id; the tensor is held so that no other gets its id
        if kept is not value or version != value._version:
            array = _array(value, wide=self._wide)
            self._arrays[id(value)] = value, value._version, array
        return array


class _located:
    """A context that says where in the user's model something was refused."""

    def __init__(self, node: Any, name: str) -> None:
        self._node, self._name = node, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, NotImplementedError | TypeError | ValueError | IndexError):
            raise not_covered(f"aten.{self._name}", self._node, str(error)) from error


def name_of(node: Any) -> str:
    """The name of an operation, without its overload."""
    target = node.target
    return str(target._schema.name.rpartition("::")[2]) if hasattr(target, "_schema") else str(target.__name__)


def draws(node: Any) -> bool:
    """Whether an operation draws random numbers, and is never a constant."""
    return name_of(node) not in SELDOM and any(tag.name == "nondeterministic_seeded" for tag in node.target.tags)


def counterpart(node: Any) -> tuple[Callable[..., Any] | None, bool]:
    """The function of the table for an operation, or None, and whether the operation writes in place."""
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__")
    # __and__ and its like are operators, not operations in place
    base = name.removesuffix("_") if in_place else name
    return OPERATIONS.get(f"{base}.{node.target._overloadname}", OPERATIONS.get(base)), in_place


def _looked_up(value: Any, slots: Mapping[Any, Any]) -> Any:
    """A structure of arguments with nodes replaced by their results."""
    if isinstance(value, list | tuple):
        return [_looked_up(x, slots) for x in value]
    if isinstance(value, Mapping):
        return {key: _looked_up(x, slots) for key, x in value.items()}
    return slots[value] if hasattr(value, "meta") else value


def _check_shapes(node: Any, name: str, result: Any) -> None:
    """Refuses results of the table whose shapes are not those that torch recorded."""
    several = isinstance(result, list | tuple)
    unused = {user.args[1] for user in node.users if user.target is operator.getitem and not user.users}
    for number, (value, fake) in enumerate(_pairs(result if several else [result], node.meta.get("val"), several)):
        if several and number in unused:  # torch 2.6 is wrong about the shapes of an LSTM's states
            continue
        if hasattr(fake, "shape") and value is not None and not _fits(shape_of(value), fake.shape):
            why = f"its result would have the shape {shape_of(value)}, not {tuple(fake.shape)}"
            raise not_covered(f"aten.{name}", node, why)


def _fits(shape: Sequence[int], recorded: Sequence[Any]) -> bool:
    """Whether a shape is that which torch recorded, where it knows sizes: of a mask's places it does not."""
    known = [(a, b) for a, b in zip(shape, recorded, strict=False) if isinstance(b, int)]
    return len(shape) == len(recorded) and all(a == b for a, b in known)


def _pairs(results: Sequence[Any], fakes: Any, several: bool) -> Iterator[tuple[Any, Any]]:
    return zip(results, fakes if several else [fakes], strict=False)


def _constant(value: Value) -> Value:
    # integers have no gradient to stop
    return stop_gradient(value) if isinstance(value, Traced) and not isinstance(value.format, str) else value


def _array(tensor: Any, *, wide: bool) -> Any:
    """A tensor of torch as an array of float32 (truth values too) or int32; one without axes as a number.

    One of float64 stays so where it is wide.
    """
    if tensor.dim() == 0:
        return tensor.item()
    if wide and str(tensor.dtype) == "torch.float64":
        return np.array(tensor.detach().numpy())
    whole = not tensor.is_floating_point() and str(tensor.dtype) != "torch.bool"
    array = (tensor if whole else tensor.float()).detach().numpy()
    return array.astype(np.int32 if whole else np.float32)  # a copy: torch may write to its own later


def _as_shaped(value: Value, call: NodeCall) -> Value:
    """A value that is written in place, in the shape of its target, and as int32 or float32 where it is a number."""
    if isinstance(value, Traced) or np.ndim(value):
        return broadcast(value, call.shape)
    return np.full(call.shape, value, np.int32 if call.kind() == "int" else call.width)


def _narrow_dtype(node: Any) -> str:
    """The dtype of a result of narrower floats than float64, but of truth values and integers as floats; else ""."""
    found = node.meta.get("val")
    for one in found if isinstance(found, list | tuple) else [found]:
        name = str(getattr(one, "dtype", "")).removeprefix("torch.")
        if "float" in name and name != "float64":
            given = getattr(node.args[0], "meta", {}).get("val") if node.args else None
            whole = given is not None and hasattr(given, "is_floating_point") and not given.is_floating_point()
            return "" if whole and name_of(node) in ("to", "type_as", "_to_copy") else name
    return ""
