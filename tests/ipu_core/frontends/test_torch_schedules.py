"""Schedulers of torch as schedules: torch's own values step by step, and the same weights after them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from ipu_core import TorchSchedule, TrainLoop, from_torch, from_torch_optimizer
from ipu_core.train.digests import described
from tests.ipu_core.frontends.test_torch_optimizers import module_and_batch

torch = pytest.importorskip("torch")
kinds = torch.optim.lr_scheduler
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # of torch 2.6 to itself, in SequentialLR


def two_groups() -> Any:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.3}], 0.1, momentum=0.9)


MAKERS = {
    "LambdaLR": lambda o: kinds.LambdaLR(o, lambda step: min(1.0, step / 5)),
    "MultiplicativeLR": lambda o: kinds.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: kinds.StepLR(o, 3),
    "MultiStepLR": lambda o: kinds.MultiStepLR(o, [2, 5]),
    "ConstantLR": kinds.ConstantLR,
    "LinearLR": kinds.LinearLR,
    "ExponentialLR": lambda o: kinds.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: kinds.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: kinds.CosineAnnealingWarmRestarts(o, 4),
    "PolynomialLR": lambda o: kinds.PolynomialLR(o, 8, 2.0),
    "CyclicLR": lambda o: kinds.CyclicLR(o, [0.01, 0.03], [0.1, 0.3], step_size_up=3, cycle_momentum=False),
    "OneCycleLR": lambda o: kinds.OneCycleLR(o, [0.5, 1.5], total_steps=25, cycle_momentum=False),
    "SequentialLR": lambda o: kinds.SequentialLR(o, [kinds.LinearLR(o, 0.1), kinds.ExponentialLR(o, 0.9)], [4]),
    "ChainedScheduler": lambda o: kinds.ChainedScheduler([kinds.ConstantLR(o), kinds.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rates_are_those_of_torch(name: str) -> None:
    optimizer = two_groups()
    scheduler = MAKERS[name](optimizer)
    schedule, slow = TorchSchedule(scheduler), TorchSchedule(scheduler, every=3)
    for step in range(24):
        rates = tuple(group["lr"] for group in optimizer.param_groups)
        assert schedule.rates(step) == rates
        assert schedule(step) == max(rates[0], 0.0)
        assert slow(3 * step + 2) == schedule(step)
        optimizer.step()
        scheduler.step()


def test_every_scheduler_of_torch_is_looked_at() -> None:
    assert set(kinds.__all__) - {"LRScheduler", "ReduceLROnPlateau"} == set(MAKERS)


def test_a_schedule_goes_on_from_where_the_scheduler_is_and_leaves_it_there() -> None:
    optimizer = two_groups()
    scheduler = kinds.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    schedule = TorchSchedule(scheduler)
    assert [schedule(step) for step in (2, 0, 1)] == [0.0125, 0.05, 0.025]
    assert scheduler.get_last_lr() == [0.05, 0.15]
    assert pickle.loads(pickle.dumps(schedule))(4) == schedule(4)


def check_beside_torch(
    module: Any, batch: Any, optimizer: Any, scheduler: Any, steps: int, engine: str = "direct"
) -> None:
    """Weights are torch's after so many steps of both."""
    loss = torch.nn.functional.cross_entropy
    model = from_torch(module, batch, loss)
    settings = from_torch_optimizer(model, optimizer, lr=scheduler)
    loop = TrainLoop(model, model.params, batch, optimizer=settings, precision="fp32.32", engine=engine)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(module(batch[0]), batch[1]).backward()
        optimizer.step()
        scheduler.step()
        loop.train(batch)
    found = model.state_dict(loop.params)
    for parameter, tensor in module.named_parameters():
        np.testing.assert_allclose(found[parameter], tensor.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_weights_are_those_of_torch(kind: str) -> None:
    module, batch = module_and_batch()
    groups = [{"params": module[0].parameters(), "lr": 0.03}, {"params": module[2].parameters(), "lr": 0.01}]
    optimizer = getattr(torch.optim, kind)(groups)
    scheduler = kinds.SequentialLR(
        optimizer, [kinds.LambdaLR(optimizer, lambda step: step / 3), kinds.CosineAnnealingLR(optimizer, 8)], [3]
    )
    check_beside_torch(module, batch, optimizer, scheduler, 10)


@pytest.mark.parametrize(
    "make, words",
    [
        (kinds.ReduceLROnPlateau, "ReduceLROnPlateau looks at the loss"),
        (lambda o: kinds.OneCycleLR(o, 0.5, total_steps=9), "OneCycleLR changes more than learning rates"),
        (lambda o: TorchSchedule(kinds.StepLR(o, 3), 0), "every must be a number of steps"),
        (lambda o: kinds.OneCycleLR(o, [0.5, 1.5], total_steps=2, cycle_momentum=False), "total"),
    ],
)
def test_what_is_no_function_of_the_step_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TorchSchedule(make(two_groups()))(5)


APART = {
    "LambdaLR": lambda o: kinds.LambdaLR(o, [lambda step: 1 / (1 + step), lambda step: step / 9]),
    "OneCycleLR": lambda o: kinds.OneCycleLR(o, [0.05, 0.1], total_steps=30, cycle_momentum=False),
    "CosineAnnealingLR": lambda o: kinds.CosineAnnealingLR(o, 15, eta_min=0.004),
    "from 0": lambda o: kinds.LambdaLR(o, [lambda step: 0.0, lambda step: 1.0]),
}


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("name", APART)
def test_rates_of_groups_that_move_apart_are_those_of_torch(name: str, engine: str) -> None:
    module, batch = module_and_batch()
    groups = [{"params": [module[0].weight], "lr": 0.03}, {"params": [module[0].bias, module[2].weight], "lr": 0.01}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = APART[name](optimizer)
    check_beside_torch(module, batch, optimizer, scheduler, 20 if engine == "direct" else 3, engine)


def test_studies_know_schedules_apart() -> None:
    slow, fast = (TorchSchedule(kinds.ExponentialLR(two_groups(), factor)) for factor in (0.9, 0.5))
    before = described(slow)
    slow(7)
    assert described(slow) == before != described(fast)
    with pytest.raises(TypeError, match="a scheduler is one of"):
        TorchSchedule(0.1)
