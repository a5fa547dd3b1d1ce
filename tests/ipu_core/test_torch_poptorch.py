"""PopTorch's words: calls that train and infer, iterations and micro-batches, and weights to the host and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import poptorch
from ipu_core.plan.orders import OrderRule, product_order
from ipu_core.target import Target
from tests.ipu_core.test_torch_models import Gpt, Net, made

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class WithLoss(nn.Module):
    """As PopTorch has it: outputs and the loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, labels: Any = None) -> Any:
        out = self.model(x)
        return out if labels is None else (out, F.cross_entropy(out, labels))


def perceptron() -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = WithLoss(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    return model, torch.randn(24, 6), torch.randint(0, 3, (24,))


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_call_does_all_iterations_and_micro_batches(engine: str) -> None:
    module, x, labels = perceptron()
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    options = poptorch.Options(device_iterations=2, gradient_accumulation=3, engine=engine)
    model = poptorch.training_model(module, options, torch.optim.SGD(module.parameters(), 0.1, momentum=0.9))
    for _ in range(2):
        found = model(x, labels)
        for rows in (slice(0, 12), slice(12, 24)):
            optimizer.zero_grad()
            parts = [twin(x[rows][i : i + 4], labels[rows][i : i + 4])[1] / 3 for i in (0, 4, 8)]
            sum(parts).backward()
            optimizer.step()
        assert isinstance(found, torch.Tensor)
        assert float(found) == pytest.approx(float(sum(parts)), rel=1e-5)
    model.copy_weights_to_host()
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert (model.profile is not None) == (engine == "tiles")


def test_inference_gives_what_the_module_gives_in_eval_and_takes_new_weights() -> None:
    batches = made("cnn")[1]
    module = Net()
    images, labels = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    model = poptorch.inference_model(module, poptorch.Options(device_iterations=3))
    expected = copy.deepcopy(module).eval()(images).detach()
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-6)
    assert model.profile is not None
    wrapped = WithLoss(module)
    training = poptorch.training_model(
        wrapped, poptorch.Options(engine="direct"), torch.optim.SGD(wrapped.parameters(), 0.1)
    )
    training(images, labels)
    training(images, labels)
    training.copy_weights_to_host()
    assert int(module[1].num_batches_tracked) == 2
    training.copy_weights_to_host()
    assert int(module[1].num_batches_tracked) == 2
    model.copy_weights_to_device()
    after = copy.deepcopy(module).eval()(images).detach()
    assert (after - expected).abs().max() > 0.001
    torch.testing.assert_close(model(images), after, rtol=1e-4, atol=1e-6)


def test_inference_of_8_bits_sums_as_the_target_does() -> None:
    torch.manual_seed(5)
    module, x = nn.Linear(300, 24, bias=False), torch.randn(32, 300)
    spec = "fp16.16/nearest/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"
    model = poptorch.inference_model(module, poptorch.Options(precision=spec, target="c600", engine="direct"))
    halves = [lowprec.astype(np.array(array.detach()), "float16", overflow="ipu") for array in (x, module.weight.T)]
    a, b = (lowprec.astype(array, "float8_e4m3fnuz", overflow="ipu") for array in halves)
    order = product_order(OrderRule.of(Target("c600")), 32, 300, 24, operands="float8_e4m3fnuz").with_types("float16")
    assert order.group == 32
    expected = lowprec.matmul(a, b, accumulation=order, rounding=lowprec.Rounding(overflow="ipu"))
    np.testing.assert_array_equal(model(x).numpy(), expected.astype(np.float32))


def test_inputs_by_name_and_numbers_of_several_iterations() -> None:
    module = Gpt().eval()
    ids = torch.randint(0, 20, (4, 9))
    given = {"ids": ids[:, :-1], "labels": ids[:, 1:]}
    model = poptorch.inference_model(module, poptorch.Options(device_iterations=2, engine="direct"))
    found = model(given["ids"], labels=given["labels"])
    expected = [module(given["ids"][i : i + 2], given["labels"][i : i + 2]).detach() for i in (0, 2)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_schedulers_go_through_set_optimizer() -> None:
    module, x, labels = perceptron()
    twin = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(one.parameters(), 0.2) for one in (module, twin)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    model = poptorch.training_model(module, poptorch.Options(engine="direct"), optimizers[0])
    for _ in range(4):
        optimizers[1].zero_grad()
        expected = twin(x, labels)[1]
        expected.backward()
        optimizers[1].step()
        assert float(model(x, labels)) == pytest.approx(float(expected), rel=1e-5)
        for scheduler in schedulers:
            scheduler.step()
        model.set_optimizer(optimizers[0])
    optimizers[0].param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match="learning rates alone"):
        model.set_optimizer(optimizers[0])


def test_refusals() -> None:
    module, x, labels = perceptron()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with pytest.raises(ValueError, match="device_iterations must be an integer of at least 1"):
        poptorch.Options(device_iterations=0)
    with pytest.raises(ValueError, match="unknown precision"):
        poptorch.Options(precision="fp7")
    model = poptorch.training_model(module, poptorch.Options(device_iterations=5), optimizer)
    with pytest.raises(ValueError, match=r"24.* rows cannot be cut into 5"):
        model(x, labels)
    assert model.profile is None


def test_halves_train_with_the_loss_of_the_last_iteration() -> None:
    module, x, labels = perceptron()
    options = poptorch.Options(device_iterations=2, precision="fp16.16/stochastic", target="bow", loss_scale=64.0)
    model = poptorch.training_model(module, options, torch.optim.Adam(module.parameters(), 0.02))
    losses = [float(model(x, labels)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1
    assert np.isfinite(losses).all()
