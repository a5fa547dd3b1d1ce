"""Codelets: what one vertex reads, writes, computes and costs, declared once and run batched over many vertices."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws
from ipu_core.chip.target import Target
from ipu_core.graph.tensor import element_type
from lowprec import Key
from lowprec.checks import integer, shown, truth

_ANY: Final = None


@dataclass(frozen=True)
class Field:
    """An edge of a vertex to tensor elements; use Input, Output or InOut.

    Attributes:
        format: the element format required, in any words that `Graph.add_variable` takes, and afterwards its full name;
            None for any.
        ndim: number of axes of the field for one vertex (0 = one element, 1 = a vector), None for any.
        optional: whether vertices may go without it. In their instance it is None then.
        reads, writes: how the vertex uses the elements.
    """

    format: Any = _ANY
    ndim: int | None = 0
    optional: bool = False
    reads: ClassVar[bool] = False
    writes: ClassVar[bool] = False

    def __get__(self, instance: "Codelet | None", owner: type) -> Any:
        """The declaration on the class; on an instance (an engine binds arrays there) an array."""
        return self if instance is None else _unbound(instance)

    def __post_init__(self) -> None:
        if self.ndim is not None:
            integer("ndim", self.ndim, 0)
        truth("optional", self.optional)
        if self.format is not None:
            found = element_type(self.format)[0]
            object.__setattr__(self, "format", found if isinstance(found, str) else found.name)


class Input(Field):
    """Elements the vertex reads; operands on other tiles are gathered before it computes.

    They cannot be elements that the same vertex writes: those are an InOut.
    """

    reads = True


class Output(Field):
    """Elements the vertex writes, all of them; results for other tiles are scattered after it computed.

    What they held before is not there to be read, and what is not written does not stay: that takes an InOut.
    """

    writes = True


class InOut(Field):
    """Elements the vertex reads and then overwrites."""

    reads = True
    writes = True


@dataclass(frozen=True)
class Param:
    """A value in the vertex's own state, set when the vertex is added; without a default it must be given.

    In `compute` it is the value that all vertices of a group were given, or where they were given values of their own
    an array of these, whose leading axes are the vertex axes. Its numbers have 32 bits.
    """

    default: Any = _ANY

    def __get__(self, instance: "Codelet | None", owner: type) -> Any:
        """The declaration on the class; on an instance the value."""
        return self if instance is None else _unbound(instance)


@dataclass(frozen=True)
class Static:
    """A value that vertices are compiled for, like an argument of a template, with a default.

    It is given where a Param is, but lies in no vertex' state. Each value, as each choice of optional fields, is a
    program of its own, whose code lies on the tiles beside the others'. It must have a hash.
    """

    default: Any

    def __get__(self, instance: "Codelet | None", owner: type) -> Any:
        """The value; the default where none was given."""
        return self.default


def _unbound(instance: "Codelet") -> Any:
    raise AttributeError(f"{type(instance).__name__}: fields and parameters exist only inside a running vertex")


class Codelet:
    """Base of all codelets. One instance serves a whole group of vertices, which lie along leading axes.

    A subclass declares fields, parameters and static values as class attributes and writes ``compute`` as a NumPy
    expression::

        class AdderVertex(Codelet):
            x = Input("float32")
            y = Input("float32", ndim=1)
            z = Output("float32")
            bias = Param(0.0)

            def compute(self):
                self.z = self.x + self.y.sum(axis=-1) + self.bias

            def cycles(self, target):
                return 20 + self.y.shape[-1]

    In a group of V vertices ``self.x`` has shape (V,) and ``self.y`` (V, n): the vertex axes lead. They are told from
    the others in NumPy's elementwise functions, sums and functions along an axis, and in what these give:
    ``self.x * self.y`` takes each vertex's own number; ``self.y.sum()``, or anything over vertex axes but ``any`` and
    ``all``, is refused. What other functions give is a plain array, whose axes meet from the last as ever;
    ``np.asarray(self.y)`` is one.

    ``self.z = value`` stores into an output's elements. The value has exactly their shape, or is one Python number for
    all, rounded to nearest. A float of another format is converted as the tile converts, under the program's
    floating-point control; integers are taken modulo 2^32, and an output of integers takes no floats. What goes round
    the assignment is NumPy's: ``self.z[...] = value``, operators in place (``self.n -= 1``), ``out=self.z``, and a
    value that NumPy has computed in the output's format (where a half overflows to infinity, which a tile never gives).

    `compute` writes all elements of every Output: in the first run of each engine they begin with arbitrary values, and
    those that are left so are refused. It may be called twice then, with the other values as they were. It assigns only
    outputs, and attributes that `prepare` has set.

    Exceptions that `control` enables stop the run, as far as they can be seen. Seen are: an assigned value that the
    output's format has no room for (`oflo`; `inv` where it becomes NaN under `nanoo`); what NumPy says of its own
    operations (overflow is `oflo`, division by zero `div0`, an invalid value `inv`), except under a ``np.errstate`` of
    your own; a NaN in the outputs of a vertex that had none in its inputs and parameters (`inv`). Not seen is what is
    computed otherwise, such as an overflow that `lowprec` saturates, or that only float32 would have where NumPy
    computed in float64. And what ``np.where`` throws away was computed, and raises.

    Random bits: `key` is the engine's key, into which the number of the run is folded, in the rounds of a `Repeat` or
    `RepeatWhile` but the first the round's, and the number of the vertices' operation. So vertices draw anew in every
    run and every round; what is executed twice within a round draws the same both times. The elements of a group differ
    by their places in its arrays (``lowprec.round(x, "fp16", "stochastic", key=self.key)``). For further draws fold
    numbers in: ``self.key.fold_in(1)``.

    Attributes:
        supervisor: True: `cycles` are clock cycles in which the vertex has the tile to itself (it starts the workers).
            False: `cycles` are instructions of one worker; vertices of a tile are dealt to its W workers in turn, each
            worker issues every W-th cycle, so the tile takes W x the slowest worker's sum.
        code_bytes: program memory, once per tile that runs the codelet, or a variant of it [modelled].
        target, control: set before `prepare`, for use in all methods.
        key: the random key of this execution: the engine's key of the run folded with the group's operation number.
        draws: the vertices' own random generators, set before `prepare` where the machine draws from these, of codelets
            that use a key; they have none then. Such vertices must not be joined.
        uses_key: whether `compute` needs `key`, or `draws`.
        converts: whether values assigned to outputs may need the tile's conversion (False: `compute` rounds by itself).
        trusted: whether `compute` is taken at its word: it writes outputs whole, raises the exceptions of `control`
            itself and may have Inputs that it writes. This package's own codelets are.
    """

    supervisor: ClassVar[bool] = False
    code_bytes: ClassVar[int] = 512
    uses_key: ClassVar[bool] = False
    converts: ClassVar[bool] = True
    trusted: ClassVar[bool] = False

    target: Target
    control: FloatingPointControl
    key: Key | None
    draws: Draws | None
    _variants: ClassVar[dict[Any, type["Codelet"]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).items():
            _check_declaration(cls, name, value)
        integer(f"{cls.__name__}.code_bytes", cls.code_bytes, 0)  # fewer than none would hide what does not fit
        cls._variants = {}

    def prepare(self) -> None:
        """Runs once when the engine is built, with fields, parameters, `target` and `control` in place."""

    def compute(self) -> None:
        """Does the arithmetic of all vertices of the group."""
        raise NotImplementedError(f"{type(self).__name__} has no compute")

    def cycles(self, target: Target) -> int | NDArray[Any]:
        """Cycles of each vertex, as one number or an array over the vertex axes (see `supervisor`)."""
        raise NotImplementedError(f"{type(self).__name__} has no cycles")

    def scratch(self, target: Target) -> int | NDArray[Any]:
        """Bytes each vertex needs while it runs, beyond its operands."""
        return 0

    def __setattr__(self, name: str, value: Any) -> None:
        declared = getattr(type(self), name, None)
        if not isinstance(declared, Field):
            if name not in self.__dict__.get("_prepared", (name,)):
                _refuse_attribute(self, name)
            object.__setattr__(self, name, value)
        elif not declared.writes:
            raise AttributeError(f"{type(self).__name__}.{name} is an Input: a vertex may not write it")
        else:
            assign = self.__dict__.get("_assign") or _unbound(self)
            assign(name, value)


_RESERVED = frozenset(vars(Codelet)) | frozenset(Codelet.__annotations__) | {"_assign", "_prepared"}
"""Names that a codelet has of its own."""


def _check_declaration(codelet: type[Codelet], name: str, value: Any) -> None:
    """Refuses what a class cannot mean to declare so.

    Raises:
        ValueError: a field, a parameter or a static value by a name that every codelet has.
        TypeError: one of these that is a class, not made.
    """
    if isinstance(value, type) and issubclass(value, Field | Param | Static):
        raise TypeError(f"{codelet.__name__}.{name} is the class {value.__name__}: declare {value.__name__}(...)")
    if isinstance(value, Field | Param | Static) and name in _RESERVED:
        taken = ", ".join(sorted(known for known in _RESERVED if not known.startswith("_")))
        kind = type(value).__name__
        raise ValueError(f"{codelet.__name__}.{name}: the {kind} needs another name; every codelet has its own {taken}")


def _refuse_attribute(codelet: Codelet, name: str) -> NoReturn:
    """Refuses an attribute that is no field, and that `prepare` has not set, in `compute`.

    Raises:
        AttributeError: always.
    """
    kind, where = type(codelet), f"{type(codelet).__name__}.{name}"
    found = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
    if any(isinstance(value, Field) for value in found):
        raise AttributeError(f"{where}: these vertices go without that optional field: assign it where it is not None")
    if any(isinstance(value, Param | Static) for value in found):
        raise AttributeError(f"{where} was set when the vertices were added; what changes from run to run is an InOut")
    fields = ", ".join(field for field, declared in declared_fields(kind).items() if declared.writes) or "none"
    raise AttributeError(f"{where} is no field; those that compute may assign are {fields}. Others are set in prepare")


def declared_fields(codelet: type[Codelet]) -> dict[str, Field]:
    """The fields of a codelet class by name, base classes first."""
    return _declared(codelet, Field)


def declared_params(codelet: type[Codelet]) -> dict[str, Param]:
    """The parameters of a codelet class by name, base classes first."""
    return _declared(codelet, Param)


def declared_statics(codelet: type[Codelet]) -> dict[str, Static]:
    """The static values of a codelet class by name, base classes first."""
    return _declared(codelet, Static)


def variant(codelet: type[Codelet], fields: Collection[str], statics: Mapping[str, Any]) -> type[Codelet]:
    """The program of vertices with these fields and static values: a subclass, one and the same for equal ones.

    Raises:
        TypeError: a static value without a hash.
    """
    # None on the subclass hides the declaration, so that `self.bias is None` tells the vertices that go without.
    absent = {name: None for name, field in declared_fields(codelet).items() if field.optional and name not in fields}
    # A default that is given is the default: no program of its own.
    defaults = {(name, static.default) for name, static in declared_statics(codelet).items()}
    try:
        chosen = dict(sorted(set(statics.items()) - defaults))
    except TypeError:
        raise TypeError(f"{codelet.__name__}: static values must have a hash; given are {shown(statics)}") from None
    fixed = absent | chosen
    if not fixed:
        return codelet
    key = tuple(fixed.items())
    # One subclass for equal choices: groups, memo keys and code on the tiles go by the class.
    known = codelet._variants.get(key)
    if known is None:
        words = ", ".join(name if value is True else f"{name}={value}" for name, value in chosen.items())
        name = f"{codelet.__name__}<{words}>" if words else codelet.__name__
        about = {"__module__": codelet.__module__, "__doc__": codelet.__doc__}
        known = codelet._variants[key] = type(name, (codelet,), fixed | about)
    return known


_DECLARED: WeakKeyDictionary[type[Any], dict[Any, dict[str, Any]]] = WeakKeyDictionary()
"""What classes declare, by kind: it stays, and is asked for with every group of vertices."""


def _declared(codelet: type[Codelet], kind: Any) -> dict[str, Any]:
    known = _DECLARED.setdefault(codelet, {})
    if kind not in known:
        # Base classes first, so that what a subclass declares anew takes its base's place.
        last = {name: value for base in reversed(codelet.__mro__) for name, value in vars(base).items()}
        known[kind] = {name: value for name, value in last.items() if isinstance(value, kind)}
    return known[kind]
