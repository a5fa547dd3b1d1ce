"""Names of models in files, FILE:NAME or torch:FILE:NAME, and what was found under one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_core.train.digests import digest

if TYPE_CHECKING:
    from ipu_core.study.point import Problem

TORCH = "torch:"
GIVES = "a function without arguments that gives (loss, params, batches), as `compare` takes them, or a Problem"
GIVES_TORCH = "a function without arguments that gives (module, loader, loss)"


@dataclass(frozen=True)
class Own:
    """What such a function gave.

    Attributes:
        name: the file's and the function's: "model.py:make".
        problem: what is trained.
        what: the functions and data in JSON values, which tell one problem from another.
    """

    name: str
    problem: Problem
    what: Any

    def digest(self) -> str:
        """Of the functions' code and the data, whatever the file is called."""
        return digest(self.what)


def is_own(model: str) -> bool:
    """Whether a model's name is that of a file and a function."""
    return ":" in model or model.endswith(".py")


def absolute(model: str) -> str:
    """The same, found from any working directory."""
    prefix, (path, name) = parts(model)
    return f"{prefix}{path.absolute()}:{name}"


def parts(model: str) -> tuple[str, tuple[Path, str]]:
    prefix = TORCH if model.startswith(TORCH) else ""
    path, _, name = model.removeprefix(prefix).rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        gives = GIVES_TORCH if prefix else GIVES
        raise ValueError(f"{model!r} names no model: {prefix}FILE.py:NAME is {gives}")
    return prefix, (Path(path), name)
