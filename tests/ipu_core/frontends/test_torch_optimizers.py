"""torch's optimizers as settings: the same weights after several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import TrainLoop, from_torch, from_torch_optimizer
from tests.ipu_core.frontends.torch_peer import OLDER

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


if not OLDER:
    MAKERS["Adam with decoupled decay"] = lambda m: torch.optim.Adam(
        m.parameters(), 1e-2, weight_decay=0.2, decoupled_weight_decay=True
    )


def two(kind: str, first: dict[str, Any], second: dict[str, Any], **settings: Any) -> Any:
    """An optimizer of two groups; torch has it from some version on."""
    if not hasattr(torch.optim, kind):
        return None
    return lambda m: getattr(torch.optim, kind)(
        [{"params": m[0].parameters(), **first}, {"params": m[2].parameters(), **second}], **settings
    )


DECAYED = {"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.2}
KINDS = {
    "NAdam": two("NAdam", *DECAYED, betas=(0.8, 0.9), eps=1e-4),
    "NAdam, decoupled": two("NAdam", *DECAYED, momentum_decay=0.3, decoupled_weight_decay=True),
    "RAdam": two("RAdam", *DECAYED, betas=(0.8, 0.95), eps=1e-2),
    "RAdam, decoupled": two("RAdam", *DECAYED, betas=(0.8, 0.6), decoupled_weight_decay=True),
    "Adamax": two("Adamax", *DECAYED, betas=(0.8, 0.9), eps=1e-3),
    "Adadelta": two("Adadelta", {"lr": 1.0}, {"lr": 0.5, "weight_decay": 0.2}, rho=0.8, eps=1e-3),
    "ASGD": two("ASGD", *DECAYED, lambd=0.3, alpha=0.6, t0=5),
    "Adafactor": two("Adafactor", *DECAYED, d=1.2, eps=(None, 0.1)),
    "Adafactor, plain": two("Adafactor", {"lr": 0.3}, {"lr": 0.5}, beta2_decay=-0.5, eps=(1e-4, 1e-3)),
    "Rprop": two("Rprop", {"lr": 0.01}, {"lr": 0.003}, etas=(0.4, 1.3), step_sizes=(1e-4, 0.02)),
}
SCHEDULED = [*KINDS, *(name for name in MAKERS if "groups" in name)]


@pytest.mark.parametrize("name", SCHEDULED)
def test_two_groups_under_a_scheduler_are_those_of_torch(name: str) -> None:
    """All but Rprop, which reads its rate once: the scheduler would change nothing."""
    make = {**MAKERS, **KINDS}[name]
    if make is None:
        pytest.skip("this torch has no such optimizer")
    module, batch = module_and_batch()
    optimizer = make(module)
    loss = torch.nn.functional.cross_entropy
    model = from_torch(module, batch, loss)
    scheduler = None if name == "Rprop" else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    settings = from_torch_optimizer(model, optimizer, lr=scheduler)
    loop = TrainLoop(model, model.params, batch, optimizer=settings, precision="fp32.32", engine="direct")
    for _ in range(20):
        optimizer.zero_grad()
        loss(module(batch[0]), batch[1]).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
        loop.train(batch)
    found = model.state_dict(loop.params)
    for parameter, tensor in module.named_parameters():
        np.testing.assert_allclose(found[parameter], tensor.detach().numpy(), rtol=1e-6, atol=1e-6)
    if name == "ASGD":
        average = loop.arrays()["optimizer.average.0.weight"].T
        np.testing.assert_allclose(average, optimizer.state[module[0].weight]["ax"], rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="this torch has no Adafactor")
def test_adafactor_has_rows_and_columns_of_filters_where_torch_has_them() -> None:
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, (2, 3)), torch.nn.Flatten())
    x, labels = torch.randn(6, 3, 4, 5), torch.randint(0, 36, (6,))
    optimizer = torch.optim.Adafactor(module.parameters(), 0.3)
    loss = torch.nn.functional.cross_entropy
    model = from_torch(module, (x, labels), loss)
    settings = from_torch_optimizer(model, optimizer)
    loop = TrainLoop(model, model.params, (x, labels), optimizer=settings, precision="fp32.32", engine="direct")
    for _ in range(5):
        optimizer.zero_grad()
        loss(module(x), labels).backward()
        optimizer.step()
        loop.train((x, labels))
    found = model.state_dict(loop.params)
    for parameter, tensor in module.named_parameters():
        np.testing.assert_allclose(found[parameter], tensor.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_what_only_places_the_work_or_names_parameters_may_differ() -> None:
    module, batch = module_and_batch()
    model = from_torch(module, batch, torch.nn.functional.cross_entropy)
    groups = [{"params": m.parameters(), "name": n} for n, m in (("in", module[0]), ("out", module[2]))]
    optimizer = torch.optim.NAdam(groups, foreach=False, capturable=False)
    assert from_torch_optimizer(model, optimizer).momentum_decay == 4e-3


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


def own(name: str, module: Any, **defaults: Any) -> Any:
    """An optimizer of a user's own class of that name."""
    return type(name, (torch.optim.Optimizer,), {})(module.parameters(), {"lr": 0.1, "weight_decay": 0.0, **defaults})


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda m: torch.optim.AdamW(m.parameters(), maximize=True),
            "maximize=True has no counterpart here, only False; negate the loss",
        ),
        (lambda m: torch.optim.LBFGS(m.parameters()), "not LBFGS; it computes the loss several times a step"),
        (lambda m: torch.optim.SparseAdam(m.parameters()), "not SparseAdam; gradients are dense here"),
        (lambda m: own("Own", m, sharpness=2.0), "not Own; ipu_core.emulate"),
        (lambda m: own("Muon", m), "not Muon; its products in bfloat16"),
        (lambda m: own("Adam", m, betas=(0.9, 0.99), eps=1e-8, sharpness=2.0), "sharpness=2.0 has no counterpart"),
        (
            lambda m: torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.0}, {"params": m[2].parameters()}], 0.1),
            "order the groups so that the first learns, or give a scheduler",
        ),
        (lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, dampening=0.5), "dampening=0.5"),
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


