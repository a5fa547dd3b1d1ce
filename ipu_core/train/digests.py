"""Values described as JSON by their contents, never by addresses: equal values give equal JSON in every process."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ipu_core.ir.pytree import plain

OURS = ("lowprec", "ipu_core")
ADDRESS = " at 0x"
SHORT = 16  # hexadecimal digits of a hash inside a description


@runtime_checkable
class Described(Protocol):
    """An object with a description of its own for digests."""

    def description(self) -> Any:
        """What decides results, as JSON values or as anything that `described` takes."""


def digest(value: Any) -> str:
    """SHA-256 of JSON values in canonical form: equal values, equal digest, whatever the order of their names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def described(value: Any) -> Any:
    """A value as JSON values, for comparison with others.

    Arrays, of other libraries too, count by shape, dtype and bytes, functions by their code, defaults and what they
    enclose, dataclasses and plain objects by their class and fields, or as they describe themselves. Global names that
    a function reads are not followed.
    """
    return _described(value, ())


def canonical(value: Any) -> Any:
    """JSON values in which numbers that are equal are written alike."""
    if isinstance(value, dict):
        return {name: canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    # 1, 1.0 and True are equal, but JSON writes them apart: equal options would have other digests.
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _described(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # An object that holds itself would recurse for ever.
    if id(value) in above:
        return "itself"
    inner = functools.partial(_described, above=(*above, id(value)))
    match value:
        case np.generic() if isinstance(value.item(), bool | int | float | str):
            return value.item()
        case np.ndarray() | np.generic() if value.dtype != object:
            return {"array": f"{value.dtype}{list(value.shape)}", "sha256": _short(value.tobytes())}
        case dict():
            return {str(name): inner(item) for name, item in value.items()}
        case bytes() | bytearray():
            return {"bytes": _short(bytes(value))}
        case list() | tuple() | np.ndarray():
            return [inner(item) for item in value]
        case set() | frozenset():
            # Strings hash differently in each process, so the order of a set does too.
            return sorted(map(inner, value), key=json.dumps)
        case functools.partial():
            return {"partial": inner(value.func), "of": inner(value.args), "with": inner(value.keywords)}
        case MethodType():
            return {"method": inner(value.__func__), "of": inner(value.__self__)}
        case FunctionType():
            return _function(value, inner)
    # Before the fields: an object's own words leave out what does not decide a bit.
    if isinstance(value, Described):
        return inner(value.description())
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return inner(np.asarray(plain(value)))
    if name := getattr(value, "__qualname__", getattr(value, "__name__", None)):
        return str(name)  # a class, a built-in function, a module
    # Not vars(): those would hold what an instance has cached too.
    if dataclasses.is_dataclass(value):
        fields: Mapping[str, Any] = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "__dict__"):
        fields = vars(value)
    else:  # its own words, if they are not of where it lies
        fields = {} if ADDRESS in repr(value) else {"is": repr(value)}
    return {"kind": type(value).__qualname__, **{name: inner(item) for name, item in fields.items()}}


def _function(function: FunctionType, inner: Any) -> Any:
    if (function.__module__ or "").split(".")[0] in OURS and "<locals>" not in function.__qualname__:
        return function.__qualname__  # a study's version says what it does
    enclosed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    parts = {
        "function": function.__qualname__,
        "code": _short(json.dumps(_code(function.__code__)).encode()),
        "defaults": inner([function.__defaults__, function.__kwdefaults__]),
        "encloses": {name: inner(cell.cell_contents) for name, cell in enclosed.items() if _filled(cell)},
    }
    return {name: part for name, part in parts.items() if part and part != [None, None]}


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where the name is not bound yet
    except ValueError:
        return False
    return True


def _code(code: CodeType) -> list[Any]:
    """A code object's instructions, names and constants, without its lines and file."""
    # co_consts holds nested code objects, whose repr has an address, a file and a line.
    return [code.co_code.hex(), code.co_names, code.co_varnames, [_constant(item) for item in code.co_consts]]


def _constant(value: Any) -> Any:
    match value:
        case CodeType():
            return _code(value)
        case tuple():
            return [_constant(item) for item in value]
        case frozenset():
            return sorted(map(repr, value))  # its own order differs between processes
    return repr(value)


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:SHORT]
