"""Hamiltonian Monte Carlo of several chains side by side, in one precision: adaptation and draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core import initial
from ipu_core.engine.profile import Profile
from ipu_core.ir.block import Array, Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import flatten, map_leaves, named, paths, unflatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.eager import as_array
from ipu_core.ir.trace.tracing import trace
from ipu_core.sampling.adaptation import DualAveraging, coarse, scales_of, windows
from ipu_core.sampling.chains import Chains
from ipu_core.sampling.trajectory import LogDensity, draw_of
from ipu_core.train import checkpoint
from ipu_core.train.digests import described, digest
from ipu_core.train.predictor import Predictor
from lowprec import Key, as_key, random_bits
from lowprec.checks import integer, number, shown
from lowprec.processor import in_default_state

EXACT = "float64"
"""The name of the arithmetic that every precision is compared with: of NumPy, without a machine."""
FIGURES = ("log_density", "accept", "energy_error")
Progress = Callable[[int, int], None]


class Hmc:
    """Chains of Hamiltonian Monte Carlo: ``Hmc(log_density, start, x, y, leapfrog=20)``, then `warm_up` and `run`.

    A draw is one program: momenta, so many leapfrog steps as a scan on the device, and whether the end is taken.
    Positions are written as weights are, in the precision's format and rounding; momenta are kept as an optimizer's
    first moment; energies are added up as a loss is, in float32. Random numbers depend on the key and the number of the
    draw alone: all precisions have the same momenta, and a run that is cut off goes on with the same bits.

    Args:
        log_density: (positions, *data) -> (chains,), traceable: of each chain, up to a constant.
        start: Positions to begin at: arrays whose first axis is the chains, nested in any way.
        *data: What the density reads beside them.
        leapfrog: Steps of a draw.
        step_size: Their length, in units of the scales; the first guess where `warm_up` follows.
        scales: A deviation of every element, nested as a position without the chains; None: 1, until `warm_up`.
        jitter: The length of each draw's steps is uniform within this share of the mean, so that no orbit closes
            where `leapfrog` steps come near to 2 pi times a scale: few of such draws are worth one.
        precision: As a `Predictor` takes it, or "float64", to compare with: exact arithmetic on no machine.
        key: Of the momenta and of all that is random.
        engine, target: As a `Predictor` takes them.

    Raises:
        TypeError, ValueError: an argument out of range, a density that is not one number of each chain, unit scaling.
        OutOfTileMemory: it does not fit the target (engine "tiles").

    Chains are independent: what a density gives for one must not depend on another's position.
    """

    @in_default_state
    def __init__(
        self, log_density: LogDensity, start: Any, *data: Any, leapfrog: int = 10, step_size: float = 0.1,
        scales: Any = None, jitter: float = 0.1, precision: Precision | str = "fp32.32", key: Key | int = 0,
        engine: str = "direct", target: Any = "gc200",
    ) -> None:  # fmt: skip
        self._leapfrog, self._key = integer("leapfrog", leapfrog, 1), as_key(key)
        self._step_size, self._jitter = _step(step_size), number("jitter", jitter)
        if not 0 <= self._jitter < 1:
            raise ValueError(f"jitter must be a share in [0, 1), not {shown(jitter)}")
        begun = _positions(start)
        self._chains = int(flatten(begun)[0][0].shape[0])
        own = map_leaves(lambda x: np.ones(x.shape[1:], np.float32), begun)
        self._own = own
        self._scales = own if scales is None else map_leaves(_scale, scales, own)
        self._data = tuple(map_leaves(as_array, each) for each in data)
        self._density = digest(described(log_density)), digest(described(list(self._data)))
        self._warm: list[Any] = []
        self._draws: list[dict[str, Any]] = []
        self._averaging: DualAveraging | None = None
        self._wanted: int | None = None  # draws of the warm-up that is under way, or done
        self._runs = _runs(draw_of(log_density, self._leapfrog), begun, self._given(0), precision, engine, target)
        self._positions = self._runs.rounded(begun)

    @property
    def leapfrog(self) -> int:
        """Steps of a draw."""
        return self._leapfrog

    @property
    def precision(self) -> str:
        """The name of the arithmetic."""
        return self._runs.name

    @property
    def chains(self) -> int:
        """How many there are."""
        return self._chains

    @property
    def positions(self) -> Any:
        """Of all chains now, float32 (of "float64" that): copies."""
        return map_leaves(np.array, self._positions)

    @property
    def step_size(self) -> float:
        """The mean length of a leapfrog step; to be set before the first draw of `run` alone."""
        return self._step_size

    @step_size.setter
    def step_size(self, length: float) -> None:
        self._refuse_late("step_size")
        self._step_size = _step(length)

    @property
    def scales(self) -> Any:
        """The scale of each element; to be set before the first draw of `run` alone."""
        return map_leaves(np.array, self._scales)

    @scales.setter
    def scales(self, scales: Any) -> None:
        self._refuse_late("scales")
        self._scales = map_leaves(_scale, scales, self._own)

    def _refuse_late(self, name: str) -> None:
        if self._draws:
            raise ValueError(f"{name} can be set before run alone: draws that are made would be told with the new one")

    @property
    def profile(self) -> Profile | None:
        """The machine's account of one draw of all chains; None where no tiles are modelled."""
        return self._runs.profile

    @property
    def block(self) -> Block:
        """The program of one draw."""
        return self._runs.block

    def warm_up(self, draws: int = 500, *, accept: float = 0.8, progress: Progress | None = None) -> None:
        """Adapts the step and the scales in draws that are thrown away, until there are so many of them in all.

        Steps by dual averaging of all chains' acceptance (Hoffman and Gelman 2014); scales from the draws of all chains
        in windows (as Stan has them), which are shares of the draws. A call that was interrupted is made again, and
        does what is missing; one that was finished does nothing. The rate is often exceeded: steps err on the small
        side.

        Args:
            draws: How many.
            accept: The rate of acceptance to come near to.
            progress: Called after each draw with (how many are done, of how many).

        Raises:
            ValueError: after `run`, whose draws would be of two samplers; another number of draws than it was begun
                with; a density that is no number where chains begin, or that no step suits; an argument out of range.
        """
        wanted, rate = integer("draws", draws, 1), number("accept", accept)
        if not 0 < rate < 1:
            raise ValueError(f"accept must be a rate in (0, 1), not {shown(accept)}")
        if self._wanted is not None and wanted != self._wanted:
            raise ValueError(
                f"warm_up was begun with {self._wanted} draws, whose windows are shares of them, not {wanted}"
            )
        if self._draws and self._wanted is None:
            raise ValueError("warm_up comes before run: draws that are made would be of another step than later ones")
        self._wanted = wanted
        ends = windows(wanted)
        while len(self._warm) < wanted:
            before = self._averaging or DualAveraging.begun(self._step_size, rate)
            length = float(coarse(math.exp(before.step)))
            if not length:
                raise ValueError(
                    "no step is small enough for any draw to be accepted: is the density right, and in range?"
                )
            made = self._draw(length, len(self._warm))
            after = before.after(float(np.nan_to_num(np.asarray(made["accept"], np.float64)).mean()))
            scales = self._scales
            done = len(self._warm) + 1
            if done in ends:
                scales = scales_of([*self._warm, made["positions"]][ends[done] :])
                after = DualAveraging.begun(math.exp(after.average), rate)
            # Together, last: what is interrupted leaves the draws that are done.
            self._warm.append(made["positions"])
            self._positions, self._scales, self._averaging = made["positions"], scales, after
            self._step_size = float(coarse(math.exp(after.average)))
            if progress is not None:
                progress(done, wanted)

    def run(self, draws: int = 1000, *, progress: Progress | None = None) -> Chains:
        """Draws until there are so many in all, and gives them all.

        A call that was interrupted, or another after `load`, does what is missing and gives the same bits.

        Raises:
            ValueError: fewer than there are.
        """
        wanted = integer("draws", draws, 1)
        if wanted < len(self._draws):
            raise ValueError(f"there are {len(self._draws)} draws already: run({wanted}) would throw some away")
        while len(self._draws) < wanted:
            # Of a key of their own: a longer warm-up leaves the momenta as they are.
            made = self._draw(self._step_size, len(self._draws) + 2**32)
            self._draws.append(made)
            self._positions = made["positions"]
            if progress is not None:
                progress(len(self._draws), wanted)
        return self.so_far()

    def so_far(self) -> Chains:
        """The draws that are made.

        Raises:
            ValueError: none yet.
        """
        if not self._draws:
            raise ValueError("no draws yet: run(1000) makes some")
        rows = [each["positions"] for each in self._draws]
        figures = {name: np.stack([each[name] for each in self._draws]) for name in FIGURES}
        return Chains(
            map_leaves(lambda *x: np.stack(x), *rows), **figures, step_size=self._step_size, scales=self._scales,
            leapfrog=self._leapfrog, precision=self.precision,
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Writes all that is done into one file, for `load`: .npz, or .safetensors by its name."""
        arrays = _named("position", self._positions) | _named("scale", self._scales)
        for kind, rows in (("warm", self._warm), ("draw", [each["positions"] for each in self._draws])):
            if rows:
                arrays |= _named(kind, map_leaves(lambda *x: np.stack(x), *rows))
        if self._draws:
            arrays |= {name: np.stack([each[name] for each in self._draws]) for name in FIGURES}
        averaging = None if self._averaging is None else vars(self._averaging)
        checkpoint.save(
            path,
            arrays,
            {**self._identity(), "step_size": self._step_size, "averaging": averaging, "wanted": self._wanted},
        )

    def load(self, path: str | Path) -> None:
        """Goes on where a sampler of the same arguments was saved, from its positions, step and scales.

        Raises:
            ValueError: the file is another sampler's, with what differs.
        """
        arrays, meta = checkpoint.load(path)
        own = self._identity()
        if differ := [name for name in own if meta.get(name) != own[name]]:
            words = [
                f"another {name}" if name in ("density", "data") else f"{name} {meta.get(name)!r}, here {own[name]!r}"
                for name in differ
            ]
            raise ValueError(f"{path} is of another sampler: {'; '.join(words)}")
        tree = flatten(self._positions)[1]
        names = paths(tree)

        def nested(kind: str) -> Any:
            return unflatten(tree, [arrays[f"{kind}.{name}"] for name in names])

        def rows(kind: str) -> list[Any]:
            if f"{kind}.{names[0]}" not in arrays:
                return []
            whole = nested(kind)
            return [map_leaves(lambda x, i=i: x[i], whole) for i in range(len(flatten(whole)[0][0]))]

        found = rows("draw")
        self._draws = [{"positions": row, **{name: arrays[name][i] for name in FIGURES}} for i, row in enumerate(found)]
        self._warm, self._positions, self._scales = rows("warm"), nested("position"), nested("scale")
        self._step_size, self._wanted = meta["step_size"], meta["wanted"]
        self._averaging = None if meta["averaging"] is None else DualAveraging(**meta["averaging"])

    def _identity(self) -> dict[str, Any]:
        """What a file must have been written with, as JSON values."""
        shapes = {name: list(np.shape(leaf)) for name, leaf in named(self._positions)}
        return {
            "sampler": "hmc", "precision": self.precision, "leapfrog": self._leapfrog, "jitter": self._jitter,
            "key": str(self._key), "shapes": shapes, "density": self._density[0], "data": self._density[1],
        }  # fmt: skip

    @in_default_state
    def _draw(self, step: float, index: int) -> dict[str, Any]:
        made = self._runs.run(self._positions, self._given(index, step), index)
        # What is kept is what it began with where no trajectory is taken, and none is from a density that is no number.
        if not np.isfinite(made["log_density"]).all():
            lost = ", ".join(map(str, np.flatnonzero(~np.isfinite(made["log_density"]))))
            raise ValueError(f"the log density is infinite or no number where chains {lost} are: begin elsewhere")
        return made

    def _given(self, index: int, step: float | None = None) -> dict[str, Any]:
        """What a draw is fed."""
        for_momentum, for_uniform, for_jitter = self._key.fold_in(index).split(3)
        leaves, tree = flatten(self._scales)
        keys = for_momentum.split(len(leaves))
        momentum = [initial.normal(key, (self._chains, *x.shape)) for key, x in zip(keys, leaves, strict=True)]
        # 24 bits: float32 holds them, and stays below 1.
        uniform = (random_bits(for_uniform, (self._chains,), 24) * 2.0**-24).astype(np.float32)
        shaken = 1 + self._jitter * float(initial.uniform(for_jitter, (1,))[0])
        length = self._step_size if step is None else step
        return {
            "momentum": unflatten(tree, momentum), "uniform": uniform, "step": np.float32(length * shaken),
            "scales": self._scales, "data": self._data,
        }  # fmt: skip


class _Typed:
    """Draws in a precision, on one of the engines."""

    def __init__(self, draw: Any, positions: Any, given: Any, precision: Any, engine: str, target: Any) -> None:
        self._predictor = Predictor(draw, positions, given, precision=precision, engine=engine, target=target)
        self.name, self.block = self._predictor.precision.name, self._predictor.block
        if self._predictor.precision.unit_scaled:
            raise ValueError(f"{self.name} is under unit scaling, which would change the density: sample without it")

    @property
    def profile(self) -> Profile | None:
        return self._predictor.profile

    def rounded(self, positions: Any) -> Any:
        """Positions as this arithmetic keeps them."""
        formats = [self._predictor.precision.weights_of(name) for name, _ in named(positions)]
        leaves, tree = flatten(positions)
        kept = [cast(x, fmt).astype(np.float32) for x, fmt in zip(leaves, formats, strict=True)]
        return unflatten(tree, kept)

    def run(self, positions: Any, given: Any, index: int) -> dict[str, Any]:
        self._predictor.write(positions)
        made: dict[str, Any] = self._predictor(given, index)
        return {name: map_leaves(np.array, value) for name, value in made.items()}


class _Exact:
    """Draws in float64, on no machine."""

    name, profile = EXACT, None

    def __init__(self, draw: Any, positions: Any, given: Any) -> None:
        self.block = trace(draw, positions, given)

    def rounded(self, positions: Any) -> Any:
        return map_leaves(lambda x: np.asarray(x, np.float64), positions)

    def run(self, positions: Any, given: Any, index: int) -> dict[str, Any]:
        assert self.block.result is not None
        values = evaluate_flat(self.block, flatten((positions, given))[0])
        made: dict[str, Any] = unflatten(self.block.result, [np.array(x, np.float64) for x in values])
        return made


def _runs(draw: Any, positions: Any, given: Any, precision: Any, engine: str, target: Any) -> _Typed | _Exact:
    if isinstance(precision, str) and precision == EXACT:
        if engine == "tiles":
            raise ValueError("float64 is exact arithmetic on no machine: engine='direct'")
        return _Exact(draw, positions, given)
    return _Typed(draw, positions, given, precision, engine, target)


def _positions(start: Any) -> Any:
    """Arrays of floats with as many chains each.

    Raises:
        TypeError, ValueError: in words.
    """
    made = map_leaves(lambda x: np.asarray(as_array(x)), start)
    leaves = named(made)
    if not leaves:
        raise TypeError(f"start holds no array: {shown(start)}")
    for name, leaf in leaves:
        if leaf.dtype.kind in "iubc" or not leaf.ndim:
            listed = "; a list is a nest of parts: give np.array(...)" if isinstance(start, list) else ""
            words = f"start{name and '.' + name} must be floats with a first axis of chains, not {shown(leaf)}"
            raise TypeError(words + listed)
        if not leaf.size or not np.isfinite(np.asarray(leaf, np.float64)).all():
            raise ValueError(f"start{name and '.' + name} must hold finite numbers, at least one of each chain")
    if len({leaf.shape[0] for _, leaf in leaves}) > 1 or not leaves[0][1].shape[0]:
        given = ", ".join(f"{name or 'start'} {leaf.shape}" for name, leaf in leaves)
        raise ValueError(f"every part of a position has the chains as its first axis, as many of them, not {given}")
    return map_leaves(lambda x: x.astype(np.float32), made)


def _step(length: Any) -> float:
    if not 0 < (given := number("step_size", length)) < math.inf:
        raise ValueError(f"step_size must be a positive number, not {shown(length)}")
    return given


def _scale(given: Any, like: Array) -> Array:
    array = np.asarray(given, np.float32)
    if array.shape != like.shape or not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"scales must be positive numbers of shape {like.shape}, one of each element of a chain")
    return array


def _named(kind: str, nested: Any) -> dict[str, Array]:
    return {f"{kind}.{name}": np.asarray(leaf) for name, leaf in named(nested)}
