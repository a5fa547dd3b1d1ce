"""Runs the faults of `faults.toml` and judges what `blame` says of each; prints the table of how-to/blame.md.

``python -m tests.ipu_core.diagnose.blame.fault_table`` does all of them in all seeds; words select by name or kind.
"""

from __future__ import annotations

import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import ipu_core
from ipu_core import TrainLoop, blame
from ipu_core.diagnose.blame import Blame
from ipu_core.diagnose.blame.settings import Setting
from tests.ipu_core.diagnose.blame.four_models import MODELS, Batch

FILE = Path(__file__).with_name("faults.toml")
CALLS = {
    name: getattr(ipu_core, name) for name in ("Sgd", "Adam", "AdamW", "Lamb", "FloatingPointControl", "LossScale")
}
NOTHING = "none"
WHAT = {
    "saturation": ("overflow",), "underflow of one role": ("underflow",), "lost updates": ("lost updates",),
    "second moment": ("underflow", "lost increments"), "accumulator width": ("partial sums", "underflow", "overflow"),
}  # fmt: skip
"""By kind of fault, what is said to happen to the numbers of its equation."""


@dataclass(frozen=True)
class Fault:
    """An entry of `faults.toml`, see there."""

    name: str
    kind: str
    model: str
    precision: str
    optimizer: str
    steps: int = 200
    gain: float = 1.0
    inputs: float = 1.0
    small: float = 1.0
    bad: tuple[int, ...] = ()
    broken: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    equations: tuple[str, ...] = ()

    def training(self, seed: int) -> tuple[TrainLoop, Callable[[int], Batch]]:
        """A loop and its batches."""
        model, rng = MODELS[self.model], np.random.default_rng([seed, 0])
        task, params = model.task(rng), model.params(rng)

        if self.broken:
            array = params
            for name in self.broken.split("."):
                array = array[name]
            array[(0,) * array.ndim] = np.nan

        def batch(step: int) -> Batch:
            x, y = model.batch(np.random.default_rng([seed, 1, step]), task)
            x = x * np.float32(self.inputs) if self.inputs != 1 else x
            if step in self.bad:
                x[(0,) * x.ndim] = np.nan
            return x, y

        options = {name: _read(value) for name, value in self.options.items()}
        loop = TrainLoop(
            lambda p, x: model.loss(p, x, self.gain) * self.small, params, batch(0), optimizer=_read(self.optimizer),
            precision=self.precision, engine="direct", key=seed, **options,
        )  # fmt: skip
        return loop, batch


def _read(value: Any) -> Any:
    """A call that is written out, or the value itself."""
    return eval(value, dict(CALLS)) if isinstance(value, str) and value.endswith(")") else value


def faults() -> list[Fault]:
    """Those of the file."""
    read = tomllib.loads(FILE.read_text("utf-8"))["fault"]
    return [Fault(**{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}) for each in read]


def seeds() -> list[int]:
    """In which the table is made."""
    return list(tomllib.loads(FILE.read_text("utf-8"))["seeds"])


@dataclass(frozen=True)
class Verdict:
    """What `blame` said of a fault in one seed, and whether it is right.

    Attributes:
        right: cause and equation are, or of nothing nothing is said.
        diverged: whether the run did diverge, by its own losses.
        called: whether it was called so.
        seconds: of `blame`.
        plain: seconds of making the loop and doing the run.
    """

    fault: Fault
    seed: int
    found: Blame
    right: bool
    diverged: bool
    called: bool
    seconds: float
    plain: float


def judged(fault: Fault, seed: int) -> Verdict:
    """Runs a fault and judges what is said of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        loop, batches = fault.training(seed)
        losses = loop.run(batches, fault.steps).astype(np.float64)
        plain = time.perf_counter() - began
        skipped = [each.step for each in loop.skipped]
        loop, batches = fault.training(seed)
        began = time.perf_counter()
        found = blame(loop, batches, fault.steps)
        seconds = time.perf_counter() - began
    counted = np.delete(losses, skipped) if len(skipped) < len(losses) else losses
    diverged = not np.isfinite(counted).all() or losses[-fault.steps // 10 :].mean() > 2 * losses[0]
    return Verdict(
        fault, seed, found, is_right(fault, found), bool(diverged), found.diverged is not None, seconds, plain
    )


def is_right(fault: Fault, found: Blame) -> bool:
    """Whether cause and equation are those that were planted."""
    if fault.kind == NOTHING:
        return found.healthy and not found.culprits
    if found.chance or found.healthy:
        return False
    named = {culprit.switch.cause: culprit for culprit in found.culprits}
    if not set(fault.causes) <= named.keys() <= {*fault.causes, *fault.also}:
        return False
    first = named[fault.causes[0]].switch
    if named[fault.causes[0]].kind not in WHAT.get(fault.kind, (named[fault.causes[0]].kind,)):
        return False
    if fault.parts and {first.part, *getattr(first, "others", ())} != set(fault.parts):
        return False
    pairs = zip(fault.causes, fault.equations, strict=False)
    return all(fnmatchcase(_place(named[cause]), pattern) for cause, pattern in pairs)


def _place(culprit: Any) -> str:
    """The equation that is named; of a setting that has none, why it is one."""
    if isinstance(culprit.switch, Setting) and not culprit.equation:
        return str(culprit.kind)
    return str(culprit.equation)


def table(verdicts: Sequence[Verdict]) -> str:
    """Right ones by kind, as Markdown."""
    kinds = dict.fromkeys(v.fault.kind for v in verdicts)
    lines = [
        "| planted | trainings | right | diverged, called so | times the run: median, most | measured, median |",
        "|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        own = [v for v in verdicts if v.fault.kind == kind]
        spent = sorted(v.found.spent for v in own)
        gone = [v for v in own if v.diverged]
        called = f"{sum(v.called for v in gone)} of {len(gone)}" if gone else ""
        measured = np.median([v.seconds / v.plain for v in own])
        cost = f"{np.median(spent):.1f}, {spent[-1]:.1f}"
        lines.append(f"| {kind} | {len(own)} | {sum(v.right for v in own)} | {called} | {cost} | {measured:.1f} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Prints every verdict and the table."""
    verdicts = list[Verdict]()
    for fault in faults():
        if words and not any(word in (fault.name, fault.kind, fault.model) for word in words):
            continue
        for seed in seeds():
            one = judged(fault, seed)
            verdicts.append(one)
            called = {True: "", False: ", NOT CALLED DIVERGED" if one.diverged else ", CALLED DIVERGED"}
            print(f"{'right' if one.right else 'WRONG'} {fault.kind}: {fault.name}, {fault.model}, seed {seed}"
                  f"{called[one.diverged == one.called]} ({one.seconds:.1f} s, {one.seconds / one.plain:.1f} runs)",
                  flush=True)  # fmt: skip
            if not one.right:
                print(one.found)
    print(table(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
