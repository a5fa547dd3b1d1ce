"""The command `figures`: the ledger as tables, or as JSON."""

from __future__ import annotations

import json

from ipu_core.figures.catalogue import ledger


def show(name: str | None, *, as_json: bool = False, models: bool = False) -> None:
    """Prints the ledger.

    Args:
        name: see `ledger`.
        as_json: as one JSON value.
        models: heavy rows too.

    Raises:
        ValueError: there is no figure of the name.
    """
    made = ledger(name, models=models)
    print(json.dumps(made.to_json(), indent=1, ensure_ascii=False) if as_json else made)
