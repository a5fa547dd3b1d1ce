"""Parameters that a loss does not depend on: torch's optimizers leave them, and so does a captured module's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from ipu_core import TrainLoop, from_torch, from_torch_optimizer
from ipu_core.errors import NotCovered
from tests.ipu_core.frontends.torch_peer import check_adamw

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """One layer trains; the others are unused, cut off, or under no_grad; floors and checkpoints have gradients."""

    def __init__(self, without: bool = True) -> None:
        super().__init__()
        self.without = without
        self.used, self.spare, self.cut, self.still = (nn.Linear(4, 4) for _ in range(4))
        self.floor, self.late = nn.Parameter(torch.full((4,), 2.5)), nn.Linear(4, 3)
        self.twin = nn.Linear(4, 3)
        self.twin.weight = self.late.weight

    def forward(self, x: Any) -> Any:
        y = self.used(x) + self.cut(x).detach()
        with torch.no_grad():
            z = self.still(x) if self.without else x
        return checkpoint(self.late, y * self.floor.floor() + z, use_reentrant=False)


IDLE = {f"{layer}.{part}" for layer in ("spare", "cut", "still") for part in ("weight", "bias")} | {"twin.bias"}


@cache
def sees_no_grad() -> bool:
    """Whether this torch has no gradients under no_grad when it exports: 2.6 has."""
    batch = torch.ones(2, 4), torch.tensor([0, 1])
    return "still.weight" in from_torch(Net(), batch, F.cross_entropy, eager_check=False).exported.idle


def made() -> tuple[Any, list[Any]]:
    torch.manual_seed(2)
    return Net(sees_no_grad()), [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]


@pytest.mark.parametrize("check", [True, False])
def test_they_are_those_without_a_gradient_in_torch(check: bool) -> None:
    module, batches = made()
    assert from_torch(module, batches[0], F.cross_entropy, eager_check=check).exported.idle == IDLE


def test_a_layer_under_no_grad_is_seen_or_refused() -> None:
    batch = torch.ones(2, 4), torch.tensor([0, 1])
    if sees_no_grad():
        from_torch(Net(), batch, F.cross_entropy)
        return
    with pytest.raises(NotCovered, match=r"still\.weight has no gradient in torch.*ipu_core\.emulate"):
        from_torch(Net(), batch, F.cross_entropy)


def test_an_optimizer_that_would_decay_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batches = made()
    monkeypatch.setattr("ipu_core.frontends.torch.export._idle", lambda wrapper, loss: set())
    with pytest.raises(NotCovered, match=r"spare\.weight has no gradient in torch.*ipu_core\.emulate"):
        from_torch(module, batches[0], F.cross_entropy)


def test_three_steps_of_adamw_leave_them() -> None:
    check_adamw(*made(), F.cross_entropy)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_no_decay_of_torch_s_optimizers_reaches_them(kind: str) -> None:
    module, batches = made()
    model = from_torch(module, batches[0], F.cross_entropy)
    optimizer = from_torch_optimizer(model, getattr(torch.optim, kind)(module.parameters(), 0.01, weight_decay=0.1))
    loop = TrainLoop(model, model.params, batches[0], optimizer=optimizer, precision="fp32.32", engine="direct")
    for batch in batches:
        loop.train(batch)
    same = {name for name, x in loop.params.items() if np.array_equal(x, model.params[name])}
    assert same == IDLE
