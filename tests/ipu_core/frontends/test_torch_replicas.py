"""PopTorch's replicationFactor: whose rows are whose, what comes back of every replica, and what they cost."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ipu_core import poptorch
from ipu_core.errors import Unvalidated
from lowprec import Collective
from tests.ipu_core.frontends.test_torch_poptorch import WithLoss, by_torch

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")


def perceptron(rows: int = 24) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = WithLoss(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    return model, torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def options_of(
    iterations: int = 1, accumulation: int = 1, replicas: int = 1, engine: str = "direct", **more: Any
) -> poptorch.Options:
    options = poptorch.Options(engine=engine, **more).deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    return options


def together(parts: list[Any], replicas: int) -> list[Any]:
    """Parts of batches as PopTorch gives them back: those of all replicas one after another."""
    groups = [parts[i : i + replicas] for i in range(0, len(parts), replicas)]
    return [(torch.cat([s for s, _ in group]), torch.stack([loss for _, loss in group])) for group in groups]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("mode", [None, "Final", "All", "EveryN", "Sum"])
def test_a_step_is_all_replicas_and_all_give_what_was_asked_for(engine: str, mode: Any, accumulation: int) -> None:
    module, x, labels = perceptron(48)
    twin = copy.deepcopy(module)
    options = options_of(2, accumulation, 2, engine)
    every = 2 if mode == "EveryN" else None
    if mode is not None:
        options.outputMode(poptorch.OutputMode[mode], every)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1, momentum=0.9))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        scores, loss = model(x, labels)
        wanted = together(by_torch(twin, optimizer, x, labels, 2, 2 * accumulation), 2)
        if mode == "Sum":
            expected = [sum(column) for column in zip(*wanted, strict=True)]
        elif mode in ("All", "EveryN"):
            wanted = wanted[1::2] if every else wanted
            expected = [torch.cat(column) for column in zip(*wanted, strict=True)]
        else:
            expected = list(wanted[-1])
        torch.testing.assert_close([scores, loss], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(module.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-6)
    assert model.loop.training.replicas == 2
    assert (model.profile is not None) == (engine == "tiles")


def test_the_last_rows_of_a_call_are_those_whose_outputs_come_back() -> None:
    """PopTorch's scripts compare `labels[-len(scores):]` with the scores."""
    module, x, labels = perceptron()
    model = poptorch.trainingModel(module, options_of(2, 2, 2), torch.optim.SGD(module.parameters(), 0.0))
    scores, loss = model(x, labels)
    assert (scores.shape, loss.shape) == ((6, 3), (2,))
    torch.testing.assert_close(scores, module(x)[-6:].detach(), rtol=1e-4, atol=1e-6)


def test_gradients_of_replicas_may_be_added_up() -> None:
    found = []
    for kind, rate in ((poptorch.ReductionType.Sum, 0.02), (poptorch.ReductionType.Mean, 0.16)):
        module, x, labels = perceptron()
        options = options_of(1, 2, 4)
        options.Training.accumulationAndReplicationReductionType(kind)
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), rate))
        found.append((*model(x, labels), *module.parameters()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replicas, accumulation", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_outputs_of_a_step_that_is_skipped_are_its_own(replicas: int, accumulation: int) -> None:
    _, x, labels = perceptron(8)
    module = WithLoss(nn.Linear(6, 3))
    options = options_of(1, accumulation, replicas, precision="fp16.16/nearest").outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(module.parameters(), 0.1, loss_scaling=1024.0)
    model = poptorch.trainingModel(module, options, optimizer)
    model(x, labels)
    twin = copy.deepcopy(module)
    for rows, skipped in ((1e4 * x.sign(), 1), (x, 1)):
        torch.testing.assert_close(module.state_dict(), twin.state_dict(), rtol=0, atol=0)
        scores, loss = model(rows, labels)
        assert len(model.loop.skipped) == skipped
        torch.testing.assert_close(scores, twin(rows).detach(), rtol=0.01, atol=0.01)
        assert loss.shape == ((replicas * accumulation,) if replicas * accumulation > 1 else ())


def test_norms_are_of_the_rows_of_one_micro_batch_of_one_replica_and_the_first_one_s_are_kept() -> None:
    torch.manual_seed(0)
    module = WithLoss(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    x, labels = torch.randn(24, 3) + torch.arange(24.0)[:, None], torch.randint(0, 2, (24,))
    twin = copy.deepcopy(module)
    options = options_of(1, 2, 2).outputMode(poptorch.OutputMode.All)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.0))
    scores, _ = model(x, labels)
    parts = x.chunk(4)
    expected = [copy.deepcopy(twin)(rows) for rows in parts]
    torch.testing.assert_close(scores, torch.cat(expected).detach(), rtol=1e-3, atol=1e-4)
    # the first replica has the first part of each micro-batch; micro-batches each go on from the buffers before
    means = torch.stack([0.1 * rows.mean(0) for rows in (parts[0], parts[2])]).mean(0)
    torch.testing.assert_close(module.model[0].running_mean, means, rtol=1e-4, atol=1e-5)
    assert int(module.model[0].num_batches_tracked) == 2


@pytest.mark.parametrize("mode", ["Default", "All", "EveryN", "Final", "Sum"])
def test_replicas_of_an_inference_model_share_the_rows(mode: str) -> None:
    module, x, _ = perceptron()
    options = options_of(4, 1, 2).outputMode(poptorch.OutputMode[mode], 2 if mode == "EveryN" else None)
    parts = [rows for rows in module(x).detach().chunk(4)]
    expected = {"All": torch.cat(parts), "EveryN": torch.cat(parts[1::2]), "Final": parts[-1], "Sum": sum(parts)}
    expected["Default"] = expected["All"]
    model = poptorch.inferenceModel(module, options)
    model.compile(x)
    torch.testing.assert_close(model(x), expected[mode], rtol=1e-5, atol=1e-6)
    assert model.predictor.block.inputs[-1].type.shape == (3, 6)
    with pytest.raises(ValueError, match=r"deviceIterations\(4\) x replicationFactor\(2\) x gradientAccumulation\(1\)"):
        model(x[:20])


def test_masks_are_every_replica_s_own() -> None:
    torch.manual_seed(0)
    module = WithLoss(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2)))
    x = torch.ones(1, 64).repeat(8, 1)
    options = options_of(1, 2, 2).outputMode(poptorch.OutputMode.All)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.0))
    scores, _ = model(x, torch.zeros(8, dtype=torch.long))
    assert len({row.numpy().tobytes() for row in scores}) == 8


