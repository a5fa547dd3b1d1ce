"""What ctc_loss does at its edges: rows without an alignment, targets that are none, lengths in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, from_torch
from ipu_core.errors import NotCovered, NotFinite

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
F = torch.nn.functional

LABELS = torch.tensor([[1, 2, 3], [4, 5, 0]])
GIVEN = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0))
PLACES = torch.tensor([12, 12])


class Net(torch.nn.Module):
    """Rows of 12 places and six symbols, the first of them the blank."""

    def __init__(
        self, labels: Any = None, *, reduction: str = "mean", lost: int = 0, zero_infinity: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out, self.labels, self.reduction, self.lost = torch.nn.Linear(5, 6), labels, reduction, lost
        self.zero_infinity = zero_infinity

    def forward(self, x: Any, places: Any, labels: Any = None) -> Any:
        logits = self.out(x)
        if self.lost:
            logits = logits.masked_fill(torch.arange(6) == self.lost, float("-inf"))
        labels = torch.tensor(self.labels) if labels is None else labels
        logs = logits.log_softmax(-1).transpose(0, 1)
        lengths, zero = torch.tensor([3, 2]), self.zero_infinity
        return F.ctc_loss(logs, labels, places, lengths, reduction=self.reduction, zero_infinity=zero)


def test_means_by_constant_lengths_have_the_digits_of_float64() -> None:
    module, batch = Net().double(), (GIVEN.double(), PLACES, LABELS)
    model = from_torch(module, batch)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.5), precision="float64", engine="direct")
    loss = module(*batch)
    loss.backward()
    assert loop.train(batch) == pytest.approx(loss.item(), rel=1e-14)
    wanted = (module.out.weight - 0.5 * module.out.weight.grad).detach()
    np.testing.assert_allclose(loop.to_torch().out.weight.detach(), wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/nearest"])
def test_a_later_row_without_an_alignment_makes_all_parameters_nan(precision: str, reduction: str) -> None:
    module, batch = Net(reduction=reduction), (GIVEN, PLACES, LABELS)
    model = from_torch(module, batch)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.125), precision=precision, engine="direct")
    # one place takes no two labels; a row of no places has an infinite loss in torch, and no gradient
    for places, of_torch in (([12, 0], False), ([12, 1], True)):
        given = GIVEN, torch.tensor(places), LABELS
        module.zero_grad()
        loss = module(*given)
        loss.backward()
        assert loss.item() == loop.train(given) == np.inf
        assert bool(module.out.bias.grad.isnan().all()) is of_torch
        assert all(np.isnan(x).all() if of_torch else np.isfinite(x).all() for x in loop.arrays().values())


@pytest.mark.parametrize(("places", "lost"), [((12, 1), 0), ((12, 12), 5)])
@pytest.mark.parametrize("double", [False, True])
def test_a_batch_of_which_torch_s_gradients_are_nan_is_refused_as_that(places: Any, lost: int, double: bool) -> None:
    module, x = Net(lost=lost), GIVEN
    if double:
        module, x = module.double(), x.double()
    words = r"torch's own gradient of out\.weight is NaN or infinite for this batch, .*: give another batch"
    with pytest.raises(NotCovered, match=words):
        from_torch(module, (x, torch.tensor(places), LABELS))


def test_constant_targets_are_labels() -> None:
    for labels in ([[1, 2, 3], [4, 0, 0]], [[1, 6, 3], [4, 5, 0]], [[1, 2, 3], [-1, 5, 0]]):
        with pytest.raises(NotCovered, match="its targets have to be symbols from 0 to 5 other than the blank, 0"):
            from_torch(Net(labels), (GIVEN, PLACES))
    # nothing reads what lies behind the labels
    for padding in (0, 77, -1):
        model = from_torch(Net([[1, 2, 3], [4, 5, padding]]), (GIVEN, PLACES))
        assert model.check((GIVEN, PLACES)).first is None


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("wrong", [6, -1])
def test_a_later_target_that_is_no_symbol_makes_the_loss_nan(wrong: int, zero_infinity: bool) -> None:
    batch = GIVEN, PLACES, LABELS
    module = Net(zero_infinity=zero_infinity)
    model = from_torch(module, batch)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.5), precision="fp32.32", engine="direct")
    assert np.isfinite(loop.train((GIVEN, PLACES, torch.tensor([[1, 2, 3], [4, 5, 99]]))))  # padding may be anything
    with pytest.warns(NotFinite):
        assert np.isnan(loop.train((GIVEN, PLACES, torch.tensor([[1, 2, 3], [4, wrong, 0]]))))
