"""A module's comparison with what was captured takes the memory of one run, and gradients that of a part of it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from ipu_core import from_torch
from ipu_core.frontends.torch import comparing, fidelity, memory
from ipu_core.frontends.torch.fidelity import by_torch, without_drawing
from ipu_core.frontends.torch.segments import parts_of

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Blocks(nn.Module):
    """Residual blocks that write in place, one of them twice, and a buffer that is written to through a view of it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for _ in range(count)
        )
        self.register_buffer("seen", torch.zeros(2, 4))

    def forward(self, x: Any) -> Any:
        for block in (*self.blocks, self.blocks[-1]):
            x = x + block(x)
            x.mul_(0.5)
            x = x * 1.25
            first = self.seen[0]
            first.add_(x.detach().mean((0, 2, 3)))
            x.relu_()
        return (x.mean((0, 2, 3)) * self.seen[0]).sum()


@pytest.fixture
def given() -> tuple[Any, list[Any], list[str | None]]:
    """A quiet graph, its inputs, and which of them are trained."""
    torch.manual_seed(0)
    x = torch.randn(8, 4, 8, 8)
    model = from_torch(Blocks(12), (x,), eager_check=False)
    tensors, names = model.as_tensors(torch, model.params, model.state or {}, [x])
    return without_drawing(torch, model.exported.graph), tensors, names


def saved(run: Any) -> tuple[Any, int]:
    """What a run gives, and the bytes of intermediate values that it keeps for its gradients from part to part."""
    kept = 0

    def pack(x: Any) -> Any:
        nonlocal kept
        kept += 0 if x.is_leaf else x.nbytes
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return run(), kept


@pytest.mark.parametrize("double", [True, False])
def test_gradients_by_parts_keep_little_and_are_the_same(
    given: Any, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, tensors, names = given
    run = lambda: by_torch(torch, graph, tensors, names, double=double, watched=False)  # noqa: E731
    assert len(parts_of([x for x in graph.graph.nodes if x.op not in ("placeholder", "get_attr")])) > 4
    parted, little = saved(run)
    monkeypatch.setattr(fidelity, "in_segments", lambda torch, interpreter, given: interpreter.run(*given))
    whole, much = saved(run)
    assert 6 * little < much
    assert parted.gradients.keys() == whole.gradients.keys()
    for name, wanted in whole.gradients.items():
        np.testing.assert_array_equal(parted.gradients[name], wanted)
        assert wanted.dtype == (np.float64 if double else np.float32)
    for at, wanted in whole.buffers.items():
        np.testing.assert_array_equal(parted.buffers[at], wanted)
    np.testing.assert_array_equal(parted.outputs[0], whole.outputs[0])


class Reached(Exception):
    """The runs in float64 would begin."""


def test_the_memory_of_our_step_is_free_when_torch_runs_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[Any]()

    def near(found: Any, mine: Any, finer: float) -> bool:
        whole = next(iter(mine.gradients.values()))
        while whole.base is not None:
            whole = whole.base
        steps.append(weakref.ref(whole))
        return False

    def runs(*given: Any) -> None:
        assert steps[-1]() is None
        raise Reached

    before = comparing.give_back
    monkeypatch.setattr(comparing, "near", near)
    monkeypatch.setattr(comparing, "_Runs", runs)
    monkeypatch.setattr(comparing, "give_back", lambda: (steps.append("given back"), before()))
    with pytest.raises(Reached):
        from_torch(Blocks(2), (torch.randn(2, 4, 8, 8),))
    assert steps[0] == "given back"


def test_large_steps_make_cheap_results_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    made = list[Any]()

    class Noted(comparing.Executable):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self.bytes)

    results = list[Any]()
    monkeypatch.setattr(comparing, "Executable", Noted)
    monkeypatch.setattr(comparing, "near", lambda found, mine, finer: results.append(mine.copied()) or True)
    for large in (1 << 40, 0):
        torch.manual_seed(0)
        monkeypatch.setattr(memory, "LARGE", large)
        layers = (layer for _ in range(8) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU()))
        from_torch(nn.Sequential(*layers), (torch.randn(8, 4, 32, 32), torch.zeros(8, 4, 32, 32)), F.mse_loss)
    plain, lean = results
    assert made[1] < 0.8 * made[0]
    for name, wanted in plain.gradients.items():
        np.testing.assert_array_equal(lean.gradients[name], wanted)
