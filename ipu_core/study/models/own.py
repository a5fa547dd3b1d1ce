"""A model of one's own on the command line, FILE:NAME: what the function NAME of a Python file gives."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipu_core.study.compare import by_seed, listed, same
from ipu_core.study.models.named import GIVES, Own, parts
from ipu_core.study.point import Problem
from ipu_core.train.digests import described, digest
from lowprec.checks import shown


def load(model: str) -> Own:
    """Calls the function.

    Raises:
        ValueError: no such file or function, or one that gives something else.
    """
    words, made = called(model)
    if isinstance(made, Problem):
        return Own(words, made, described(made))
    if not isinstance(made, tuple) or len(made) not in (3, 4) or not callable(made[0]):
        raise ValueError(f"{words} gave {shown(made)}; it must be {GIVES} (and evaluate as a fourth)")
    loss, params, batches, *evaluate = made
    given = batches if callable(batches) else listed(batches)
    make = params if callable(params) else functools.partial(same, params)
    return Own(words, Problem(loss, make, by_seed(given), *evaluate), described((loss, params, given, *evaluate)))


def called(model: str) -> tuple[str, Any]:
    """The name of a function in a file, in short, and what it gives.

    Raises:
        ValueError: no such file or function, or one that fails.
    """
    _, (path, name) = parts(model)
    return f"{path.name}:{name}", _called(path, name)


def _called(path: Path, name: str) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    # By its absolute place, so that two files of one name are two modules.
    module_name = f"_lowprec_model_{digest(str(path.absolute()))[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Functions of it are sent to other processes by this name; what stands beside the file is imported as by Python.
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
        function: Callable[[], Any] | None = getattr(module, name, None)
        if not callable(function):
            there = ", ".join(sorted(key for key, each in vars(module).items() if callable(each) and key[0] != "_"))
            raise ValueError(f"{path.name} has no function {name!r}; there are {there or 'none'}")
        return function()
    except (ValueError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"{path.name}:{name} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.absolute().parent))
