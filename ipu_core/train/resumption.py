"""The state of a training loop as a checkpoint, and back: what follows has the bits of a run that never ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_core.ir.block import Array
from ipu_core.ir.pytree import paths
from ipu_core.train import checkpoint
from ipu_core.train.arguments import check_integer
from ipu_core.train.progress import Run
from ipu_core.train.scaling import Skipped
from ipu_core.train.stepping import Stepping
from lowprec.arrays import whole_array
from lowprec.checks import entries, expect, expect_path, shown


class Resumable(Stepping):
    """What saves and loads the state of a `TrainLoop`."""

    _run: Run | None
    _resumed: tuple[int, dict[str, Any]] | None
    _traced_step: str

    def arrays(self) -> dict[str, Array]:
        """The whole state by dotted name, for a checkpoint."""
        state = dict(zip(paths(self._tree), self._runner.read(), strict=True)) | self._runner.drawn
        return state if self._scale is None else state | self._scale.arrays()

    def history(self) -> dict[str, Any]:
        """What happened so far, as JSON for a checkpoint: steps skipped, and a loss that was not finite."""
        return {"skipped": [list(each) for each in self.skipped], "not_finite": self.not_finite}

    def restore(self, arrays: Mapping[str, Array], step: int, history: Mapping[str, Any] | None = None) -> None:
        """Takes up a state that `arrays` gave after `step` steps, and the `history` of then.

        Raises:
            TypeError: no arrays by name; masked elements.
            ValueError: the arrays are not those of this loop's state, there is no such step, or another history.
        """
        check_integer("step", step)
        expect(Mapping, arrays=arrays)
        skipped, not_finite = _happened(history)
        arrays = {name: whole_array(array) for name, array in arrays.items()}
        present = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if present != {name: (array.shape, array.dtype) for name, array in self.arrays().items()}:
            raise ValueError("the checkpoint's arrays are not those of this training step")
        if self._scale is not None:
            self._scale = self._scale.restored(arrays)
        self._runner.write([arrays[name] for name in paths(self._tree)])
        self._runner.draw_on(arrays)
        self.step, self._run = int(step), None
        if self._watching is not None:
            self._watching.rewind(self.step)
        if history is not None:
            self.skipped, self.not_finite = skipped, not_finite

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint that `load` goes on from: weights, moments, loss scale, the step, the key of the run, and
        the state of the tiles' random generators where it draws from them.

        With the key and the step the random bits of every later step are known. In a run it holds also what callbacks
        have seen and the place in the batches. The file is there whole or not at all; a name that ends in .safetensors
        makes one of that format, any other an .npz.

        Raises:
            OSError: the file cannot be written.
            TypeError: the state of a callback is not made of JSON values.
        """
        expect_path("path", path)
        run = self._kept() if self._run is None else self._run.state(self.step)
        meta = {"step": self.step, **self._identity(), "history": self.history(), "run": run}
        checkpoint.save(path, self.arrays(), meta)

    def load(self, path: str | Path) -> None:
        """Takes up a checkpoint of a loop like this one: what follows has the bits of a run that never ended.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no checkpoint, or that of a loop with another key, precision, step or state.
        """
        arrays, meta = checkpoint.load(path)
        for name, own in self._identity().items():
            if (other := meta.get(name)) != own:
                raise ValueError(f"{path} is of a run with {_unlike(name, str(other), own)}")
        self.restore(arrays, meta["step"], meta.get("history"))
        self._resumed = self.step, meta.get("run") or {}

    def _kept(self) -> dict[str, Any]:
        """What the run of a checkpoint left to the next one, if that begins where it was."""
        step, run = self._resumed or (self.step, {})
        return run if step == self.step else {}

    def _identity(self) -> dict[str, str]:
        """What tells runs apart that have the same state; the order of the equations does only where tiles draw."""
        own = {"key": repr(self._key), "precision": self.training.precision.words(), "traced step": self._traced_step}
        return own if self._random is None else {**own, "random": repr(self._random)}


def _happened(history: Mapping[str, Any] | None) -> tuple[tuple[Skipped, ...], tuple[int, float] | None]:
    """The steps skipped and the first loss that was not finite, of a history."""
    if history is None:
        return (), None
    skipped, loss = entries("history", history, ("skipped", "not_finite"))
    try:
        steps = tuple(Skipped(int(at), float(scale), tuple(names)) for at, scale, names in skipped)
        return steps, None if loss is None else (int(loss[0]), float(loss[1]))
    except (TypeError, ValueError, IndexError, KeyError):
        raise ValueError(f"a history is what history() gave, not {shown(history)}") from None


def _unlike(name: str, other: str, own: str) -> str:
    """What two runs differ in, of a precision its name."""
    if name == "traced step":
        return "another traced step: another loss, optimiser, shape, order of sums or setting of the loop"
    if name == "precision" and other.partition(":")[0] != own.partition(":")[0]:
        other, own = other.partition(":")[0], own.partition(":")[0]
    return f"{name} {other}, this one has {own}"
