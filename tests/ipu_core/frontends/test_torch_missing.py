"""Without torch everything else works, from_torch says what to install, and the list of operations is of today."""

import subprocess
import sys
from pathlib import Path

import pytest

import ipu_core.frontends.torch
import lowprec
from ipu_core import from_torch
from ipu_core.frontends.torch.__main__ import table


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch is needed here: .*\[torch\]"):
        from_torch(None, ())


def test_the_side_road_loads_torch_when_it_is_used_and_its_old_name_says_where_it_is() -> None:
    code = (
        "import sys, ipu_core, lowprec\n"
        "emulate = ipu_core.emulate\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    emulate('fp16.16/nearest')\n"
        "except ImportError as error:\n"
        "    assert '[torch]' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"lowprec\.torch is gone: `with ipu_core\.emulate"):
        lowprec.torch  # noqa: B018


def test_the_list_of_operations_is_that_of_the_table() -> None:
    assert (Path(ipu_core.frontends.torch.__file__).parent / "OPERATIONS.md").read_text() == table() + "\n"
