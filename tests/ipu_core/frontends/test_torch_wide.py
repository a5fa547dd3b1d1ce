"""Modules of float64 are captured whole, and precision="float64" trains them as torch does; of float32 it refuses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ipu_core import Predictor, Sgd, TrainLoop, from_torch, from_torch_optimizer
from ipu_core.errors import NotCovered
from ipu_core.frontends.torch.comparing import ours
from tests.ipu_core.frontends.test_torch_operations import FAMILIES, Case, batch
from tests.ipu_core.frontends.torch_peer import as_far_as_torch_goes, by_torch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
F = torch.nn.functional

NARROW = "it gives float32 in a module of float64"
REFUSED = {
    "special": "erfc is not covered .float64: its coefficients have eight digits",
    "erf erfc sigmoid": "erfc is not covered .float64: its coefficients have eight digits",
    "to clone detach": NARROW, "in place": NARROW, "bits and masks": NARROW,
    "hinge_embedding_loss cosine_embedding_loss poisson_nll_loss": NARROW,
    # torch's own slopes of hardsigmoid and celu have float32's digits
    "relu relu6 hardtanh hardsigmoid hardswish": "in float64 its loss, a gradient or a buffer is another",
    "mish elu selu celu": "in float64 its loss, a gradient or a buffer is another",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_gradients_are_torch_s_in_float64(name: str) -> None:
    module = Case(FAMILIES[name]).double()
    if name in REFUSED:
        with pytest.raises(NotCovered, match=REFUSED[name]):
            from_torch(module, batch())
        return
    with as_far_as_torch_goes():
        expected = by_torch(module, batch(), double=True)
        model = from_torch(module, batch())
    found = ours(model, model.exported.graph, model.params, {}, batch())
    np.testing.assert_allclose(found.outputs[0], expected.loss, rtol=1e-12)
    size = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for parameter, gradient in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[parameter], gradient, rtol=1e-12, atol=1e-12 * size)


class Net(torch.nn.Module):
    """A buffer, a number, statistics and tensors that the code makes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        # no bias in front of the norm: its gradient is nothing but rounding
        self.a, self.norm = torch.nn.Linear(5, 8, bias=False), torch.nn.BatchNorm1d(8)
        self.b = torch.nn.Linear(8, 3)
        self.register_buffer("shift", 0.1 * torch.rand(8))

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.norm(self.a(x) + self.shift)) * 0.1 + torch.full((8,), 0.1, dtype=x.dtype)
        return self.b(F.pad(x, (1, -1), value=0.3))


def data() -> tuple[Any, Any]:
    # float32's numbers, as loops take a batch
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double(), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.25, momentum=0.9),
        lambda p: torch.optim.AdamW(p, 2**-6, weight_decay=0.1, amsgrad=True),  # of NAdam torch rounds a product
        lambda p: torch.optim.RAdam(p, 2**-6, betas=(0.9, 0.8)),
    ],
)
def test_float64_trains_as_torch_does(make: Any) -> None:
    module, given = Net().double(), data()
    optimizer = make(module.parameters())
    model = from_torch(module, given, F.cross_entropy)
    settings = from_torch_optimizer(model, optimizer)
    loop = TrainLoop(model, model.params, given, model_state=model.state, optimizer=settings, precision="float64",
                     engine="direct")  # fmt: skip
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(given[0]), given[1])
        loss.backward()
        optimizer.step()
        assert loop.train(given) == pytest.approx(loss.item(), rel=1e-12)
    twin = Net().double()
    loop.to_torch(twin)
    for (name, wanted), found in zip(module.state_dict().items(), twin.state_dict().values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("precision", "engine"), [("fp32.32", "direct"), ("fp16.16/nearest", "tiles")])
def test_narrower_precisions_train_it_as_the_module_of_float32(precision: str, engine: str) -> None:
    made = []
    for module in (Net(), Net().double()):
        model = from_torch(module, data(), F.cross_entropy)
        loop = TrainLoop(model, model.params, data(), model_state=model.state, optimizer=Sgd(0.25), precision=precision,
                         engine=engine)  # fmt: skip
        made.append([loop.train(data()) for _ in range(3)])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-6 if precision == "fp32.32" else 1e-2)


def test_a_module_of_float32_is_no_baseline_in_float64() -> None:
    model, given = from_torch(Net(), data(), F.cross_entropy), data()
    options: Any = {"optimizer": Sgd(0.25), "engine": "direct", "model_state": model.state}
    refused = pytest.raises(ValueError, match=r"Net was captured in float32, .*: capture module\.double\(\)")
    with refused:
        TrainLoop(model, model.params, given, precision="float64", **options)
    with refused:
        TrainLoop(model, model.params, given, precision="fp32.32", **options).in_precision("float64")
    inference = from_torch(Net(), given[0], inference=True)
    with refused:
        Predictor(inference, inference.params, given[0], precision="float64", model_state=inference.state)
    TrainLoop(model, model.params, given, precision="fp32.32/weights=float64", **options)


def test_what_is_not_of_one_width_is_refused() -> None:
    mixed, given = Net(), data()
    mixed.b.double()
    with pytest.raises(ValueError, match=r"Net has parameters of float64 and of float32: module\.double\(\) is"):
        from_torch(mixed, given, F.cross_entropy)
    model = from_torch(Net().double(), given, F.cross_entropy)
    with pytest.raises(ValueError, match=r"Net is a module of float64, .*: check compares float32"):
        model.check(given)
    assert copy.copy(model).state_dict(model.params)["a.weight"].dtype == np.float64


def test_adafactor_has_the_epsilon_of_its_parameters() -> None:
    if not hasattr(torch.optim, "Adafactor"):
        pytest.skip("this torch has no Adafactor")
    for module, least in ((Net(), 2.0**-23), (Net().double(), 2.0**-52)):
        model = from_torch(module, data(), F.cross_entropy)
        assert from_torch_optimizer(model, torch.optim.Adafactor(module.parameters())).eps1 == least
