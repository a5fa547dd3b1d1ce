"""Names of a package whose modules load when they are first asked for (PEP 562): what keeps `import lowprec` short."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    A module must not have the name of anything in the table: once it was imported, the import system would have put
    the module in the place of the thing.

    Args:
        package: its `__name__`.
        table: module -> the names it defines, with spaces between them; a module without names is meant itself.
    """
    module_of = {name: module for module, names in table.items() for name in (names or module).split()}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{module_of[name]}")
        found = module if module_of[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, found)  # the next time it is an ordinary attribute
        return found

    return find
