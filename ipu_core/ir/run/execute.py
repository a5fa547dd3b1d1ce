"""Execute a Block: whole arrays through the machine's arithmetic, as a list of calls prepared once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import FloatingPointException
from ipu_core.ir.block import Array, Block, Equation, Var
from ipu_core.ir.bodies import equations_of, inputs_of, outputs_of, steps_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.ops import EACH_REPLICA
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.run.buffers import Buffers, allocate, write_back
from ipu_core.ir.run.fused_calls import bind_fusions
from ipu_core.ir.run.fusions import Fusion, computed, runs_of_fusions
from ipu_core.ir.run.kernels import BoundCall, bind, given_order
from ipu_core.ir.run.scratch import Scratch
from ipu_core.ir.run.steps import OF_STEP, PreparedCall, Program, StepCalls
from ipu_core.ir.verify import verify
from lowprec import Accumulation, Key, pipeline
from lowprec.arrays import whole_array
from lowprec.checks import by_number, expect
from lowprec.processor import in_default_state
from lowprec.random import KeyLike, as_key

Observer = Callable[[Equation, Sequence[Any], Array], None]
"""Told of equations that are computed, in a loop each time: the equation, what it read, as that was before, and the
array it wrote, which others will write over. Views of arrays are not computed."""

Wrap = Callable[[BoundCall, Equation, Sequence[Any], Array], BoundCall]
"""Makes another call of a prepared one, its equation, the arrays it reads and the array it writes."""


class Told(NamedTuple):
    """What an Executable that tells observers has of the one that it stands for.

    Attributes:
        among: the numbers of the equations of which it tells; None: of all.
        held: the arrays of inputs and constants, in which the old state stays until the step is done.
        new: where it says whether a run made the state new.
    """

    among: frozenset[int] | None
    held: Mapping[Var, Array]
    new: Array

    def of(self, equation: Equation) -> bool:
        """Whether it tells of an equation."""
        return self.among is None or equation.number in self.among


class Executable:
    """A Block made ready to run many times; not by two threads at once.

    It holds the Block's carried state: `run` is given one and gives the next, `step` goes on from the one that it holds
    and moves nothing but the batch. New state is written over the old where that is safe, so a step that is interrupted
    leaves neither the one nor the other; where exceptions are enabled the old state stays until the step is done.

    Elementwise neighbours are computed together, piece by piece, and what only they read is never whole in memory, but
    where somebody looks at single equations: what an observer is told of, a `wrap`, an exception that is enabled. No
    bit changes.

    Attributes:
        block: what it runs.
        bytes: bytes of the buffers its intermediate values share.
        for_host: by the number of an equation "each_replica" what every replica had for the host in the last run,
            (replicas, ...), also in a run of which a branch kept the old state.

    Args:
        block: a Block whose formats all have a storage dtype.
        accumulations: for products and sums by equation number: the order of the additions. The types are the
            equation's own. Missing ones take `Accumulation()`.
        control: the machine's floating-point control.
        wrap: what each prepared call is put into; None: nothing.
        chained: whether elementwise neighbours are computed together.
        told: of one that tells observers, which another makes for itself.

    Raises:
        InvalidBlock: see `verify`.
        ValueError: accumulations for equations that are not in the Block.
    """

    @in_default_state
    def __init__(
        self,
        block: Block,
        accumulations: Mapping[int, Accumulation] | None = None,
        control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
        wrap: Wrap | None = None,
        chained: bool = True,
        told: Told | None = None,
    ) -> None:
        expect(Block, block=block)
        self._made_of, self._wrap, self._told = (block, accumulations, control, wrap, chained), wrap, told
        self.for_host: dict[int, Array] = {}
        expect(FloatingPointControl, control=control)
        orders = by_number("accumulations", accumulations, Accumulation)
        if unknown := sorted(orders.keys() - {e.number for e in equations_of(block)}):
            raise ValueError(f"accumulations for equations that are not in the block: {unknown}")
        self.block = verify(block)
        runs: Sequence[Sequence[Fusion]] = ()
        if chained and wrap is None and not control.traps:
            runs = runs_of_fusions(block)
        if told is None:
            over = {} if control.traps else in_place(block)
            buffers = allocate(block, over, [fusion for run in runs for fusion in run])
        else:
            runs = [[fusion] for run in runs for fusion in run]  # the next writes over what is told of one
            buffers = allocate(block, {}, [fusion for (fusion,) in runs], _seen(block, told), told.held)
        self.bytes, self._scratch = buffers.bytes, Scratch()
        self._arrays = buffers.arrays
        self._inputs = [(var, buffers.arrays[held]) for var, held in zip(block.inputs, inputs_of(block), strict=True)]
        outputs = [buffers.arrays[var] for var in outputs_of(block)]
        self._state, self._results = self._inputs[: block.carried], outputs[block.carried :]
        self._moves = write_back([array for _, array in self._state], outputs)
        self._given: dict[Var, Array] = dict.fromkeys(set(block.inputs) - set(inputs_of(block)), np.empty(0))
        calls = self._prepared(runs, buffers, orders, control)
        self._chained = bool(runs)
        self._observer: Observer | None = None
        self._new = np.ones((), np.bool_) if told is None else told.new
        self._tellers: dict[tuple[bool, frozenset[int] | None], Executable] = {}
        self._program = self._made(StepCalls(calls, self._arrays, self._given, self._new))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of  # the prepared calls hold buffers, so a copy prepares its own

    def _made(self, calls: StepCalls) -> Program:
        """What runs the Block."""
        return calls.program(steps_of(self.block))

    def _operands(self, equation: Equation) -> list[Any]:
        return [self._arrays[x] if isinstance(x, Var) else x.value for x in equation.inputs]

    def _prepared(
        self,
        runs: Sequence[Sequence[Fusion]],
        buffers: Buffers,
        orders: Mapping[int, Accumulation],
        control: FloatingPointControl,
    ) -> list[PreparedCall]:
        block, equations = self.block, equations_of(self.block)
        first = {run[0].first: run for run in runs}
        inside = {position for run in runs for position in range(run[0].first, run[-1].last)}
        calls = []
        for position in lifetimes(block).computing:
            equation = equations[position]
            if position in first:
                run = first[position]
                call = bind_fusions(block, run, buffers, orders, control)
                made = [each for fusion in run for _, each in computed(block, fusion)]
                calls.append(PreparedCall(position, self._telling(call, made), OF_STEP))
            elif position not in inside:
                call = self._bind(equation, given_order(equation, orders), control)
                calls.append(PreparedCall(position, self._telling(call, [equation]), equation.draws))
        return calls

    def _bind(self, equation: Equation, order: Accumulation | None, control: FloatingPointControl) -> BoundCall:
        operands, output = self._operands(equation), self._arrays[equation.output]
        call = self._bound(equation, operands, output, order, control)
        call = _located(call, equation) if control.traps else call
        return call if self._wrap is None else self._wrap(call, equation, operands, output)

    def _bound(
        self, equation: Equation, operands: list[Any], output: Array, order: Accumulation | None,
        control: FloatingPointControl,
    ) -> BoundCall:  # fmt: skip
        call = bind(equation, operands, output, order, control, self._scratch)
        if equation.op != EACH_REPLICA:
            return call
        self.for_host[equation.number] = np.empty((1, *output.shape), output.dtype)

        def keeping(key: Key | None) -> None:
            call(key)
            self.for_host[equation.number][0, ...] = output

        return keeping

    def _telling(self, call: BoundCall, equations: Sequence[Equation]) -> BoundCall:
        """A call that tells the observer of the run, if there is one, what it did."""
        told = self._told
        if told is None or not (of := [equation for equation in equations if told.of(equation)]):
            return call
        facts = [(equation, self._operands(equation), self._arrays[equation.output]) for equation in of]

        def telling(key: Key | None) -> None:
            call(key)
            if self._observer is not None:
                for equation, operands, result in facts:
                    self._observer(equation, operands, result)

        return telling

    def _here(self, observer: Observer | None) -> bool:
        """Whether this one can run: its fusions need the compiled backend, and it tells no observer."""
        return self._told is not None or (observer is None and (not self._chained or pipeline.runs_here()))

    def _teller(self, among: Collection[int] | None) -> Executable:
        """The same, in whose memory every value is whole of which it tells, and what that was made of."""
        key = self._chained and pipeline.runs_here(), None if among is None else frozenset(among)
        if key not in self._tellers:
            block, accumulations, control, wrap, _ = self._made_of
            held = {var: self._arrays[var] for var in (*inputs_of(block), *block.constants)}
            made = type(self)(block, accumulations, control, wrap, key[0], Told(key[1], held, self._new))
            made.for_host = self.for_host  # whoever runs, the host reads here
            self._tellers[key] = made
        return self._tellers[key]

    @in_default_state
    def run(
        self,
        inputs: Sequence[Any],
        key: KeyLike,
        observer: Observer | None = None,
        among: Collection[int] | None = None,
        *,
        copied: bool = True,
    ) -> list[Array]:
        """The outputs for some inputs, in new arrays.

        Args:
            inputs: one array per input of the Block, of its shape and dtype. Integers of any width pass
                for int32, Python numbers for values without axes.
            key: of this step. Every equation that rounds stochastically takes key.fold_in(its number), in a loop
                that of `iteration_key`.
            observer: told of equations.
            among: of which it is told, by their numbers; None: of all.
            copied: False: outputs are the memory of this run, to be read before the next.

        Raises:
            ValueError, TypeError: inputs of other number, shape or dtype.
        """
        key = as_key(key)
        if not self._here(observer):
            return self._teller(among if observer else ()).run(inputs, key, observer, copied=copied)
        self._fill(self._inputs, inputs)
        results = self._advance(key, observer, copied)
        return [*self.read(), *results]

    @in_default_state
    def write(self, state: Sequence[Any]) -> None:
        """Takes copies of the leaves of a state.

        Raises:
            ValueError, TypeError: leaves of other number, shape or dtype.
        """
        self._fill(self._state, state)

    @property
    def renewed(self) -> bool:
        """Whether the last run made the state new: no branch chose the old one."""
        return bool(self._new)

    @property
    def held(self) -> list[Array]:
        """The arrays of the state that it holds. While an observer is told of a step they hold the state before it."""
        return [array for _, array in self._state]

    def read(self) -> list[Array]:
        """Copies of the leaves of the state that it holds."""
        return [array.copy() for _, array in self._state]

    def step(self, batch: Sequence[Any], lr: Any, key: KeyLike) -> float:
        """One training step: updates the state, gives the loss.

        Args:
            batch: the leaves of the batch.
            lr: the learning rate.
            key: of this step.

        Raises:
            ValueError, TypeError: as `run`.
        """
        return float(self.feed([*batch, lr], key)[0])

    @in_default_state
    def feed(
        self,
        inputs: Sequence[Any],
        key: KeyLike,
        observer: Observer | None = None,
        among: Collection[int] | None = None,
    ) -> list[Array]:
        """One run with the inputs that are not state: updates the state, gives the outputs that are not.

        The observer is told as by `run`.

        Raises:
            ValueError, TypeError: as `run`.
        """
        if not self._here(observer):
            return self._teller(among if observer else ()).feed(inputs, key, observer)
        self._fill(self._inputs[len(self._state) :], inputs)
        return self._advance(as_key(key), observer)

    @in_default_state
    def feed_many(self, inputs: Sequence[Sequence[Any]], key: Key, first: int) -> list[list[Array]]:
        """Several runs one after another, run i with key.fold_in(first + i), as a `Machine` does them in one call."""
        return [self.feed(given, key.fold_in(first + number)) for number, given in enumerate(inputs)]

    def _advance(self, key: Key, observer: Observer | None, copied: bool = True) -> list[Array]:
        """Runs the Block and makes the new state, unless a branch chooses the old, the one that is held."""
        self._observer, self._new[...] = observer, True
        self._program(key)
        # One may be a view of the state that is now replaced.
        results = [array.copy() for array in self._results] if copied or self._moves else list(self._results)
        if self._new:
            for to, source in self._moves:
                np.copyto(to, source)
        return results

    def _fill(self, places: Sequence[tuple[Var, Array]], values: Sequence[Any]) -> None:
        if len(values) != len(places):
            raise ValueError(f"the block has {len(places)} inputs, {len(values)} were given")
        for (var, array), value in zip(places, values, strict=True):
            value = checked(var, var.type.shape, array.dtype, value)
            if var in self._given:
                self._given[var] = value
            else:
                array[...] = value


def _seen(block: Block, told: Told) -> set[Var]:
    """The values in memory that are told of, and those of which these were made."""
    told_of = (equation for equation in equations_of(block) if told.of(equation))
    return lifetimes(block).roots(*(var for equation in told_of for var in (*equation.operands, equation.output)))


def _located(call: BoundCall, equation: Equation) -> BoundCall:
    """A call whose exceptions say where they were raised."""

    def located(key: Key | None) -> Any:
        try:
            return call(key)
        except FloatingPointException as error:
            raise FloatingPointException(f"{error}, in {equation.name}") from None

    return located


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
