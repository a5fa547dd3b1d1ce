"""Loads optional packages when they are first needed and says in one sentence how to install them."""

import importlib
from types import ModuleType


def optional(module: str, *, extra: str, package: str | None = None) -> ModuleType:
    """Imports `module`, which belongs to one of the distribution's extras.

    Raises:
        ImportError: the package is not installed; the message gives the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.split(".")[0]
        command = f"python -m pip install -e '.[{extra}]' in a clone of lowprec"
        raise ImportError(f"{name} is needed here: {command}") from error
