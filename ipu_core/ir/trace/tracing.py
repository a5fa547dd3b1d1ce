"""Tracing: a plain Python function over arrays becomes a Block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.block import NEAREST, Array, Atom, Block, Equation, Literal, Params, Type, Var, dtype_of
from ipu_core.ir.bodies import left_rows
from ipu_core.ir.ops import CUSTOM
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.pytree import flatten, paths, unflatten
from ipu_core.ir.regions import Loop, Scan
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.eager import as_array, check_labels, format_of, is_number
from ipu_core.ir.trace.loops import Carried, loop_along
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import (
    Traced,
    TwoTraces,
    Value,
    apply,
    builder_of,
    concatenate,
    index_basic,
    lift,
    scope,
    shape_of,
)
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64
from lowprec.checks import shown, truth
from lowprec.processor import in_default_state


def example_type(example: Any) -> Type:
    """The type an example stands for: its shape and format (float64, Python numbers and truth values: float32).

    Raises:
        TypeError: the example is no array of floats or integers, or has masked elements.
    """
    if isinstance(example, Type):
        return example
    fmt = format_of(as_array(example))
    return Type(np.shape(example), FLOAT32 if fmt == FLOAT64 else fmt)


OF_JAX = ("not a valid JAX type", "as a JAX value")
"""Words of JAX about an operand that it does not know."""


@in_default_state
def trace(f: Callable[..., Any], *examples: Any, carry: bool = False) -> Block:
    """The Block of a plain Python function.

    Args:
        f: a function over arrays, or nested dicts, lists and tuples of arrays, that gives such.
        *examples: one per argument: arrays (only shape and dtype matter) or `Type`s, nested as f takes them.
        carry: the first argument is a state and f gives (new state, ...): see `Block.carried`.

    Raises:
        TypeError: no function, or one of JAX; an argument or result that is no array; with carry, one that is no tuple.
        ValueError: shapes that do not fit, with the operation and the shapes; with carry, a new state that is
            not nested as the old one, or whose shapes differ.
    """
    if not callable(f):
        raise TypeError(f"trace takes a function and its examples; the first argument is {shown(f)}")
    carry = truth("carry", carry)
    builder = Builder()
    names = argument_names(f, len(examples))
    flat = [flatten(example) for example in examples]
    inputs: list[Var] = []
    for (leaves, tree), name in zip(flat, names, strict=True):
        inputs += [Var(path, example_type(x)) for x, path in zip(leaves, paths(tree, name), strict=True)]
    values = iter([TracedArray(builder, var) for var in inputs])
    try:
        result = f(*(unflatten(tree, [next(values) for _ in leaves]) for leaves, tree in flat))
    except TypeError as error:
        if not any(words in str(error) for words in OF_JAX):
            raise
        raise TypeError(
            "a function of JAX was given a traced value, which it does not take: "
            "ipu_core.from_jax(loss, params, batch) captures a loss that is written with jax.numpy"
        ) from error
    results, tree = flatten(result)
    outputs = tuple(_output(builder, value) for value in results)
    given = tuple(builder.wholes.get(var, var) for var in inputs)
    block = Block(given, outputs, tuple(builder.equations), builder.constants,
                  _carried(flat, result) if carry else 0, tuple(tree for _, tree in flat), tree)  # fmt: skip
    _check_carried(block)
    return dead_code(block)


def argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's first arguments, or else their numbers."""
    try:
        names = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument{i}" for i in range(count)]


def _output(builder: Builder, value: Value) -> Var:
    if not isinstance(value, (Traced, int, float, np.ndarray, np.number)):
        raise TypeError(f"a traced function must give arrays or numbers, not {type(value).__name__}")
    atom = lift(builder, value)
    if isinstance(atom, Literal):
        var = Var(f"constant{len(builder.constants)}", Type((), FLOAT32))
        builder.constants[var] = np.array(atom.value, np.float32)
        return var
    return atom


