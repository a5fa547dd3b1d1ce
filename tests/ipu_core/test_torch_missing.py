"""Without torch everything else works, from_torch says what to install, and the list of operations is of today."""

import sys
from pathlib import Path

import pytest

import ipu_core.capture
from ipu_core import from_torch
from ipu_core.capture.__main__ import table


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch is needed here: .*\[torch\]"):
        from_torch(None, ())


def test_the_list_of_operations_is_that_of_the_table() -> None:
    assert (Path(ipu_core.capture.__file__).parent / "OPERATIONS.md").read_text() == table() + "\n"
