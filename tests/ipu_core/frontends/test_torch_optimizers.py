"""torch's optimizers as settings: the same weights after several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import TrainLoop, from_torch, from_torch_optimizer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def module_and_batch() -> tuple[Any, Any]:
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    return module, (torch.randn(8, 6), torch.randint(0, 4, (8,)))


MAKERS = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), 0.1),
    "SGD with momentum": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters()),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, betas=(0.8, 0.95), weight_decay=0.2),
    "SGD with decay": lambda m: torch.optim.SGD(m.parameters(), 0.1, weight_decay=0.2),
    "Adam with decay": lambda m: torch.optim.Adam(m.parameters(), 1e-2, weight_decay=0.2),
    "Adam with decoupled decay": lambda m: torch.optim.Adam(
        m.parameters(), 1e-2, weight_decay=0.2, decoupled_weight_decay=True
    ),
    "Adam with amsgrad": lambda m: torch.optim.Adam(m.parameters(), 0.03, (0.9, 0.6), weight_decay=0.1, amsgrad=True),
    "AdamW with amsgrad": lambda m: torch.optim.AdamW(m.parameters(), 0.03, (0.9, 0.6), amsgrad=True),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), 1e-3),
    "RMSprop, all of it": lambda m: torch.optim.RMSprop(
        m.parameters(), 1e-3, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.8, centered=True
    ),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.05),
    "Adagrad in groups": lambda m: torch.optim.Adagrad(
        [{"params": m[0].parameters()}, {"params": m[2].parameters(), "lr": 0.01, "weight_decay": 0.2}],
        0.05,
        initial_accumulator_value=0.3,
        eps=1e-4,
    ),
    "Adam with decay in groups": lambda m: torch.optim.Adam(
        [{"params": m[0].parameters()}, {"params": m[2].parameters(), "weight_decay": 0.3, "lr": 2e-2}], 1e-2
    ),
    "AdamW in groups": lambda m: torch.optim.AdamW(
        [{"params": m[0].parameters(), "lr": 1e-2}, {"params": [m[2].weight], "weight_decay": 0.0}], 1e-3
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_weights_are_those_of_torch(name: str) -> None:
    module, batch = module_and_batch()
    optimizer = MAKERS[name](module)
    loss = torch.nn.functional.cross_entropy
    model = from_torch(module, batch, loss)
    loop = TrainLoop(model, model.params, batch, optimizer=from_torch_optimizer(model, optimizer), precision="fp32.32",
                     engine="direct")  # fmt: skip
    for _ in range(20):
        optimizer.zero_grad()
        loss(module(batch[0]), batch[1]).backward()
        optimizer.step()
        loop.train(batch)
    found = model.state_dict(loop.params)
    for parameter, tensor in module.named_parameters():
        np.testing.assert_allclose(found[parameter], tensor.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda m: torch.optim.AdamW(m.parameters(), maximize=True), "maximize=True has no counterpart"),
        (
            lambda m: torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.0}, {"params": m[2].parameters()}], 0.1),
            "order the groups so that the first learns, or give a scheduler",
        ),
        (lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, dampening=0.5), "dampening=0.5"),
        (
            lambda m: torch.optim.Adadelta(m.parameters()),
            "knows SGD, Adam, AdamW, LAMB, RMSprop, Adagrad, not Adadelta",
        ),
        (lambda m: torch.optim.Adagrad(m.parameters(), lr_decay=0.1), "lr_decay=0.1 has no counterpart"),
        (lambda m: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1), "none of its parameters is trained"),
        (
            lambda m: torch.optim.Adam([{"params": m[0].parameters(), "eps": 1e-3}, {"params": m[2].parameters()}]),
            "groups differ in eps",
        ),
    ],
)
def test_settings_without_a_counterpart_are_refused(make: Any, words: str) -> None:
    module, batch = module_and_batch()
    model = from_torch(module, batch, torch.nn.functional.cross_entropy)
    with pytest.raises(ValueError, match=words):
        from_torch_optimizer(model, make(module))


def test_parameters_of_the_loss_are_trained_where_the_optimizer_has_them() -> None:
    class Warm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heat = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(x * self.heat, y)

    module, batch = module_and_batch()
    loss = Warm()
    model = from_torch(module, batch, loss)
    for known, trained in ((module.parameters(), False), ([*module.parameters(), loss.heat], True)):
        settings = from_torch_optimizer(model, torch.optim.SGD(known, 0.1))
        loop = TrainLoop(model, model.params, batch, optimizer=settings, precision="fp32.32", engine="direct")
        loop.train(batch)
        assert (loop.params["loss.heat"] != 1) == trained
