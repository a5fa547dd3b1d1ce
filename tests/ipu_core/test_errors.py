"""Every refusal survives a process boundary: type, words, numbers and notes."""

import contextlib
import copy
import importlib
import multiprocessing
import pickle
import pkgutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import ipu_core
from ipu_core import errors
from ipu_core.compile.planning import plan
from ipu_core.errors import OutOfStreamingMemory, OutOfTileMemory
from ipu_core.ir.run.execute import execute

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]


WITHIN = {
    "ipu_core.frontends.torch.errors.Said": "what carries a refusal's own words through a call of torch",
    "ipu_core.interruption.Terminated": "a KeyboardInterrupt, which is how it is caught",
    "ipu_core.ir.trace.values.TwoTraces": "a ValueError, which custom gradients say in other words",
    "ipu_core.ir.verify.DuplicateDefinition": "an InvalidBlock",
    "ipu_core.ir.verify.UnknownOperation": "an InvalidBlock",
    "ipu_core.ir.verify.UseBeforeDefinition": "an InvalidBlock",
    "ipu_core.ir.verify.WrongType": "an InvalidBlock",
    "ipu_core.study.pool.WorkerDied": "a failure of its point",
    "ipu_core.study.progress.Abandoned": "what ends a worker that nobody waits for",
}
"""What no user is shown, or catches by another name."""


def test_every_kind_that_reaches_a_user_has_a_name_at_the_top() -> None:
    for module in pkgutil.walk_packages(ipu_core.__path__, "ipu_core."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra
                importlib.import_module(module.name)
    there, kinds = set[type](), list[type](BaseException.__subclasses__())
    while kinds:
        kind = kinds.pop()
        there.add(kind)
        kinds += set(type.__subclasses__(kind)) - there
    own = {f"{kind.__module__}.{kind.__name__}" for kind in there if kind.__module__.startswith("ipu_core.")}
    own = {name for name in own if not name.rpartition(".")[2].startswith("_")}
    top = {
        f"{kind.__module__}.{name}" for name in ipu_core.__all__ if isinstance(kind := getattr(ipu_core, name), type)
    }
    assert own - top == WITHIN.keys()


def made(kind: type[Exception]) -> Exception:
    if kind is OutOfTileMemory:
        return OutOfTileMemory(
            3, 700_000, 600_000, {"code": 5, "variables": 9}, [("w", 512)], "dot", before_planning=True
        )
    if kind is OutOfStreamingMemory:
        return OutOfStreamingMemory(800, 700, [("first_moment", 600)])
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
                pool.apply_async(refuse, (kind,)).get(timeout=600)
            assert str(caught.value) == str(made(kind))


GRAPH = ipu_core.Graph(ipu_core.Target("gc200"))
OF_ANOTHER_KIND: dict[str, tuple[Callable[[], object], str]] = {
    "control": (lambda: ipu_core.FloatingPointControl(esr="x"), "esr must be a bool, not 'x'"),  # type: ignore[arg-type]
    "Repeat": (lambda: ipu_core.Repeat("3", ipu_core.Sequence()), "count must be an int, not '3'"),  # type: ignore[arg-type]
    "a bool's Repeat": (lambda: ipu_core.Repeat(True, ipu_core.Sequence()), "count must be an int, not True"),
    "evaluate": (lambda: ipu_core.evaluate("x"), "block must be a Block, not 'x'"),  # type: ignore[arg-type]
    "execute": (lambda: execute("x", key=1), "block must be a Block, not 'x'"),  # type: ignore[arg-type]
    "plan": (lambda: plan("x", GRAPH.target), "block must be a Block, not 'x'"),  # type: ignore[arg-type]
    "Engine": (lambda: ipu_core.Engine("x", ipu_core.Sequence()), "graph must be a Graph, not 'x'"),  # type: ignore[arg-type]
    "Engine's key": (lambda: ipu_core.Engine(GRAPH, ipu_core.Sequence(), key="a"), "key"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", OF_ANOTHER_KIND)
def test_arguments_of_another_kind_are_named(name: str) -> None:
    call, words = OF_ANOTHER_KIND[name]
    with pytest.raises(TypeError, match=words):
        call()
