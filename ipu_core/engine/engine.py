"""Engine: compiles programs of a graph once, runs them, and keeps their account (Poplar's Engine)."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.arrays import aligned
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import TileRandom, WorkerState
from ipu_core.engine.accountant import ProgramAccount, account
from ipu_core.engine.bind import KeyCell, view_of
from ipu_core.engine.compile import Compiler
from ipu_core.engine.memory import MemoryAccount
from ipu_core.engine.profile import Profile
from ipu_core.engine.streams import HostEnds, as_elements
from ipu_core.engine.tree import is_dynamic, reset
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import Tensor, Variable
from lowprec import Key, as_key
from lowprec.checks import expect, integer, listed, truth
from lowprec.processor import in_default_state


class Engine:
    """A graph with its programs, compiled.

    Compilation checks that every element lies on exactly one tile and that no compute set has a race, binds each vertex
    group to the variables' storage, and accounts cycles, bytes and memory. Running is a list of prepared calls.

    Args:
        graph: the graph; what is added to it later is not seen.
        programs: one program, or several to be run by number.
        control: floating-point control of all tiles.
        key: random key (or seed) of codelets that round stochastically. The key of a run is `key` folded with the
            number of the run, `step`, unless `set_key` gives one.
        allow_out_of_memory: go on when a tile, or streaming memory, has less memory than is needed.
        random: the state of every worker of every tile, of shape (tiles, workers), where random bits shall be those of
            the tiles' own generators; None: they are the key's.

    Raises:
        TypeError: no Graph, or a key that is none.
        UnmappedTensor, MappedTwice, DataRace, OutOfTileMemory, OutOfStreamingMemory: see `ipu_core.errors`.
    """

    @in_default_state
    def __init__(
        self,
        graph: Graph,
        programs: Program | Sequence[Program],
        control: FloatingPointControl | None = None,
        key: Key | int | None = None,
        allow_out_of_memory: bool = False,
        *,
        random: WorkerState | None = None,
    ) -> None:
        expect(Graph, graph=graph)
        for name, value, kind in (("control", control, FloatingPointControl), ("random", random, WorkerState)):
            if value is not None:
                expect(kind, **{name: value})
        allow_out_of_memory = truth("allow_out_of_memory", allow_out_of_memory)
        self.graph = graph
        self.target = graph.target
        self.control = control or FloatingPointControl()
        self.key = None if key is None else as_key(key)
        self.step = 0
        self._step_key: Key | None = None
        self._random = None if random is None else TileRandom(random)
        self._cell = KeyCell(self._next_run, self._random)
        self._ends = HostEnds()
        self._storage = {variable: _storage_of(variable) for variable in graph.variables}
        compiler = Compiler(self.target, self._storage, self.control, self._cell, self._ends)
        several: list[Program] = [programs] if isinstance(programs, Program) else listed("programs", programs)
        # The account asks the bound codelets what they cost: each is bound, and prepared, once for account and calls.
        self._account = account(
            graph, several, self.control, allow_out_of_memory=allow_out_of_memory, codelets_of=compiler.codelets
        )
        trees = self._account.trees
        self._calls = [tuple(compiler.calls(program, tree)) for program, tree in zip(several, trees, strict=True)]
        self._dynamic = [is_dynamic(tree) for tree in trees]
        self._ran = [False] * len(several)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Engine cannot be copied or pickled: make another one of the same graph and programs, "
            "and write to it what this one's read gives"
        )

    @property
    def account(self) -> ProgramAccount:
        """What its programs cost and need."""
        return self._account

    @property
    def memory(self) -> MemoryAccount:
        """The memory of all its programs together."""
        return self._account.memory

    @in_default_state
    def run(self, program: int = 0) -> None:
        """Runs a program once.

        Raises:
            IndexError: there is no such program.
        """
        self._check_program(program)
        self._set_run_key()
        if self._dynamic[program]:
            # A profile counts the last run, not all of them.
            reset(self._account.trees[program])
            self._ran[program] = True
        for call in self._calls[program]:
            call()
        # Behind the calls: a run that raised is made again with the key that it had.
        self.step += 1

    def _set_run_key(self) -> None:
        if self._step_key is not None:
            self._cell.key = self._step_key
        elif self.key is not None:
            self._cell.key = self.key.fold_in(self.step)

    def _next_run(self) -> None:
        self.step += 1
        self._set_run_key()

    def set_key(self, key: Key | int | None) -> None:
        """Sets the key of the runs to come as it is (a training loop's step key); None returns to `key` and `step`."""
        self._step_key = None if key is None else as_key(key)

    @property
    def random_state(self) -> WorkerState | None:
        """A copy of the state of the tiles' generators; None where random bits are the key's. Runs go on from it."""
        return None if self._random is None else WorkerState(*(words.copy() for words in self._random.state))

    @random_state.setter
    def random_state(self, state: WorkerState) -> None:
        if self._random is None:
            raise ValueError("this engine's random bits are its key's: it has no state of generators")
        self._random.restore(state)

    @in_default_state
    def write(self, tensor: Tensor, values: Any) -> None:
        """Writes host values into a tensor; floats are rounded to nearest by the format's own rules.

        Raises:
            ValueError: wrong shape; the tensor is a constant's or a temporary's.
        """
        self._check_host(tensor, "written")
        if tensor.variable.constant:
            raise ValueError(f"{tensor.variable} is a constant: its values are set by add_constant")
        view = view_of(tensor, self._storage)
        view[...] = as_elements(str(tensor.variable), values, tensor.format, tensor.shape)

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """A copy of a tensor's elements, in its format's storage dtype.

        Raises:
            ValueError: the tensor is a temporary's, whose memory others may have taken.
        """
        self._check_host(tensor, "read")
        return view_of(tensor, self._storage).copy()

    def connect(self, stream: DataStream, host: Any) -> None:
        """Connects the host's end of a stream.

        Args:
            stream: the stream.
            host: to the device: an array sent every time, an iterator, or a callable that returns arrays. From the
                device: a callable, a list to append to, or an array to fill.
        """
        self._ends.connect(stream, host)

    def write_remote(self, buffer: RemoteBuffer, entry: int, values: Any) -> None:
        """Writes host values into an entry of a remote buffer.

        Raises:
            IndexError: there is no such entry.
            ValueError: wrong shape.
        """
        memory = self._ends.remote(buffer)
        self._check_entry(buffer, entry)
        memory[entry] = as_elements(f"remote buffer {buffer.name!r}", values, buffer.format, buffer.shape)

    def read_remote(self, buffer: RemoteBuffer, entry: int) -> NDArray[Any]:
        """A copy of an entry of a remote buffer.

        Raises:
            IndexError: there is no such entry.
        """
        memory = self._ends.remote(buffer)
        self._check_entry(buffer, entry)
        return np.array(memory[entry])

    def profile(self, program: int = 0) -> Profile:
        """The account of one run of a program.

        Cost depends on data only through If, Switch and RepeatWhile; those count what the program's last run did.

        Raises:
            IndexError: there is no such program.
        """
        self._check_program(program)
        return self._account.profile(program, measured=self._ran[program])

    def _check_program(self, program: int) -> None:
        if not 0 <= integer("a program's number", program) < len(self._calls):
            raise IndexError(f"there are programs 0..{len(self._calls) - 1}, not {program}")

    @staticmethod
    def _check_entry(buffer: RemoteBuffer, entry: int) -> None:
        if not 0 <= integer("entry", entry) < buffer.entries:
            raise IndexError(f"remote buffer {buffer.name!r} has the entries 0..{buffer.entries - 1}, not {entry}")

    def _check_host(self, tensor: Tensor, what: str) -> None:
        expect(Tensor, tensor=tensor)
        if tensor.variable not in self._storage:
            raise ValueError(f"{tensor.variable} is not in this engine's graph")
        if tensor.variable.temporary:
            raise ValueError(
                f"{tensor.variable} is temporary and cannot be {what} by the host: add it with temporary=False"
            )


def _storage_of(variable: Variable) -> NDArray[Any]:
    storage = aligned(variable.size, variable.dtype)
    if variable.initial is not None:
        storage[...] = variable.initial
    return storage