def _carried(flat: list[Any], result: Any) -> int:
    if not (isinstance(result, tuple) and result and flat):
        raise TypeError("with carry=True the function must give a tuple whose first entry is the new state")
    leaves, tree = flat[0]
    new = flatten(result[0])[1]
    if new != tree:
        raise ValueError(f"the new state ({', '.join(paths(new))}) is not nested as the old ({', '.join(paths(tree))})")
    return len(leaves)


def _check_carried(block: Block) -> None:
    for old, new in zip(block.inputs[: block.carried], block.outputs, strict=False):
        if old.type.shape != new.type.shape:
            raise ValueError(f"the new value of {old} has shape {new.type.shape}, the old {old.type.shape}")


def accumulated_over(body: Callable[[Any], Any], fed: Any, like: Any, count: int, reads: Any = ()) -> Any:
    """Totals after several iterations of a function of them, from zeros: what is traced until then becomes a loop.

    Args:
        body: from the totals before a round to those after it.
        fed: inputs of the traced function, which become parts: those of the Block hold `count` of them.
        like: arrays or values of the totals' shapes, nested as they are.
        count: how many iterations.
        reads: values that every iteration reads whole, by which the trace is known where nothing is fed.

    Raises:
        ValueError: there is a loop already, or a total becomes a number.
    """
    leaves, tree = flatten(like)
    inputs = [x for x in flatten(fed)[0] if isinstance(x, Traced)]
    builder = builder_of([*inputs, *flatten(reads)[0]])
    if builder is None:
        raise ValueError("iterations are for a function that is traced")
    old = [Var(f"total.{path}", Type(shape_of(x), FLOAT32)) for x, path in zip(leaves, paths(tree), strict=True)]
    after = flatten(body(unflatten(tree, [TracedArray(builder, var) for var in old])))[0]
    if any(equation.region is not None and not isinstance(equation.region, Scan) for equation in builder.equations):
        raise ValueError("only one loop of iterations can be in a function that is traced")
    new = [_kept(builder, lift(builder, value), var) for value, var in zip(after, old, strict=True)]
    pairs = tuple((_whole(x.node, count), x.node) for x in inputs)
    builder.wholes = {part: whole for whole, part in pairs}
    traced = Block((), (), tuple(builder.equations))
    builder.equations = []
    builder.add_region(Loop(traced, count, pairs, tuple(zip(old, new, strict=True))), "loop")
    return unflatten(tree, [TracedArray(builder, var) for var in new])


def _whole(part: Var, count: int) -> Var:
    """The input that holds the parts of all iterations."""
    rows, *shape = part.type.shape
    return Var(part.name, Type((count * rows, *shape), part.type.format))


def _kept(builder: Builder, new: Atom, old: Var) -> Var:
    """A total after an iteration; one that stays as it is by an equation of its own.

    Raises:
        ValueError: it is a number.
    """
    if isinstance(new, Literal):
        raise ValueError(f"the total {old} cannot become the number {new}")
    return builder.append("add", (old, Literal(0.0)), Params({}), old.type, NEAREST) if new is old else new


class TracedPart(NamedTuple):
    """A function traced for a place in another trace.

    Attributes:
        builder: its trace.
        inputs: of that, one for each traced leaf among the arguments.
        given: these leaves.
        result: what it gave, in its own trace.
    """

    builder: Builder
    inputs: tuple[Var, ...]
    given: list[Traced]
    result: Any

    def block(self, outputs: Sequence[Value]) -> Block:
        """Its Block, with some values, arrays and numbers as outputs."""
        found = tuple(_output(self.builder, value) for value in outputs)
        return dead_code(Block(self.inputs, found, tuple(self.builder.equations), self.builder.constants))


