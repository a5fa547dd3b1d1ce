"""Every refusal survives a process boundary: type, words, numbers and notes."""

import copy
import multiprocessing
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from ipu_core import errors
from ipu_core.errors import OutOfTileMemory

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]


def made(kind: type[Exception]) -> Exception:
    if kind is OutOfTileMemory:
        return OutOfTileMemory(
            3, 700_000, 600_000, {"code": 5, "variables": 9}, [("w", 512)], "dot", before_planning=True
        )
    return kind("what is wrong")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_every_kind_comes_back_as_it_was(kind: type[Exception], again: Callable[[Any], Any]) -> None:
    error = made(kind)
    error.add_note("seen in a study")
    back = again(error)
    assert type(back) is kind
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)
    assert back.__notes__ == ["seen in a study"]


def refuse(kind: type[Exception]) -> None:
    if issubclass(kind, Warning):
        warnings.simplefilter("error")
        warnings.warn("what is wrong", kind, stacklevel=1)
    raise made(kind)


def test_a_pool_hands_every_kind_to_its_parent() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for kind in KINDS:
            with pytest.raises(kind) as caught:
                pool.apply_async(refuse, (kind,)).get(timeout=60)
            assert str(caught.value) == str(made(kind))
