"""Codelets: what one vertex reads, writes, computes and costs, declared once and run batched over many vertices."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws
from ipu_core.chip.target import Target
from lowprec import Key, as_format
from lowprec.checks import integer, shown

_ANY: Final = None


@dataclass(frozen=True)
class Field:
    """An edge of a vertex to tensor elements; use Input, Output or InOut.

    Attributes:
        format: the element format required, None for any.
        ndim: number of axes of the field for one vertex (0 = one element, 1 = a vector), None for any.
        optional: whether vertices may go without it. In their instance it is None then.
        reads, writes: how the vertex uses the elements.
    """

    format: str | None = _ANY
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
        if self.format is not None and not isinstance(self.format, str):
            raise TypeError(f"format must be the name of an element format or None, not {shown(self.format)}")
        if self.format is not None and self.format not in ("int32", "uint32", "bool"):
            as_format(self.format)  # raises for an unknown name


class Input(Field):
    """Elements the vertex reads; operands on other tiles are gathered before it computes."""

    reads = True


class Output(Field):
    """Elements the vertex writes, all of them; results for other tiles are scattered after it computed."""

    writes = True


class InOut(Field):
    """Elements the vertex reads and then overwrites."""

    reads = True
    writes = True


@dataclass(frozen=True)
class Param:
    """A value in the vertex's own state, set when the vertex is added; without a default it must be given."""

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

    In a group of V vertices ``self.x`` has shape (V,) and ``self.y`` (V, n): the vertex axes lead. Assigning to an
    output stores into its elements; a float value of another format is converted as the tile converts, under the
    program's floating-point control (``self.z[...] = value`` leaves the conversion to NumPy).

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
    """

    supervisor: ClassVar[bool] = False
    code_bytes: ClassVar[int] = 512
    uses_key: ClassVar[bool] = False
    converts: ClassVar[bool] = True

    target: Target
    control: FloatingPointControl
    key: Key | None
    draws: Draws | None
    _variants: ClassVar[dict[Any, type["Codelet"]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
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
            object.__setattr__(self, name, value)
        elif declared.writes:
            store(self, self.__dict__[name], value)
        else:
            raise AttributeError(f"{type(self).__name__}.{name} is an Input: a vertex may not write it")


def store(codelet: Codelet, destination: NDArray[Any], value: Any) -> None:
    """Writes a value to an output's elements, converting between float formats as the tile does."""
    convert = codelet.__dict__.get("_convert")
    if convert is None or getattr(value, "dtype", None) == destination.dtype:
        destination[...] = value
    else:
        convert(value, destination)


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
    absent = {name: None for name, field in declared_fields(codelet).items() if field.optional and name not in fields}
    defaults = {(name, static.default) for name, static in declared_statics(codelet).items()}
    try:
        chosen = dict(sorted(set(statics.items()) - defaults))
    except TypeError:
        raise TypeError(f"{codelet.__name__}: static values must have a hash; given are {shown(statics)}") from None
    fixed = absent | chosen
    if not fixed:
        return codelet
    key = tuple(fixed.items())
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
        last = {name: value for base in reversed(codelet.__mro__) for name, value in vars(base).items()}
        known[kind] = {name: value for name, value in last.items() if isinstance(value, kind)}
    return known[kind]