def test_loaders_have_the_rows_of_all_replicas() -> None:
    options = options_of(2, 3, 4)
    data = torch.utils.data.TensorDataset(torch.arange(60))
    loader = poptorch.DataLoader(options, data, 2)
    assert (loader.combinedBatchSize, len(loader)) == (48, 1)
    module, x, labels = perceptron(48)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"30.* rows cannot be cut into .*replicationFactor\(4\)"):
        model(x[:30], labels[:30])


class Wide(nn.Sequential):
    """Gives its scores many times over: outputs of more elements than all weights together."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).repeat(1, self.times)


def test_links_are_those_of_a_system_and_outputs_go_over_none() -> None:
    cycles = {}
    for target, times in (("gc200", 1), ("m2000", 1), ("m2000", 512)):
        module, x, labels = perceptron(16)
        module.model = Wide(*module.model)
        module.model.times = times
        options = options_of(1, 1, 4, "tiles", target=target)
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1))
        scores, _ = model(x, labels)
        assert scores.shape == (16, 3 * times)
        links = [step for step in model.profile.steps if step.kind == "links"]
        assert links
        assert all("all_reduce" in step.name for step in links)
        cycles[target, times] = sum(step.cycles for step in links)
    # 98,304 bytes of scores a chip would take longer than the weights' 392
    assert cycles["m2000", 512] <= cycles["m2000", 1]
    options = options_of(1, 1, 2, "tiles", target="m2000")
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"has 4 chips for 2 replicas: replicas=4"):
        model(x, labels)


def test_moments_in_shards_change_no_bit_and_take_less_memory() -> None:
    found = []
    for shared in (False, True):
        module, x, labels = perceptron(16)
        options = options_of(1, 1, 4, "tiles")
        away = poptorch.TensorLocationSettings().useReplicatedTensorSharding(shared)
        options.TensorLocations.setOptimizerLocation(away.minElementsForReplicatedTensorSharding(40))
        model = poptorch.trainingModel(module, options, poptorch.optim.Adam(module.parameters(), 0.01))
        model(x, labels)
        memory = model.profile.memory
        held = memory.tiles_of("state.optimizer.first_moment.model.0.weight").sum()
        small = memory.tiles_of("state.optimizer.first_moment.model.2.weight").sum()
        found.append((held, small, [p.detach().numpy().tobytes() for p in module.parameters()]))
    assert found[0][0] == 4 * found[1][0] > 0
    assert found[0][1:] == found[1][1:]
    assert poptorch.TensorLocationSettings().least_shared == 8192


def test_the_order_of_a_sum_over_replicas_is_a_collective() -> None:
    weights = []
    for collective in (None, Collective("ring", wire="bfloat16")):
        module, x, labels = perceptron(16)
        options = options_of(1, 1, 4, collective=collective)
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1))
        model(x, labels)
        assert model.loop.training.collective == collective
        weights.append(module.model[0].weight.detach().numpy().copy())
    assert (weights[0] != weights[1]).any()
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-3)
    with pytest.raises(TypeError, match=r"collective must be a Collective"):
        poptorch.Options(collective="ring")


def test_numbers_that_no_machine_has_warn() -> None:
    module, x, labels = perceptron(24)
    model = poptorch.trainingModel(module, options_of(1, 1, 3), torch.optim.SGD(module.parameters(), 0.1))
    with pytest.warns(Unvalidated, match="3 replicas are no power of two"):
        model(x, labels)