def traced_part(f: Callable[..., Any], *arguments: Any, role: str | None = None) -> TracedPart:
    """A function of values of a trace, traced apart from it, with the names of the place where it is called.

    Args:
        f: a function over the arguments.
        *arguments: nested values of one trace, arrays and numbers; these stay what they are.
        role: of the equations; None: as outside.

    Raises:
        TwoTraces: it reads a traced value that is none of its arguments.
    """
    leaves, tree = flatten(arguments)
    given = [leaf for leaf in leaves if isinstance(leaf, Traced)]
    outer, builder = builder_of(given), Builder()
    if outer is not None:
        builder.scope = outer.scope if role is None else replace(outer.scope, role=role)
    inputs = tuple(Var(str(number), leaf.node.type) for number, leaf in enumerate(given))
    own = iter([TracedArray(builder, var) for var in inputs])
    result = f(*unflatten(tree, [next(own) if isinstance(leaf, Traced) else leaf for leaf in leaves]))
    if any(isinstance(leaf, Traced) and leaf.builder is not builder for leaf in flatten(result)[0]):
        raise TwoTraces("a result is a value of another trace")
    return TracedPart(builder, inputs, given, result)


def unrolled(block: Block) -> Block:
    """The Block with as many equations as there are places in the stead of each scan; all have numbers of their own."""
    if not any(isinstance(equation.region, Scan) for equation in block.equations):
        return block
    builder = Builder()
    values = interpret(block, [TracedArray(builder, var) for var in block.inputs], unroll=True)
    outputs = tuple(_output(builder, value) for value in values)
    return dead_code(replace(block, outputs=outputs, equations=tuple(builder.equations), constants=builder.constants))


Change = Callable[[Equation, list[Value], Callable[[list[Value]], Value]], Value]
"""From (equation, operands, what computes it of operands) to what is to be its result."""


def interpret(
    block: Block, values: Sequence[Value], change: Change | None = None, *, unroll: bool = False
) -> list[Value]:
    """A Block run on values, traced (its equations join their trace) or arrays (computed now).

    Where all arrays of floats are float64, so is what is chosen of two numbers. A scan joins a trace as a scan.

    Args:
        block: what to run.
        values: one per input.
        change: what is done in the place of each equation; None: that is computed.
        unroll: whether scans become as many equations as there are places; otherwise `change` meets none.

    Raises:
        ValueError: a loop of micro-batches, or a branch.
    """
    floats = {x.dtype for x in values if isinstance(x, np.ndarray) and x.dtype.kind not in "iu"}
    builder = builder_of(values)
    wide = floats == {np.dtype(np.float64)} and builder is None
    environment: dict[Var, Value] = dict(zip(block.inputs, values, strict=True)) | dict(block.constants)
    walk = _Interpreter(environment, None if unroll else builder, wide, change)
    walk.run(block.equations)
    return [environment[var] for var in block.outputs]


