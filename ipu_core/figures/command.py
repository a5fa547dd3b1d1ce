"""The command `figures`: the ledger as tables, or as JSON."""

from __future__ import annotations

import json
import sys

from ipu_core.figures.catalogue import ledger


def show(name: str | None, *, as_json: bool = False, models: bool = False) -> None:
    """Prints the ledger; rows that take long are told on standard error.

    Args:
        name: see `ledger`.
        as_json: as one JSON value.
        models: heavy rows too.

    Raises:
        ValueError: there is no figure of the name.
    """
    made = ledger(name, models=models, progress=lambda text: print(f"making {text}", file=sys.stderr, flush=True))
    print(json.dumps(made.to_json(), indent=1, ensure_ascii=False) if as_json else made)
