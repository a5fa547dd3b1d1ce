"""The fuzz of ipu_core reaches all that is public, and its sensible arguments are sensible."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest

import ipu_core
from ipu_core import nn
from tests.fuzz.ipu_core_calls import CALLS, HEAVY
from tests.fuzz.judgement import inner
from tests.fuzz.runner import judge
from tests.fuzz.wild import Draw

EVERY = {**CALLS, **HEAVY}
DRAWS = 12
DATA = {"Accumulation", "Blame", "Chains", "Divergence", "JaxModel", "Optimizer", "RecomputeCurve", "Record",
        "Sensitivity", "Sweep", "TorchModel"}  # fmt: skip
"""Made by others than users, a protocol, and lowprec's own, which is among its calls."""
WITH_METHODS = ("Engine", "Graph", "Machine", "Predictor", "TrainLoop", "System", "Target", "Tensor", "UnitScaled")
WITHOUT_ARGUMENTS = {"Machine.read", "Target.fastest_halves", "TrainLoop.arrays", "TrainLoop.history",
                     "TrainLoop.whole_steps"}  # fmt: skip
NOT_HERE = {"TrainLoop.to_torch", "TrainLoop.load", "emulate", "from_torch", "from_torch_optimizer", "from_optax",
            "TorchSchedule", "poptorch.trainingModel", "poptorch.inferenceModel"}  # fmt: skip
"""Refused with sensible arguments too, without PyTorch or a file; nn.dropout needs a key where nothing is traced."""


def public() -> set[str]:
    names = set()
    for name in ipu_core.__all__:
        value = getattr(ipu_core, name)
        raised = isinstance(value, type) and issubclass(value, BaseException)  # which users catch, and do not make
        if callable(value) and not isinstance(value, types.ModuleType) and not raised:
            names.add(name)
        if name in WITH_METHODS:
            own = [m for m in dir(value) if not m.startswith("_") and inspect.isroutine(getattr(value, m))]
            names |= {f"{name}.{method}" for method in own}
    return names | {f"nn.{name}" for name in nn.__all__}


def test_every_public_name_is_among_the_calls() -> None:
    assert public() - EVERY.keys() - DATA - WITHOUT_ARGUMENTS == set()


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NOT_HERE))
@pytest.mark.filterwarnings("ignore")
def test_sensible_arguments_are_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    call, make = EVERY[name]
    for case in range(DRAWS):
        try:
            call(**make(Draw(case)))
        except (ValueError, TypeError, IndexError, NotImplementedError, OverflowError):
            continue
        return
    pytest.fail(f"{name} refuses {DRAWS} times what should be right")


def _deep(x: Any) -> Any:
    return {}[x]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ipu_core.Target("gc3"), ""),  # refused by us
        (lambda: ipu_core.trace(lambda x: _deep(x), 1.0), ""),  # an error of the function that was given
        (lambda: ipu_core.Target(), ""),
        (lambda: ipu_core.graph.mapping.linear_boundaries("a", 1, 1), "raised by no `raise`: TypeError"),
        (lambda: ipu_core.ir.pytree.unflatten(ipu_core.ir.pytree.LEAF, []), "no message: StopIteration"),
    ],
)
def test_what_is_an_inner_error(make: Any, words: str) -> None:
    try:
        make()
    except Exception as error:
        found = inner(error)
        assert found.startswith(words) if words else not found


def test_a_case_is_the_same_again() -> None:
    cases = range(1, 41, 2)
    assert [judge(case) for case in cases] == [judge(case) for case in cases]
