"""A Block, the program of the training layer as data: typed equations in order (after JAX's autodidax)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ipu_core.ir.pytree import PyTree
from lowprec import Accumulation, Collective, FloatFormat, Rounding
from lowprec import float32 as FLOAT32
from lowprec.values.rounding import NEAREST_EVEN

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Array = npt.NDArray[Any]
Format = FloatFormat | str
"""What an element is: a float format, or the string "int32" (labels, indices)."""

ROLES = ("forward", "grad_input", "grad_weight", "optimizer", "update")
"""What an equation is for. "update" is the one equation per parameter that writes the new weight; the rest of the
optimizer's arithmetic (moments, direction, norms) is "optimizer"."""

KEPT = ("gradient_sum", "first_moment", "second_moment")
"""Families that say more than their role: what is kept of a parameter beside its weight."""


@dataclass(frozen=True, slots=True)
class Type:
    """Shape and element format of a value. Truth values are 0 and 1 in a float format."""

    shape: tuple[int, ...]
    format: Format

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of an array of it in memory; its format must have a storage dtype."""
        return self.size * dtype_of(self.format).itemsize

    def __str__(self) -> str:
        return f"{format_name(self.format)}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A value of a Block. Two Vars are the same only if they are the same object; the name is for printing."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python number used as an operand; it stands for an array full of itself wherever shapes must match."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.8g}"


Atom = Var | Literal


class Params(Mapping[str, Any]):
    """The static parameters of an equation (axis, shape, ...): a mapping that cannot change and hashes."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        # Equal mappings may have been filled in another order.
        return hash(tuple(sorted(self._items.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._items == dict(other)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._items.items())


@dataclass(frozen=True, slots=True)
class EquationArithmetic:
    """How an equation rounds, and in which format a sum is accumulated.

    Attributes:
        rounding: of the result and of partial sums.
        accumulate: format of partial sums; None: it is no sum.
        promote: after at most so many products a partial sum is added to a float32 one; None: as the order says.
        order: of the products, whatever is planned, in types that are its equation's; None: as it is planned.
        partials: how partial sums are rounded; None: as the result.
        once: the result is computed in float32 and rounded from there, once, by `rounding` and its own policies, as no
            tile does it (see `ir.run.rounded`).
    """

    rounding: Rounding = NEAREST_EVEN
    accumulate: FloatFormat | None = None
    promote: int | None = None
    order: Accumulation | None = None
    partials: Rounding | None = None
    once: bool = False

    @property
    def stochastic(self) -> bool:
        """Whether it draws random bits."""
        return self.rounding.stochastic or (self.partials is not None and self.partials.stochastic)


NEAREST = EquationArithmetic()


@dataclass(frozen=True, slots=True, eq=False)
class RecomputedPart:
    """A part of the forward pass that is made again for its gradients; what it reads of outside is kept.

    Each is itself: two with one name are two parts.

    Attributes:
        name: for messages.
        stash: the format in which activations that it reads are kept, rounded to nearest; None: as they are.
        goes_on: whether the forward pass goes on from what is kept so; else what is made again alone does.
    """

    name: str
    stash: FloatFormat | None = None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Equation:
    """One operation, or a region: a part of the program as one equation, with a body.

    Its number is given when it is traced and never changes: random bits and plans are keyed by it. It is unique in the
    Block and the bodies in it. A region draws nothing, so its number is negative and takes none away from these.

    Attributes:
        inputs: what it reads; of a region all that its body reads of outside too.
        outputs: its results: one, but of a region.
        layer: dotted name of the part of the model it belongs to, by `nn.name_scope` or as torch calls it.
        source: the line that asked for it, as "model.py:41", of the forward equation where it is a derivative; None:
            no line of a user's. It says nothing of what is computed, and equations that differ in it alone are equal.
        drawn: whose random bits and order of a sum it takes, that of which it is a copy; None: its own.
        checkpoint: the part made again for its gradients that it belongs to, as a forward equation or as a gradient of
            one; None: none.
        waits: a value that has to be there before it though it does not read it; None: none. A copy waits for the
            gradient for which it is made, or the order would make it early and keep it.
        of: number of the equation whose derivative it belongs to; None: of none, or of one that nobody knows any more.
        region: its body, and when that runs; None: it is one operation.
        operands: the inputs that are values, without the literals.
        name: what reports, tables, profiles and messages call it: "0.weight.grad_weight.dot.34".
        output: its only result; to ask a region for it is a ValueError.
    """

    number: int
    op: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: Params
    role: str = "forward"
    family: str = "elementwise"
    parameter: str | None = None
    arithmetic: EquationArithmetic = NEAREST
    layer: str | None = field(default=None, compare=False)
    source: str | None = field(default=None, compare=False)
    drawn: int | None = None
    region: Region | None = None
    checkpoint: RecomputedPart | None = field(default=None, compare=False)
    waits: Var | None = field(default=None, compare=False)
    of: int | None = field(default=None, compare=False)
    operands: tuple[Var, ...] = field(init=False, compare=False)
    output: Var = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.region is None:
            object.__setattr__(self, "output", self.outputs[0])
        object.__setattr__(self, "operands", tuple(atom for atom in self.inputs if isinstance(atom, Var)))

    def __getattr__(self, name: str) -> Any:
        if name == "output":
            raise ValueError(f"{self.name} is a region: it has {len(self.outputs)} outputs")
        raise AttributeError(f"an equation has no {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Equation, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    @property
    def name(self) -> str:
        """Parameter, or else layer; role, or what is kept (KEPT); operation; number.

        It ends with the number and so is unlike any other of the Block and its bodies, and begins with a name by which
        rules of a `Precision` know it: a pattern such as "layers.0.*" fits both.
        """
        purpose = self.family if self.family in KEPT or self.region is not None else self.role
        return ".".join(filter(None, (self.parameter or self.layer, purpose, self.op, str(self.number))))

    @property
    def keyed(self) -> int:
        """The number that its own random bits are keyed by, if it draws any."""
        return self.number if self.drawn is None else self.drawn

    @property
    def draws(self) -> int | None:
        """The number folded into the step's key for its random bits; None: it draws none.

        Its own if it rounds stochastically. A mask has one as a parameter, given when it was traced.
        """
        mask: int | None = self.params.get("operation")
        wire: Collective | None = self.params.get("collective")  # which rounds as it says itself
        draws = self.arithmetic.stochastic if wire is None else wire.rounding.stochastic
        return mask if mask is not None else self.keyed if draws else None


@dataclass(frozen=True, eq=False)
class Region:
    """What an equation with a body is: when the body runs, and what goes in and out.

    A value is the same Var on both sides. Where the two sides differ, in type or as iterations do, the body
    has a Var of its `own`.

    Attributes:
        body: a Block without constants. Its inputs are its own values and what it reads of outside, its outputs what
            it makes that is needed after a run of it.
    """

    body: Block

    @property
    def operands(self) -> tuple[Var, ...]:
        """Values of outside that the region itself reads."""
        return ()

    @property
    def own(self) -> tuple[Var, ...]:
        """Values that the body has before it runs, beside those of outside."""
        return ()

    @property
    def ends(self) -> tuple[Var, ...]:
        """Values that are needed after a run of the body."""
        return ()

    @property
    def results(self) -> tuple[Var, ...]:
        """Values that it gives to the outside, whether they are read there or not."""
        return ()

    @property
    def stand_ins(self) -> Mapping[Var, Var]:
        """Inputs and outputs of the Block without memory of their own, each with the value that is there for it."""
        return {}

    def lines(self, note: Note) -> Iterator[str]:
        """The printed form, with the body indented."""
        yield from (f"  {one}" for one in body_lines(self.body.equations, note))


@dataclass(frozen=True, eq=False)
class Block:
    """A program: inputs, equations in order of computation, outputs, and the arrays it was traced with.

    Attributes:
        carried: the first so many inputs are a state that the first so many outputs replace, leaf by leaf (a training
            step). 0 for a plain function.
        arguments: how the flat inputs are nested, one tree per argument of the traced function.
        result: how the flat outputs are nested.
        streamed: positions in the carried state of what lives in streaming memory, on a machine that has one: it is
            loaded before it is read and stored when its new value is there. No bit depends on it.
        offloaded: values of the forward part that lie there until the gradients read them, on such a machine.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    equations: tuple[Equation, ...]
    constants: Mapping[Var, Array] = field(default_factory=dict)
    carried: int = 0
    arguments: tuple[PyTree, ...] = ()
    result: PyTree | None = None
    streamed: frozenset[int] = frozenset()
    offloaded: frozenset[Var] = frozenset()

    def __str__(self) -> str:
        return "\n".join(lines(self, _named))


def per_block(
    analysis: Callable[Concatenate[Block, Arguments], Result],
) -> Callable[Concatenate[Block, Arguments], Result]:
    """A pure analysis of a Block (and plain values), made once for as long as the Block lives."""
    # Weak: passes make a Block from a Block, and those that nobody holds take what is known of them along.
    known: WeakKeyDictionary[Block, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(analysis)
    def found(block: Block, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        results, given = known.setdefault(block, {}), (args, *kwargs.items())
        if given not in results:
            results[given] = analysis(block, *args, **kwargs)
        return results[given]

    return found


def format_name(fmt: Format) -> str:
    """The name of an element format."""
    return fmt if isinstance(fmt, str) else fmt.name


def is_wide(fmt: Format) -> bool:
    """Whether a format has values that float32 lacks: they are kept in float64, which has those of every format."""
    return isinstance(fmt, FloatFormat) and not FLOAT32.contains(fmt)


def dtype_of(fmt: Format) -> np.dtype[Any]:
    """The dtype of an element format: its own, or one that then holds values on its grid, float32 or float64."""
    if isinstance(fmt, str):
        return np.dtype(np.int32)
    if fmt.dtype is not None:
        return fmt.dtype
    return np.dtype(np.float64 if is_wide(fmt) else np.float32)


def check_stash(fmt: FloatFormat) -> FloatFormat:
    """Refuses a format that activations cannot be kept in.

    Raises:
        ValueError: one with values that float32 lacks, or without a sign or a zero.
    """
    if is_wide(fmt):
        raise ValueError(f"{fmt.name} has values that float32 lacks: a stash is narrower than that, or None")
    if not fmt.signed or not fmt.zero:
        raise ValueError(f"{fmt.name} keeps no activations: it has no {'zero' if fmt.signed else 'sign'}")
    return fmt


def typed(var: Var) -> str:
    """A value with its type: "%0: float16[64,256]"."""
    return f"{var}: {var.type}"


Note = Callable[[Equation], str]
"""What is printed of an equation behind a #."""


def _named(equation: Equation) -> str:
    """Its name and family, and how it computes."""
    return " ".join((equation.name, equation.family, *_how(equation.arithmetic)))


def _unnamed(equation: Equation) -> str:
    """Its role, family and parameter, and how it computes: nothing that two equal equations differ in."""
    parts = filter(None, (equation.role, equation.family, equation.parameter))
    return " ".join((*parts, *_how(equation.arithmetic)))


def _how(arithmetic: EquationArithmetic) -> list[str]:
    how = [f"accumulate {arithmetic.accumulate.name}"] if arithmetic.accumulate else []
    how += [f"promoted every {arithmetic.promote}"] if arithmetic.promote else []
    how += [f"summed in {arithmetic.order.order_words()}"] if arithmetic.order else []
    if arithmetic.once:
        how.append(f"rounded once, {arithmetic.rounding.words()}")
    elif arithmetic.rounding.stochastic:
        how.append(arithmetic.rounding.mode)
    return how + ([f"partials {arithmetic.partials.words()}"] if arithmetic.partials is not None else [])


def text(block: Block) -> str:
    """What digests of steps are made of: it stays, whatever is printed of a Block."""
    words, whole = "\n".join(lines(block, _unnamed)), dict[str, str]()
    for var in block.constants:
        # the name of what a precision converted once had all that is to be said of its format
        if var.name.endswith(end := f".{format_name(var.type.format)}"):
            whole[str(var)] = f"{str(var).removesuffix(end)}.{var.type.format}"
    return re.sub(r"%[^\s,:()=]+", lambda found: whole.get(found[0], found[0]), words) if whole else words


def lines(block: Block, note: Note) -> Iterator[str]:
    """A Block, one line per equation.

    Inputs and outputs are shown as what is in memory for them.
    """
    regions = [equation.region for equation in block.equations if equation.region is not None]
    there = {var: other for region in regions for var, other in region.stand_ins.items()}
    yield f"block({', '.join(typed(there.get(var, var)) for var in block.inputs)})"
    yield from (f"  constant {typed(var)}" for var in block.constants)
    yield from (f"  {one}" for one in body_lines(block.equations, note))
    yield f"  return {', '.join(str(there.get(var, var)) for var in block.outputs)}"


def body_lines(equations: Iterable[Equation], note: Note) -> Iterator[str]:
    """The lines of equations, without indentation."""
    for equation in equations:
        if equation.region is not None:
            yield from equation.region.lines(note)
            continue
        arguments = [*map(str, equation.inputs), *([repr(equation.params)] if equation.params else [])]
        yield f"{typed(equation.output)} = {equation.op}({', '.join(arguments)})  # {note(equation)}"