@dataclass
class _Interpreter:
    """The values so far.

    Attributes:
        builder: the trace that scans join; None: each of their places is computed.
        wide: whether all arrays of floats are float64.
        numbers: of equations that joined a trace, there by here.
    """

    environment: dict[Var, Value]
    builder: Builder | None
    wide: bool
    change: Change | None
    numbers: dict[int, int] = field(default_factory=dict)

    def run(self, equations: Iterable[Equation]) -> None:
        """Adds the values of equations."""
        for equation in equations:
            if equation.region is None:
                self.environment[equation.output] = self._result(equation)
            elif not isinstance(equation.region, Scan):
                raise ValueError("a Block with a loop or a branch cannot join a trace: trace what its body does")
            elif self.builder is None:
                self._places(equation.region)
            else:
                self._scan(equation.region, self.builder)

    def _result(self, equation: Equation) -> Value:
        environment, change = self.environment, self.change
        operands = [x.value if isinstance(x, Literal) else environment[x] for x in equation.inputs]
        compute = partial(_computed, equation, self.wide)
        builder = builder_of(operands)
        if equation.op == "dropout_mask" and builder is None and self.builder is not None:
            # of a constant's shape, it is no constant itself: every step of the trace draws it anew
            atoms, builder = [lift(self.builder, x) for x in operands], self.builder
            operands = [TracedArray(builder, x) if isinstance(x, Var) else x.value for x in atoms]
        line = nullcontext() if builder is None else builder.of_line(equation.source)
        of = None if equation.of is None else self.numbers.get(equation.of)
        first = None if builder is None else builder.number
        with scope(operands, role=equation.role, family=equation.family, parameter=equation.parameter,
                   layer=equation.layer, checkpoint=equation.checkpoint, of=of), line:  # fmt: skip
            result = compute(operands) if change is None else change(equation, operands, compute)
        if builder is not None and builder.number != first:  # else it was there already
            self.numbers[equation.number] = builder.number - 1
        return result

    def _scan(self, scan: Scan, builder: Builder) -> None:
        """A scan of the trace, with the body's equations."""
        environment = self.environment

        def body(place: Value) -> list[Carried]:
            environment[scan.place] = place
            befores = [Var(old.name, old.type) for old, _ in scan.carries]
            environment.update(
                (old, TracedArray(builder, new)) for (old, _), new in zip(scan.carries, befores, strict=True)
            )
            self.run(scan.body.equations)
            afters = [environment[new] for _, new in scan.carries]
            starts = [x if isinstance(x, Literal) else lift(builder, environment[x]) for x in scan.starts]
            return [Carried(*each) for each in zip(befores, starts, afters, strict=True)]

        last = loop_along(builder, scan.count, body, backwards=scan.backwards)
        environment.update((new, TracedArray(builder, var)) for (_, new), var in zip(scan.carries, last, strict=True))

    def _places(self, scan: Scan) -> None:
        """The values of a scan, place by place; rows that are set are put together once, after the last."""
        environment, rows = self.environment, left_rows(scan)
        for (old, _), start in zip(scan.carries, scan.starts, strict=True):
            if old not in rows:
                full = environment[start] if isinstance(start, Var) else self._full(old, start.value)
                environment[old] = full
        left: dict[Var, dict[int, Value]] = {each.output: {} for each in rows.values()}
        for number in scan.places:
            environment[scan.place] = np.array([number], np.int32)
            for equation in scan.body.equations:
                if equation.region is None and equation.output in left:
                    left[equation.output][number] = environment[equation.operands[0]]
                elif equation.op == "gather" and equation.operands[1] is scan.place:
                    table = environment[equation.operands[0]]
                    environment[equation.output] = index_basic(table, (slice(number, number + 1),))
                else:
                    self.run([equation])
            environment.update({old: environment[new] for old, new in scan.carries if old not in rows})
        for new, found in left.items():
            environment[new] = concatenate([found[number] for number in range(scan.count)])

    def _full(self, old: Var, number: float) -> Array:
        """What a carry begins with; of float64 where all arrays are."""
        return np.full(old.type.shape, number, np.float64 if self.wide else dtype_of(old.type.format))


def _computed(equation: Equation, wide: bool, operands: list[Value]) -> Value:
    """The result of an equation on values; with only float64 arrays of floats what is chosen of two numbers is too."""
    given = equation.output.type.format
    fmt = given if equation.op == "convert" and isinstance(given, FloatFormat) else None
    if wide and equation.op == "select" and all(is_number(x) for x in operands[1:]):
        fmt = FLOAT64
    if equation.op == CUSTOM and not isinstance(operands[0], Traced):
        return operands[0]  # nothing is differentiated any more
    if equation.op == "one_hot" and equation.family == "loss" and not isinstance(operands[0], Traced):
        check_labels(operands[0], equation.params["classes"])
    return apply(equation.op, *operands, fmt=fmt, **_own_bits(equation, operands))


def _own_bits(equation: Equation, operands: Sequence[Value]) -> dict[str, Any]:
    """The parameters of an equation; a mask that joins another trace gets random bits of its own there."""
    params, builder = dict(equation.params), builder_of(operands)
    return params | {"operation": builder.number} if "operation" in params and builder is not None else params
