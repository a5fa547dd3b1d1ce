"""Without torch everything else works, from_torch says what to install, and the list of operations is of today."""

import subprocess
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


def test_the_side_road_has_a_name_in_lowprec_that_loads_neither_torch_nor_the_machine_before_it_is_used() -> None:
    code = (
        "import sys, lowprec\n"
        "from lowprec import *\n"
        "assert 'torch' not in globals() and 'torch' not in dir(lowprec)\n"
        "assert not {'ipu_core', 'lowprec.torch', 'torch'} & set(sys.modules)\n"
        "emulate = lowprec.torch.emulate\n"
        "assert 'torch' not in sys.modules\n"
        "import ipu_core\n"
        "from lowprec.torch import Emulation\n"
        "assert emulate is ipu_core.emulate and emulate.__annotations__['return'] == Emulation.__name__\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    emulate('fp16.16/nearest')\n"
        "except ImportError as error:\n"
        "    assert '[torch]' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_of_operations_is_that_of_the_table() -> None:
    assert (Path(ipu_core.capture.__file__).parent / "OPERATIONS.md").read_text() == table() + "\n"
