"""`Watch`: which values are watched, how often and in which file; `Watching` does so for one run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.watch.file import RowFile
from ipu_core.diagnose.watch.look import ROW, Look, new_state, places
from ipu_core.diagnose.watch.record import Record
from ipu_core.diagnose.watch.values import as_table, watched_values
from ipu_core.ir.block import Array, Block
from lowprec.checks import integer


@dataclass(frozen=True)
class Watch:
    """What of a training run is looked at: ``TrainLoop(..., watch=Watch(every=10, path="run.watch"))``.

    Attributes:
        every: Steps from one look to the next; the first is at step 0.
        path: The file in which the looks are kept, each as soon as its step is done (see `Record.read`). A run that
            goes on from a checkpoint goes on in it. Where it cannot be written (a full disk) a RuntimeWarning says so,
            nothing more is watched, and the run goes on. None: they are kept in memory, and are no part of checkpoints.
        values: Patterns of names of values (see `WatchedValue`), or of those that rules of a precision have, as rules
            match them: "layers.0" and "layers.0.*" are for all of that layer, "*.grad_weight.*" for gradients.

    Raises:
        ValueError: fewer than one step, or no pattern.
        TypeError: an argument of another kind.
    """

    every: int = 10
    path: str | Path | None = None
    values: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        integer("watch: every", self.every, 1)
        if self.path is not None and not isinstance(self.path, str | Path):
            raise TypeError(f"watch: path must name a file, not {self.path!r}")
        patterns = isinstance(self.values, tuple) and all(isinstance(pattern, str) for pattern in self.values)
        if not patterns or not self.values:
            raise TypeError(f"watch: values must be patterns of names such as ('layers.0.*',), not {self.values!r}")

    @staticmethod
    def of(spec: Any) -> Watch:
        """What `watch=` means: a Watch, or every how many steps.

        Raises:
            TypeError, ValueError: it is neither.
        """
        if isinstance(spec, str | Path):
            raise TypeError(f"watch={str(spec)!r} does not say how often: give Watch(every=10, path={str(spec)!r})")
        return spec if isinstance(spec, Watch) else Watch(every=spec)


class Watching:
    """Watches one typed training step: an observer for each step that is due, and the record of what it saw.

    Args:
        watch: What is watched.
        block: The typed step.

    Attributes:
        equations: The numbers of the equations whose results are looked at.

    Raises:
        ValueError: a pattern that no value matches, or a file of another step.
    """

    def __init__(self, watch: Watch, block: Block) -> None:
        self._watch = watch
        self._values = watched_values(block, watch.values)
        self._table = as_table(self._values)
        self._places = places(self._values, block)
        self.equations = frozenset(self._places)
        moments = {value.equation for value in self._values if value.kind == "moment"}
        self._replaced = {number: place for number, place in new_state(block).items() if number in moments}
        self._file = None if watch.path is None else RowFile(watch.path, self._table)
        self._kept: list[npt.NDArray[np.void]] = []
        self._ended = False

    def due(self, step: int, count: int = 1) -> bool:
        """Whether a step is looked at, or one of some from it on."""
        # Steps from this one to the next multiple of `every`: 0 where it is one itself.
        return not self._ended and -step % self._watch.every < count

    @contextmanager
    def look(self, step: int, held: Sequence[Array]) -> Iterator[Look]:
        """An observer of a step; what it saw is kept if the context, the step, ends well.

        Args:
            step: Its number.
            held: Where the state before it lies while the observer is told of the step.
        """
        # No copy: an observed step leaves the old state where it is until it ends.
        old = {number: held[place] for number, place in self._replaced.items()}
        look = Look(self._places, len(self._values), old)
        yield look
        if self._file is not None:
            with self._writing(self._file.path):
                self._file.append(look.rows(step))
        else:
            self._kept = [*self._kept, look.rows(step)]  # a copy's list stays as it is

    def rewind(self, step: int) -> None:
        """Forgets a step, which is to be done again, and those after it."""
        if self._file is not None:
            with self._writing(self._file.path):
                self._file.rewind(step)
        self._kept = [rows for rows in self._kept if rows["step"][0] < step]

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """A file that cannot be written costs no step: it is said once, and nothing more is watched."""
        try:
            yield
        except OSError as error:
            # A disk that is full stays so: every later look would fail, and take its time.
            self._ended = True
            words = f"{path} cannot be written: {error.strerror or error}; nothing more is watched"
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    @property
    def record(self) -> Record:
        """What was seen so far."""
        if self._file is not None:
            return Record(self._table, self._file.rows())
        return Record(self._table, np.stack(self._kept) if self._kept else np.zeros((0, len(self._table)), ROW))