def captured() -> tuple[Any, Any, Any]:
    module, batch = module_and_batch()
    model = from_torch(module, batch, loss=torch.nn.functional.cross_entropy, eager_check=False)
    return module, model, batch


def test_a_scheduler_over_another_optimizer_is_refused() -> None:
    module, model, _ = captured()
    own, other = (torch.optim.Adam(module.parameters(), rate) for rate in (0.01, 0.7))
    with pytest.raises(ValueError, match="moves the rates of another optimizer: give one over this Adam"):
        from_torch_optimizer(model, own, torch.optim.lr_scheduler.StepLR(other, 3))
    assert from_torch_optimizer(model, own, torch.optim.lr_scheduler.StepLR(own, 3)).lr(0) == 0.01  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad", "Adadelta", "Rprop", "ASGD"])
def test_an_optimizer_that_has_made_steps_is_refused(kind: str) -> None:
    module, model, (x, labels) = captured()
    optimizer = getattr(torch.optim, kind)(module.parameters(), **({"momentum": 0.9} if kind == "SGD" else {}))
    from_torch_optimizer(model, optimizer)  # Adagrad has a state from the start
    torch.nn.functional.cross_entropy(module(x), labels).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=rf"{kind}: it has made steps, .* optimizer.state.clear\(\)"):
        from_torch_optimizer(model, optimizer)
    if kind != "Adagrad":
        optimizer.state.clear()
        from_torch_optimizer(model, optimizer)


def test_parameters_of_another_module_are_refused() -> None:
    module, model, _ = captured()
    other = torch.nn.Linear(3, 2)
    mixed = torch.optim.Adam([*module[0].parameters(), *other.parameters()])
    with pytest.raises(
        ValueError, match=r"Adam: a parameter of shape \(2, 3\) is none of Sequential.*'s: leave it out"
    ):
        from_torch_optimizer(model, mixed)
