"""A jaxpr run on values of a trace, equation by equation.

What depends on neither parameters nor batch is computed by JAX itself and becomes constants; everything else goes
through the table of primitives. Functions in functions are run in their place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ipu_core.frontends.jax.control import Closed, branch, loop_while, scan
from ipu_core.frontends.jax.drawn import Drawn, DrawnEquation, Settled
from ipu_core.frontends.jax.errors import layer_of, not_covered, source_of
from ipu_core.frontends.jax.operations import IN_FLOAT32, OPERATIONS
from ipu_core.frontends.jax.operations.call import EquationCall, as_value, kind_of
from ipu_core.frontends.jax.reading import columns, needed, origins, wrapped
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.custom import custom_gradient
from ipu_core.ir.trace.values import Traced, Value, shape_of
from ipu_core.nn import relu

INSIDE = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
          "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr"}  # fmt: skip
"""Primitives that call a function, and the parameter that is its jaxpr."""
ALIKE = {"optimization_barrier", "device_put"}
"""Primitives that give each operand as it is."""
CONTROL = {"scan": scan, "cond": branch, "while": loop_while}
"""Primitives that run functions in loops, or choose among them."""


class Place(NamedTuple):
    """Where an equation stands: the layer and the outermost equation that holds it."""

    layer: str = ""
    holder: Any = None

    def inside(self, equation: Any) -> Place:
        """The place of what an equation calls."""
        return Place(self.of(equation), self.holder or equation)

    def of(self, equation: Any) -> str:
        """The layer of an equation here."""
        return ".".join(filter(None, (self.layer, layer_of(equation))))


class Index(NamedTuple):
    """What is known of the indices of an equation: see `EquationCall`."""

    columns: Sequence[Value]
    from_end: bool


class JaxprInterpreter:
    """Runs jaxprs in one trace.

    Args:
        jax: the module.
        builder: of the trace.
        given: whether what is run is part of a function whose gradient is given: those in it, often that function
            itself, are then computed alone.
        draws: what stands for values that keys of the batch say; None: nothing is known of them yet.
    """

    def __init__(self, jax: Any, builder: Builder, *, given: bool = False, draws: Settled | None = None) -> None:
        self._jax, self._builder, self._given, self._draws = jax, builder, given, draws or Settled()
        self._wrapped: dict[int, Traced] = {}  # indices that count from the end below 0, by identity

    def run(self, closed: Any, operands: Sequence[Any], place: Place = Place()) -> list[Any]:  # noqa: B008
        """The results of a closed jaxpr, or of one without constants, for its operands: traced values or constants.

        Raises:
            NotCovered: a primitive that has no counterpart.
        """
        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))
        # what an index is made of is looked for in these (`wrapped`, `_columns`)
        made_by = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        traced = {var for var, value in known.items() if isinstance(value, Traced)}
        as_given = wrapped(jaxpr.eqns, made_by, traced)

        def read(var: Any) -> Any:
            if hasattr(var, "val"):
                return var.val
            return self._from_end(known[as_given[var]]) if var in as_given else known[var]

        # jaxprs keep equations that no result needs, which may have no counterpart here
        for equation in needed(jaxpr, as_given):
            given = [read(var) for var in equation.invars]
            index = Index(
                [as_value(self.settled(x, equation, place)) for x in columns(equation, made_by, read)],
                all(self._counts(read(var)) for var in origins(equation, made_by)),
            )
            known.update(zip(equation.outvars, self._equation(equation, given, place, index), strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[Any], place: Place, index: Index) -> Sequence[Any]:
        name = str(equation.primitive.name)
        # before the table: constants may be made by any primitive
        if not any(isinstance(x, Traced) for x in given):
            return (
                self._by_keys(equation, given)
                if any(isinstance(x, Drawn) for x in given)
                else self._by_jax(equation, given)
            )
        if name in INSIDE:
            return self.run(equation.params[INSIDE[name]], given, place.inside(equation))
        if name in ALIKE:
            return given
        if name in CONTROL:
            return CONTROL[name](self, equation, given, place)
        if name == "custom_jvp_call":
            return self._derived(equation, given, place)
        given = [self.settled(x, equation, place) for x in given]
        if name == "custom_vjp_call":
            return self._with_gradient(equation, given, place)
        function = OPERATIONS.get(name)
        if function is None:
            raise not_covered(name, place.holder or equation, place.of(equation))
        return self._by_table(function, equation, given, place, index)

    def _from_end(self, index: Traced) -> Traced:
        """An index, known to count from the end below 0: another object, since it may be read in both ways."""
        own = copy.copy(index)
        self._wrapped[id(own)] = own
        return own

    def _counts(self, index: Any) -> bool:
        """Whether numbers below 0 count from the end, or there are none."""
        if isinstance(index, Traced | Drawn):
            return id(index) in self._wrapped
        return bool((np.asarray(index) >= 0).all())

    def _by_jax(self, equation: Any, given: Sequence[Any], **changed: Any) -> list[Any]:
        """The results of an equation for constants."""
        primitive = equation.primitive
        params = primitive.get_bind_params({**equation.params, **changed})
        results = primitive.bind(*map(self._for_jax, given), **params)
        return list(results) if primitive.multiple_results else [results]

    def _by_keys(self, equation: Any, given: Sequence[Any]) -> list[Any]:
        """The results of an equation for what is drawn and constants: JAX computes them for every batch."""

        def compute(operands: Sequence[Any]) -> list[Any]:
            return self._by_jax(equation, operands)

        made = DrawnEquation(tuple(given), compute)
        return [Drawn(var.aval, number, made) for number, var in enumerate(equation.outvars)]

    def settled(self, x: Any, equation: Any, place: Place) -> Any:
        """A value, with what stands for it in the trace where keys of the batch say it.

        Raises:
            NotCovered: it is a key itself.
        """
        if not isinstance(x, Drawn):
            return x
        try:
            return self._draws.value(x, self._builder)
        except TypeError as error:
            name = str(equation.primitive.name)
            raise not_covered(name, place.holder or equation, place.of(equation), str(error)) from error

    def _for_jax(self, constant: Any) -> Any:
        return self._jax.numpy.asarray(constant) if isinstance(constant, np.ndarray) else constant

    def _by_table(
        self, function: Callable[..., Any], equation: Any, given: Sequence[Any], place: Place, index: Index
    ) -> Sequence[Any]:
        name = str(equation.primitive.name)

        def bind(*arrays: Any, **changed: Any) -> Any:
            return self._by_jax(equation, arrays, **{k: v for k, v in changed.items() if k in equation.params})[0]

        narrow = name not in IN_FLOAT32 and kind_of(equation.outvars[0].aval.dtype) != "int"
        layer = place.of(equation)
        try:
            values = [as_value(x) for x in given]
            with self.standing(equation, place, None if narrow else "loss"):
                result = function(EquationCall(equation, bind, *index), *values)
        except (NotImplementedError, TypeError, ValueError, IndexError) as error:
            raise not_covered(name, place.holder or equation, layer, str(error)) from error
        results = result if isinstance(result, list) else [result]
        for value, var in zip(results, equation.outvars, strict=True):
            if shape_of(value) != tuple(var.aval.shape):
                why = f"its result would have the shape {shape_of(value)}, not {tuple(var.aval.shape)}"
                raise not_covered(name, place.holder or equation, layer, why)
        return results

    @contextmanager
    def standing(self, equation: Any, place: Place, family: str | None = None) -> Iterator[None]:
        """A context in which equations that are emitted have the layer and the line of an equation of the jaxpr."""
        layer, line = place.of(equation) or None, source_of(place.holder or equation)
        with self._builder.scoped(family=family, layer=layer), self._builder.of_line(line):
            yield

    def _derived(self, equation: Any, given: Sequence[Any], place: Place) -> list[Any]:
        """Runs a function of JAX's own with a custom derivative, which is that of its equations; refuses a user's."""
        closed = equation.params["call_jaxpr"]
        name, _, where = str(closed.jaxpr.debug_info.func_src_info or "").partition(" at ")
        # a rule that a user wrote may be another function's derivative; JAX's own are those of their equations
        if not where.startswith(str(Path(self._jax.__file__).parent)):
            why = f"the function {name} has a derivative of its own"
            raise not_covered("custom_jvp_call", place.holder or equation, place.of(equation), why)
        # relu's rule says 0 at 0, the maximum that it is made of a half
        if name == "relu":
            with self.standing(equation, place):
                return [relu(self.settled(given[0], equation, place))]
        return self.run(closed, given, place.inside(equation))

    def _with_gradient(self, equation: Any, given: Sequence[Any], place: Place) -> list[Any]:
        """A function whose gradient is given (`jax.custom_vjp`)."""
        params, results = equation.params, [var.aval for var in equation.outvars]
        where = place.inside(equation)
        if self._given:
            return self.run(params["call_jaxpr"], given, where)
        if params["symbolic_zeros"] or any(kind_of(aval.dtype) != "float" for aval in results):
            why = "a gradient of integers, or with symbolic zeros, is given"
            raise not_covered("custom_vjp_call", place.holder or equation, place.of(equation), why)
        forward = Closed(*params["fwd_jaxpr_thunk"].call_wrapped(*[False] * len(given)))
        _, tree, passed = params["out_trees"]()
        count = tree.num_leaves - sum(at is not None for at in passed)
        own = iter(var.aval for var in forward.jaxpr.outvars[:count])
        avals = [next(own) if at is None else equation.invars[at].aval for at in passed]
        gradient, zeros = self._gradient(params["bwd"], [*avals, *results])
        constants: list[Any] = []

        def f(*x: Any) -> Any:
            made = JaxprInterpreter(self._jax, _builder(x), given=True).run(forward, x, where)
            some = iter(made[:count])
            stays = [next(some) if at is None else x[at] for at in passed]
            constants[:] = stays
            return [as_value(y) for y in made[count:]], [
                value if isinstance(value, Traced) else None for value in stays
            ]

        def backward(kept: Any, dy: Any) -> Any:
            stays = [fixed if value is None else value for value, fixed in zip(kept, constants, strict=True)]
            inner = JaxprInterpreter(self._jax, _builder([*stays, *dy]), given=True)
            made = iter(inner.run(gradient, [*stays, *dy], where))
            cotangents = [None if zero else as_value(next(made)) for zero in zeros]
            return (*[None] * params["num_consts"], *cotangents)

        f.__name__ = str(params["call_jaxpr"].jaxpr.debug_info.func_name)
        with self.standing(equation, place):
            found: list[Any] = custom_gradient(f, backward)(*given)
        return found

    def _gradient(self, backward: Any, avals: Sequence[Any]) -> tuple[Any, list[bool]]:
        """The jaxpr of a backward function, and which cotangents it does not give."""
        zeros: list[bool] = []

        def flat(*arguments: Any) -> list[Any]:
            found = backward.call_wrapped(*arguments)
            zeros[:] = [not hasattr(each, "dtype") or str(each.dtype).startswith("float0") for each in found]
            return [each for each, zero in zip(found, zeros, strict=True) if not zero]

        given = [self._jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        return self._jax.make_jaxpr(flat)(*given), zeros


def _builder(values: Sequence[Any]) -> Builder:
    """The trace of values of which one at least is traced."""
    return next(value.builder for value in values if isinstance(value, Traced))
