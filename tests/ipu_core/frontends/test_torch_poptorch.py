"""PopTorch's words: calls that train and infer, what comes back of them, weights to the host and back, and refusals."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import poptorch
from ipu_core.chip.target import Target
from ipu_core.errors import ChangesNothing, FloatingPointException
from ipu_core.placement.orders import OrderRule, product_order
from tests.ipu_core.frontends.test_torch_models import Gpt, Net, made

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


def direct() -> poptorch.Options:
    return poptorch.Options(engine="direct")


def by_torch(module: Any, optimizer: Any, x: Any, labels: Any, steps: int, count: int) -> list[Any]:
    """Scores and loss of every micro-batch of so many steps, and the module is trained."""
    found = []
    for rows, answers in zip(x.chunk(steps), labels.chunk(steps), strict=True):
        optimizer.zero_grad()
        made = [module(*pair) for pair in zip(rows.chunk(count), answers.chunk(count), strict=True)]
        (sum(loss for _, loss in made) / count).backward()
        optimizer.step()
        found += [(scores.detach(), loss.detach()) for scores, loss in made]
    return found


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("mode", [None, *poptorch.OutputMode])
def test_a_call_does_all_iterations_and_gives_what_was_asked_for(engine: str, mode: Any) -> None:
    module, x, labels = perceptron()
    twin = copy.deepcopy(module)
    options = poptorch.Options(engine=engine).deviceIterations(2)
    options.Training.gradientAccumulation(3)
    every = mode == poptorch.OutputMode.EveryN
    if mode is not None:
        assert options.outputMode(mode, 2 if every else None) is options
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.model.parameters(), 0.1, momentum=0.9))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        scores, loss = model(x, labels)
        wanted = by_torch(twin, optimizer, x, labels, 2, 3)
        if mode == poptorch.OutputMode.Sum:
            expected = [sum(column) for column in zip(*wanted, strict=True)]
        elif mode in (poptorch.OutputMode.All, poptorch.OutputMode.EveryN):
            wanted = wanted[1::2] if every else wanted
            expected = [torch.cat([s for s, _ in wanted]), torch.stack([one for _, one in wanted])]
        else:
            expected = list(wanted[-1])
        torch.testing.assert_close([scores, loss], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(module.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-6)
    assert (model.profile is not None) == (engine == "tiles")


def test_outputs_come_back_whatever_their_size_and_cost_no_bit_of_training() -> None:
    weights = []
    for mode in (poptorch.OutputMode.Final, poptorch.OutputMode.All):
        module, x, labels = perceptron()
        options = poptorch.Options(engine="direct", precision="fp16.16/nearest").deviceIterations(4).outputMode(mode)
        model = poptorch.trainingModel(module, options, poptorch.optim.Adam(module.parameters(), 0.02))
        scores, loss = model(x, labels)
        assert scores.shape == ((6, 3) if mode == poptorch.OutputMode.Final else (24, 3))
        assert loss.shape == (() if mode == poptorch.OutputMode.Final else (4,))
        assert scores.abs().max() > 0
        weights.append(module.state_dict())
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


def test_gradients_may_be_added_up() -> None:
    found = []
    for kind, rate in ((poptorch.ReductionType.Sum, 0.05), (poptorch.ReductionType.Mean, 0.1)):
        module, x, labels = perceptron()
        options = direct()
        options.Training.gradientAccumulation(2).accumulationAndReplicationReductionType(kind)
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), rate))
        found.append((*model(x, labels), *module.parameters()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_the_talk_s_calls() -> None:
    torch.manual_seed(1)
    x, labels = torch.rand(64, 1, 8, 8), torch.randint(0, 4, (64,))
    x[torch.arange(64), 0, labels] += 1
    data = torch.utils.data.TensorDataset(x, labels)
    opts = poptorch.Options().deviceIterations(4)
    loader = poptorch.DataLoader(opts, data, batch_size=4, shuffle=True, drop_last=True)
    assert (loader.combinedBatchSize, len(loader)) == (16, 4)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    training = poptorch.trainingModel(WithLoss(module), opts, optimizer=optimizer)
    inference = poptorch.inferenceModel(module, opts)
    before = inference(x[:16])
    for _ in range(8):
        for rows, answers in loader:
            preds, losses = training(rows, answers)
            assert (preds.shape, losses.shape) == ((4, 4), ())
    training.detachFromDevice()
    assert not training.isAttachedToDevice()
    after = inference(x[:16])
    assert not torch.allclose(before, after, atol=0.1)
    torch.testing.assert_close(after, module(x[:16]).detach(), rtol=1e-4, atol=1e-5)
    assert (after.argmax(1) == labels[:16]).float().mean() > 0.9


def test_loaders_have_all_rows_of_a_call_and_load_ahead() -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    data = torch.utils.data.TensorDataset(torch.arange(20))
    loaders = [poptorch.DataLoader(options, data, 1, mode=mode) for mode in poptorch.DataLoaderMode]
    for loader in loaders:
        assert [batch[0].tolist() for batch in loader] == [list(range(i, i + 6)) for i in (0, 6, 12)]
    assert len(list(poptorch.DataLoader(options, data, 1, drop_last=False))) == 4
    with pytest.raises(ValueError, match="options are fixed once a DataLoader took them"):
        options.deviceIterations(3)
    with pytest.raises(ValueError, match="options are fixed"):
        options.Training.gradientAccumulation(1)
    assert options.clone().deviceIterations(3).device_iterations == 3
    with pytest.raises(NotImplementedError, match=r"DataLoader\(batch_sampler=\) is not here"):
        poptorch.DataLoader(options, data, batch_sampler=[[1]])


class Marked(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(6, 3), kind

    def forward(self, x: Any) -> Any:
        out = self.linear(x)
        first, second = out.square().mean(), out.abs().mean()
        if self.kind == "marked":
            return {"first": first, "loss of another name": poptorch.identity_loss(out.abs(), "sum"), "out": out}
        if self.kind == "accuracy":
            return first, (out.detach() > 0).float().mean()
        return first, second


@pytest.mark.parametrize("kind", ["marked", "accuracy"])
def test_the_loss_is_what_is_marked_or_has_gradients(kind: str) -> None:
    _, x, _ = perceptron()
    module = Marked(kind)
    with torch.no_grad():
        module.linear.bias += 3.0
    twin = copy.deepcopy(module)
    model = poptorch.trainingModel(module, direct(), torch.optim.SGD(module.parameters(), 0.01))
    found, expected = model(x), twin(x)
    torch.testing.assert_close(found, {k: v.detach() for k, v in expected.items()} if kind == "marked" else expected,
                               rtol=1e-5, atol=1e-5)  # fmt: skip
    loss = expected["loss of another name"] if kind == "marked" else expected[0]
    loss.backward()
    torch.testing.assert_close(module.linear.bias, twin.linear.bias - 0.01 * twin.linear.bias.grad)


def test_losses_that_cannot_be_told_apart_are_refused() -> None:
    module = Marked("two")
    model = poptorch.trainingModel(module, direct(), torch.optim.SGD(module.parameters(), 0.01))
    with pytest.raises(ValueError, match=r"2 numbers that have gradients: poptorch\.identity_loss"):
        model(torch.ones(2, 6))
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none'"):
        poptorch.identity_loss(torch.ones(2), "average")


def test_inference_gives_what_the_module_gives_in_eval_and_takes_new_weights() -> None:
    batches = made("cnn")[1]
    module = Net()
    images, labels = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    model = poptorch.inferenceModel(module, poptorch.Options().deviceIterations(3))
    expected = copy.deepcopy(module).eval()(images).detach()
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-6)
    assert model.profile is not None
    wrapped = WithLoss(module)
    options = direct()
    options.Training.gradientAccumulation(3)
    training = poptorch.trainingModel(wrapped, options, torch.optim.SGD(wrapped.parameters(), 0.1))
    training(images, labels)
    training(images, labels)
    assert int(module[1].num_batches_tracked) == 6
    after = copy.deepcopy(module).eval()(images).detach()
    assert (after - expected).abs().max() > 0.001
    torch.testing.assert_close(model(images), after, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode, shape", [("All", (24, 3)), ("EveryN", (8, 3)), ("Final", (4, 3)), ("Sum", (4, 3))])
def test_what_comes_back_of_inference(mode: str, shape: tuple[int, ...]) -> None:
    module, x, _ = perceptron()
    options = direct().deviceIterations(6)
    options.outputMode(poptorch.OutputMode[mode], 3 if mode == "EveryN" else None)
    parts = [module(rows).detach() for rows in x.chunk(6)]
    expected = {"All": torch.cat(parts), "EveryN": torch.cat(parts[2::3]), "Final": parts[-1], "Sum": sum(parts)}[mode]
    found = poptorch.inferenceModel(module, options)(x)
    assert found.shape == shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_inference_of_8_bits_sums_as_the_target_does() -> None:
    torch.manual_seed(5)
    module, x = nn.Linear(300, 24, bias=False), torch.randn(32, 300)
    spec = "fp16.16/nearest/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"
    model = poptorch.inferenceModel(module, poptorch.Options(precision=spec, target="c600", engine="direct"))
    halves = [lowprec.astype(np.array(array.detach()), "float16", overflow="ipu") for array in (x, module.weight.T)]
    a, b = (lowprec.astype(array, "float8_e4m3fnuz", overflow="ipu") for array in halves)
    order = product_order(OrderRule.of(Target("c600")), 32, 300, 24, operands="float8_e4m3fnuz").with_types("float16")
    assert order.group == 32
    expected = lowprec.matmul(a, b, accumulation=order, rounding=lowprec.Rounding(overflow="ipu"))
    np.testing.assert_array_equal(model(x).numpy(), expected.astype(np.float32))


def test_inputs_by_name_and_numbers_of_several_iterations() -> None:
    module = Gpt().eval()
    ids = torch.randint(0, 20, (4, 9))
    model = poptorch.inferenceModel(module, direct().deviceIterations(2))
    found = model(ids[:, :-1], labels=ids[:, 1:])
    expected = [module(ids[i : i + 2, :-1], ids[i : i + 2, 1:]).detach() for i in (0, 2)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_schedulers_go_through_set_optimizer() -> None:
    module, x, labels = perceptron()
    twin = copy.deepcopy(module)
    optimizers = [poptorch.optim.SGD(module.parameters(), 0.2), torch.optim.SGD(twin.parameters(), 0.2)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    model = poptorch.trainingModel(module, direct(), optimizers[0])
    for _ in range(4):
        optimizers[1].zero_grad()
        expected = twin(x, labels)[1]
        expected.backward()
        optimizers[1].step()
        assert float(model(x, labels)[1]) == pytest.approx(float(expected), rel=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of schedulers, that no step of the optimizer came before theirs
            for scheduler in schedulers:
                scheduler.step()
        model.setOptimizer(optimizers[0])
    optimizers[0].param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match="learning rates alone"):
        model.setOptimizer(optimizers[0])
    with pytest.raises(ValueError, match="learning rates alone"):
        model.setOptimizer(poptorch.optim.SGD(module.parameters(), 0.2, loss_scaling=2.0))


def test_weights_of_the_module_and_of_the_machine() -> None:
    module, x, labels = perceptron()
    model = poptorch.trainingModel(module, direct(), torch.optim.SGD(module.parameters(), 0.1, momentum=0.9))
    for call in (model.copyWeightsToHost, model.copyWeightsToDevice, model.detachFromDevice, model.attachToDevice,
                 model.getLatency):  # fmt: skip
        with pytest.raises(ValueError, match="not compiled"):
            call()
    model.compile(x, labels)
    assert (model.isCompiled(), model.isAttachedToDevice(), model.loop.step) == (True, True, 0)
    first = float(model(x, labels)[1])
    moments = {name: array for name, array in model.loop.arrays().items() if name.startswith("optimizer")}
    begin = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        module.model[0].weight.zero_()
    with pytest.raises(ValueError, match=r"written to since the last call: copyWeightsToDevice\(\)"):
        model(x, labels)
    model.copyWeightsToHost()
    torch.testing.assert_close(module.state_dict(), begin)
    model.load_state_dict(perceptron()[0].state_dict())
    assert all(np.array_equal(model.loop.arrays()[name], array) for name, array in moments.items())
    assert float(model(x, labels)[1]) == first
    model.detachFromDevice()
    with pytest.raises(ValueError, match="not attached"):
        model.detachFromDevice()
    model.attachToDevice()
    with pytest.raises(ValueError, match="already attached"):
        model.attachToDevice()
    with pytest.raises(ValueError, match="direct engine has no account"):
        model.cycleCount()
    model.destroy()
    assert not model.isCompiled()
    assert model.model is module
    assert model.state_dict().keys() == module.state_dict().keys()


def test_latency_is_the_account_s() -> None:
    module, x, labels = perceptron()
    model = poptorch.trainingModel(module, poptorch.Options().deviceIterations(2), torch.optim.SGD(module.parameters()))
    model(x, labels)
    assert model.cycleCount() == 2 * model.profile.cycles
    assert model.getLatency() == (model.profile.seconds,) * 3 == model.getComputeLatency()


@pytest.mark.parametrize(
    "half, given, words",
    [
        (False, {}, {}),
        (False, {"stochastic": True}, {"rounding": "stochastic"}),
        (True, {}, {"operands": "float16", "weights": "float16", "partials": "float32", "gradient_sum": "float32"}),
        (True, {"partials": "half", "stochastic": True}, {"partials": "float16", "rounding": "stochastic"}),
        (True, {"accum": "half"}, {"gradient_sum": "float16", "running_mean": True, "first_moment": "float32"}),
        (True, {"accum": "half", "strategy": "Post"}, {"gradient_sum": "float16", "running_mean": False}),
        (False, {"strategy": "Running"}, {"running_mean": True}),
        (True, {"first": "half"}, {"first_moment": "float16", "second_moment": "float32"}),
    ],
)
def test_precisions_are_what_module_options_and_optimizer_say(
    half: bool, given: dict[str, Any], words: dict[str, Any]
) -> None:
    module, x, labels = perceptron()
    module = module.half() if half else module
    options = direct()
    options.Training.gradientAccumulation(2)
    if "stochastic" in given:
        options.Precision.enableStochasticRounding(True)
    if "partials" in given:
        options.Precision.setPartialsType(torch.half)
    if "strategy" in given:
        strategy = poptorch.MeanReductionStrategy[given["strategy"]]
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    kinds = {"half": torch.half, None: None}
    optimizer = poptorch.optim.AdamW(
        module.parameters(), 0.01, loss_scaling=128.0, accum_type=kinds[given.get("accum")],
        first_order_momentum_accum_type=kinds[given.get("first")],
    )  # fmt: skip
    model = poptorch.trainingModel(module, options, optimizer)
    losses = [float(model(x.half() if half else x, labels)[1]) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.05
    precision = model.loop.precision
    for name, word in words.items():
        value = getattr(precision, name)
        assert (value.mode if name == "rounding" else getattr(value, "name", value)) == word, name
    assert model.loop.loss_scale == 128.0
    assert {x.dtype for x in module.parameters()} == {torch.float16 if half else torch.float32}


def test_optimizers_are_torch_s_with_what_poptorch_adds() -> None:
    module, x, labels = perceptron()
    for make, wanted in (
        (lambda p: poptorch.optim.SGD(p, 0.1, momentum=0.9, max_grad_norm=0.5), {"momentum": 0.9, "clip_norm": 0.5}),
        (lambda p: poptorch.optim.AdamW(p, 1e-3, bias_correction=False), {"bias_correction": False}),
        (lambda p: poptorch.optim.LAMB(p, 1e-3, max_weight_norm=2.0, weight_decay=0.1),
         {"max_weight_norm": 2.0, "weight_decay": 0.1, "bias_correction": True, "eps": 1e-8}),
    ):  # fmt: skip
        optimizer = make(module.parameters())
        assert isinstance(optimizer, torch.optim.Optimizer)
        model = poptorch.trainingModel(module, direct(), optimizer)
        losses = [float(model(x, labels)[1]) for _ in range(5)]
        assert losses[-1] < losses[0]
        assert {name: getattr(model._made, name) for name in wanted} == wanted
    with pytest.raises(NotImplementedError, match="LAMB trains a module that"):
        optimizer.step()
    with pytest.raises(AttributeError, match=r"optim\.RMSprop is not here: SGD"):
        poptorch.optim.RMSprop  # noqa: B018
    with pytest.raises(ValueError, match=r"of torch\.float or torch\.half"):
        poptorch.optim.SGD(module.parameters(), 0.1, accum_type=torch.int8)


def test_moments_and_weights_go_off_the_chip() -> None:
    module, x, labels = perceptron()
    away = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(20)
    options = poptorch.Options()
    options.TensorLocations.setOptimizerLocation(away)
    found = list(options.TensorLocations.streamed({"a": 24, "b": 8}))
    assert found == ["optimizer.*.a"]
    peaks = []
    for given in (options, poptorch.Options()):
        model = poptorch.trainingModel(module, given, poptorch.optim.Adam(module.parameters(), 0.01))
        model(x, labels)
        peaks.append(model.profile.cycles)
    assert peaks[0] > peaks[1]


def test_exceptions_stop_a_step() -> None:
    class Divided(nn.Linear):
        def forward(self, x: Any) -> Any:
            return 1 / (super().forward(x) * 0)

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    module, x = Divided(2, 2), torch.ones(2, 2)
    assert poptorch.inferenceModel(module)(x).isinf().all()
    with pytest.raises(FloatingPointException, match="division by zero"):
        poptorch.inferenceModel(module, options)(x)


def test_seeds_are_the_machine_s_and_torch_s() -> None:
    found = []
    for seed in (1, 1, 2):
        module, x, labels = perceptron()
        options = poptorch.Options(engine="direct", precision="fp16.16/stochastic").randomSeed(seed)
        drawn = torch.rand(1)
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), 0.1))
        model(x, labels)
        found.append((float(drawn), [p.detach().numpy().tobytes() for p in module.parameters()]))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert found[0][1] != found[2][1]


def test_settings_are_bound_and_kept_to() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Any, twice: bool = False) -> Any:
            return super().forward(2 * x if twice else x)

    module, x = Scaled(3, 2), torch.randn(4, 3)
    model = poptorch.inferenceModel(module, direct())
    torch.testing.assert_close(model(x, twice=True), module(x, True).detach())
    torch.testing.assert_close(model(x, True), module(x, True).detach())
    with pytest.raises(ValueError, match=r"compiled with \{'twice': True\}, not with \{'twice': False\}"):
        model(x, twice=False)


def test_blocks_lie_on_the_one_chip() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = poptorch.BeginBlock(nn.Linear(3, 4), "first", ipu_id=0)
            self.second = nn.Linear(4, 2)

        @poptorch.BlockFunction("third")
        def third(self, x: Any) -> Any:
            return x.sigmoid()

        def forward(self, x: Any) -> Any:
            poptorch.Block.useAutoId()
            with poptorch.Block("second"):
                x = self.second(self.first(x))
            return self.third(x)

    module, x = Blocks(), torch.randn(4, 3)
    poptorch.removeBlocks(module)
    torch.testing.assert_close(poptorch.inferenceModel(module, direct())(x), module(x).detach())
    with pytest.raises(NotImplementedError, match=r"within forward is not here: BeginBlock\(layer, ipu_id=\)"):
        poptorch.Block("other", ipu_id=1)


class Deep(nn.Module):
    """Four layers, on the chips that are said."""

    def __init__(self, *chips: int | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 3)
        for number, (layer, chip) in enumerate(zip((*self.layers, self.head), chips, strict=False)):
            poptorch.BeginBlock(layer, f"block{number}", ipu_id=chip)

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        x = self.head(x)
        return x, nn.functional.cross_entropy(x, y)


def trained_deep(*chips: int | None, strategy: Any = None, **options: Any) -> tuple[Any, list[Any]]:
    module = Deep(*chips)
    opts = poptorch.Options(target=options.pop("target", "gc200")).replicationFactor(options.pop("replicas", 1))
    opts.Training.gradientAccumulation(4)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    model = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), 0.1))
    x, y = torch.linspace(-1, 1, 16 * 6).reshape(16, 6), torch.arange(16) % 3
    losses = [model(x, y)[1].mean().item() for _ in range(3)]
    return model, losses


@pytest.mark.parametrize(
    "chips, strategy, stages, schedule",
    [
        ((0, None, 1, None, 2), None, ("*", "layers.2", "head"), "grouped"),
        ((0, 0, 1, 1, 1), poptorch.ShardedExecution(), ("*", "layers.2"), "sequential"),
        ((None,) * 5, poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
         ("*", "layers.1", "layers.2", "layers.3", "head"), "grouped"),
        ((None,) * 5, poptorch.PipelinedExecution(poptorch.Stage("block0", "block1").ipu(0), "block2"),
         ("*", "layers.2"), "grouped"),
    ],
)  # fmt: skip
def test_blocks_on_other_chips_are_stages(chips: Any, strategy: Any, stages: Any, schedule: str) -> None:
    one, losses = trained_deep()
    assert one.loop.execution.stages == 1
    model, staged = trained_deep(*chips, strategy=strategy)
    assert staged == losses
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, model.model.state_dict()[name])
    assert (model.loop.execution.stages, model.loop.execution.pipeline_schedule) == (stages, schedule)
    assert model.system_profile.stages == len(stages)
    assert one.system_profile.chips == 1


def test_replicas_of_a_pipeline_and_what_one_cannot_be() -> None:
    model, _ = trained_deep(0, None, 1, replicas=2, target="pod4")
    assert model.system_profile.chips == 4
    with pytest.raises(ValueError, match="head on chip 0 goes back to an earlier chip"):
        trained_deep(0, None, 1, None, 0)
    with pytest.raises(ValueError, match=r"layers\.2 on chip 2 leaves out chip 1"):
        trained_deep(0, None, 2)
    with pytest.raises(ValueError, match="no layer begins a block 'decoder', of a Stage; there are block0"):
        trained_deep(0, 1, strategy=poptorch.PipelinedExecution(poptorch.Stage("decoder")))
    with pytest.raises(ValueError, match="one a chip in order, not on 0"):
        poptorch.PipelinedExecution("block0", poptorch.Stage("block1").ipu(0))
    with pytest.raises(TypeError, match="takes an AutoStage, or stages, not 3"):
        poptorch.PipelinedExecution(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ipu_id must be an integer of at least 0"):
        poptorch.BeginBlock(nn.Linear(1, 1), ipu_id=-1)
    module = Deep(0, 1)
    with pytest.warns(ChangesNothing, match="planned on one chip"):
        poptorch.inferenceModel(module, direct())(torch.zeros(2, 6), torch.zeros(2, dtype=torch.long))
    poptorch.removeBlocks(module)
    assert poptorch.stages.stages_of(module, None) == ()


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: poptorch.Phase, r"poptorch\.Phase is not here: BeginBlock\(layer, ipu_id=\) and"),
        (lambda: poptorch.for_loop, "recurrent layers are loops on the device"),
        (lambda: poptorch.ICustomArgParser, "mappings, dataclasses"),
        (lambda: poptorch.Error, r"errors are Python's"),
        (lambda: poptorch.Options().Precision.halfFloatCasting, "formats are those of the module"),
        (lambda: poptorch.Options().Training.setConvolutionDithering, "decides no bit"),
        (lambda: poptorch.Options().toDict, r"print\(options\) shows them"),
        (lambda: poptorch.inferenceModel(nn.Linear(1, 1)).setOptimizer, "an inferenceModel trains nothing"),
        (lambda: poptorch.inferenceModel(nn.Linear(1, 1)).replicaGrouping, "replicas are alike"),
        (lambda: poptorch.nop, "no operation here does it"),
        (lambda: poptorch.CommGroupType, "replicas are alike: replicationFactor"),
        (lambda: poptorch.Options().anchorTensor, "TrainLoop"),
        (lambda: poptorch.Options().TensorLocations.numIOTiles, "all tiles compute"),
        (lambda: poptorch.TensorLocationSettings().useIOTilesToLoad, "all tiles compute"),
        (lambda: poptorch.inferenceModel(nn.Linear(1, 1)).compileAndExport, r"TrainLoop\.save keeps"),
    ],
)
def test_names_that_are_not_here_say_why_in_one_sentence(ask: Any, words: str) -> None:
    with pytest.raises(AttributeError, match=words) as refusal:
        ask()
    assert "\n" not in str(refusal.value)


def test_names_of_no_one() -> None:
    for ask in (lambda: poptorch.nothing, lambda: poptorch.Options().nothing,
                lambda: poptorch.inferenceModel(nn.Linear(1, 1)).nothing):  # fmt: skip
        with pytest.raises(AttributeError, match="nothing"):
            ask()


def test_refusals() -> None:
    module, x, labels = perceptron()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with pytest.raises(ValueError, match="deviceIterations must be an integer of at least 1"):
        poptorch.Options().deviceIterations(0)
    with pytest.raises(ValueError, match="replicationFactor must be an integer of at least 1"):
        poptorch.Options().replicationFactor(0)
    with pytest.raises(NotImplementedError, match=r"useIpuModel\(False\)"):
        poptorch.Options().useIpuModel(True).useIpuModel(False)
    with pytest.raises(ValueError, match=r"output_return_period is of OutputMode\.EveryN alone"):
        poptorch.Options().outputMode(poptorch.OutputMode.All, 3)
    with pytest.raises(ValueError, match="unknown precision"):
        poptorch.Options(precision="fp7")
    options = poptorch.Options()
    options.Precision.setPartialsType(torch.half)
    with pytest.raises(ValueError, match=r"setPartialsType\(torch\.half\) is for a module in half"):
        poptorch.trainingModel(module, options, optimizer)(x, labels)
    with pytest.raises(ValueError, match=r"a module is of torch\.float or all of torch\.half, not of torch\.bfloat16"):
        poptorch.inferenceModel(copy.deepcopy(module).bfloat16())(x)
    with pytest.raises(TypeError, match="an optimizer is one of"):
        poptorch.trainingModel(module)
    options = poptorch.Options().deviceIterations(5)
    model = poptorch.trainingModel(module, options, optimizer)
    with pytest.raises(ValueError, match=r"24.* rows cannot be cut into deviceIterations\(5\)"):
        model(x, labels)
    assert model.profile is None
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    with pytest.raises(ValueError, match=r"an inferenceModel has gradientAccumulation\(1\)"):
        poptorch.inferenceModel(module, options)
