"""Execute a Block: whole arrays through the machine's arithmetic, as a list of calls prepared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation, Rounds, Var, round_key
from ipu_core.ir.buffers import allocate
from ipu_core.ir.kernels import BoundCall, bind
from ipu_core.ir.lifetimes import lifetimes
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.verify import verify
from lowprec import Accumulation, Key
from lowprec.arrays import whole_array
from lowprec.random import KeyLike, as_key

Observer = Callable[[Equation, Sequence[Any], Array], None]
"""Told of every update: the equation, the arrays it read and the array it wrote."""


class Executable:
    """A Block made ready to run many times; not by two threads at once.

    Attributes:
        block: what it runs.
        bytes: bytes of the buffers its intermediate values share.

    Args:
        block: a Block whose formats all have a storage dtype.
        accumulations: for products and sums by equation number: the order of the additions. The types are the
            equation's own. Missing ones take `Accumulation()`.
        control: the machine's floating-point control.

    Raises:
        InvalidBlock: see `verify`.
        ValueError: accumulations for equations that are not in the Block.
    """

    def __init__(
        self,
        block: Block,
        accumulations: Mapping[int, Accumulation] | None = None,
        control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
    ) -> None:
        self._made_of = block, accumulations, control
        orders = dict(accumulations or {})
        if unknown := sorted(orders.keys() - {e.number for e in block.equations}):
            raise ValueError(f"accumulations for equations that are not in the block: {unknown}")
        self.block = verify(block)
        buffers = allocate(block)
        self.bytes = buffers.bytes
        self._arrays = buffers.arrays
        self._inputs = [(var, buffers.arrays[var]) for var in block.inputs]
        self._outputs = [buffers.arrays[var] for var in block.outputs]
        views = lifetimes(block).views
        computed = [e for e in block.equations if views[e.output].root is e.output]
        self._calls = [(self._bind(e, orders.get(e.number), control), e) for e in computed]
        plain = [(call, e.draws) for call, e in self._calls]
        self._looped = sum(views[e.output].root is e.output for e in block.equations[: block.looped])
        self._rounds, self._plain = plain[: self._looped], plain[self._looped :]

    def __reduce__(self) -> tuple[Any, ...]:
        return Executable, self._made_of  # the prepared calls hold buffers, so a copy prepares its own

    def _operands(self, equation: Equation) -> list[Any]:
        return [self._arrays[x] if isinstance(x, Var) else x.value for x in equation.inputs]

    def _bind(self, equation: Equation, order: Accumulation | None, control: FloatingPointControl) -> BoundCall:
        return bind(equation, self._operands(equation), self._arrays[equation.output], order, control)

    def run(self, inputs: Sequence[Any], key: KeyLike, observer: Observer | None = None) -> list[Array]:
        """The outputs for some inputs, in new arrays.

        Args:
            inputs: one array per input of the Block, of its shape (`Block.given`) and dtype. Integers of any width pass
                for int32, Python numbers for values without axes.
            key: of this step. Every equation that rounds stochastically takes key.fold_in(its number), in rounds that
                of `round_key`.
            observer: called after every equation with role "update", which none in rounds may have.

        Raises:
            ValueError, TypeError: inputs of other number, shape or dtype.
        """
        key = as_key(key)
        if len(inputs) != len(self._inputs):
            raise ValueError(f"the block has {len(self._inputs)} inputs, {len(inputs)} were given")
        given: dict[Var, Array] = {}
        for (var, array), value in zip(self._inputs, inputs, strict=True):
            value = checked(var, self.block.given(var).shape, array.dtype, value)
            if array.shape == value.shape:
                array[...] = value
            else:
                given[var] = value
        if self.block.rounds is not None:
            self._run_rounds(self.block.rounds, given, key)
        if observer is None:
            _run(self._plain, key)
        else:
            self._run_observed(key, observer)
        return [array.copy() for array in self._outputs]

    def _run_rounds(self, rounds: Rounds, given: Mapping[Var, Array], key: Key) -> None:
        totals = [(self._arrays[old], self._arrays[new]) for old, new in rounds.totals]
        for total, _ in totals:
            total[...] = 0
        for number in range(rounds.count):
            for var, value in given.items():
                self._arrays[var][...] = rounds.part(var, value, number)
            _run(self._rounds, round_key(key, number))
            for total, new in totals:
                total[...] = new

    def _run_observed(self, key: Key, observer: Observer) -> None:
        for call, equation in self._calls[self._looped :]:
            call(None if equation.draws is None else key.fold_in(equation.draws))
            if equation.role == "update":
                observer(equation, self._operands(equation), self._arrays[equation.output])


def _run(calls: Sequence[tuple[BoundCall, int | None]], key: Key) -> None:
    for call, number in calls:
        call(None if number is None else key.fold_in(number))


def checked(var: Var, shape: tuple[int, ...], dtype: np.dtype[Any], value: Any) -> Any:
    """A value that can be an input of a Block.

    Raises:
        ValueError: another shape.
        TypeError: another dtype, or masked elements.
    """
    array = np.asarray(whole_array(value))
    if array.shape != shape:
        raise ValueError(f"input {var} must have shape {shape}, not {array.shape}")
    number = isinstance(value, (int, float)) or (dtype == np.int32 and array.dtype.kind in "iu")
    if array.dtype != dtype and not number:
        raise TypeError(f"input {var} must be {dtype}, not {array.dtype} (see Precision.cast_state, lowprec.astype)")
    return array


def execute(
    block: Block,
    *arguments: Any,
    key: KeyLike,
    accumulations: Mapping[int, Accumulation] | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
    observer: Observer | None = None,
) -> Any:
    """Runs a Block once on its arguments, nested as those of the traced function, and gives its result likewise.

    See `Executable`, which does the preparation once for many runs.
    """
    leaves = flatten(arguments)[0]
    outputs = Executable(block, accumulations, control).run(leaves, key, observer)
    return unflatten(block.result, outputs) if block.result is not None else outputs
