"""Without torch everything else works, and from_torch says what to install."""

import sys

import pytest

from ipu_core import from_torch


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch is needed here: .*\[torch\]"):
        from_torch(None, ())
