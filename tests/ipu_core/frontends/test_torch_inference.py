"""Modules in eval mode under a precision, and PyTorch's loaders and data sets as batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Epochs, Predictor, Samples, Sgd, TrainLoop, compare, from_torch
from ipu_core.train.digests import described
from tests.ipu_core.frontends.test_torch_models import made

torch = pytest.importorskip("torch")
nn, F, data = torch.nn, torch.nn.functional, torch.utils.data
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["mlp", "cnn", "encoder", "LSTM"])
def test_outputs_after_training_are_those_of_the_module_in_eval(kind: str) -> None:
    module, batches, loss = made(kind)
    model = from_torch(module, batches[0], loss)
    given = batches[0][:-1]
    test = from_torch(module, given, inference=True)
    assert module.training
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                     model_state=model.state)  # fmt: skip
    loop.run(batches, 3)
    predictor = Predictor(test, loop.params, given, precision="fp32.32", model_state=loop.model_state)
    model.to_torch(loop.params, loop.model_state).eval()
    expected = module(*given).detach().numpy()
    np.testing.assert_allclose(predictor(given), expected, rtol=1e-5, atol=1e-6)
    narrow = [
        Predictor(test, loop.params, given, precision="fp16.16/stochastic", engine=engine, model_state=loop.model_state)
        for engine in ("direct", "tiles")
    ]
    one, other = (predictor(given) for predictor in narrow)
    assert one.tobytes() == other.tobytes()
    assert 0 < np.abs(one - expected).max() < 0.01


class Named(nn.Module):
    """Gives tensors by name, nested, and something that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.9)

    def forward(self, x: Any, labels: Any = None) -> Any:
        hidden = self.norm(self.drop(self.layer(x)))
        loss = None if labels is None else F.cross_entropy(hidden, labels)
        return {"loss": loss, "hidden": (hidden, hidden.sum(1)), "cache": object()}


def test_outputs_are_nested_as_the_module_nests_them() -> None:
    x = torch.randn(5, 3)
    module = Named().eval()
    test = from_torch(module, {"x": x}, inference=True)
    assert set(test.state or {}) == {"norm.running_mean", "norm.running_var"}
    found = Predictor(test, test.params, {"x": x}, precision="fp32.32", model_state=test.state)({"x": x})
    assert found.keys() == {"hidden"}
    expected = module(x)["hidden"][0].detach().numpy()
    np.testing.assert_allclose(found["hidden"][0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["hidden"][1], expected.sum(1), rtol=1e-5, atol=1e-6)


def test_a_loss_in_eval_mode_with_the_trained_statistics() -> None:
    module, batches, loss = made("cnn")
    model, test = from_torch(module, batches[0], loss), from_torch(module, batches[0], loss, inference=True)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                     model_state=model.state)  # fmt: skip
    loop.run(batches, 3)
    found = Predictor(test, loop.params, batches[1], precision="fp32.32", model_state=loop.model_state)(batches[1])
    model.to_torch(loop.params, loop.model_state).eval()
    assert float(found) == pytest.approx(float(loss(module(batches[1][0]), batches[1][1])), rel=1e-5)


def digits() -> Any:
    """Rows of numbers and their classes, which a line separates."""
    x = torch.randn(44, 8, generator=torch.Generator().manual_seed(2))
    return data.TensorDataset(x, (x[:, :3]).argmax(1))


def accuracy(module: Any, rows: Any) -> Any:
    """What `compare` calls: the share of rows that the module in eval mode puts right, in the precision itself."""
    x, y = rows.tensors
    test = from_torch(module, (x,), inference=True)

    def evaluate(params: Any, precision: Any) -> dict[str, float]:
        scores = Predictor(test, params, (x,), precision=precision)((x,))
        return {"test_accuracy": float((scores.argmax(1) == y.numpy()).mean())}

    return evaluate


def test_loaders_and_data_sets_feed_the_loop() -> None:
    module, rows = made("mlp")[0], digits()
    loader = data.DataLoader(rows, 11, shuffle=True)
    model = from_torch(module, next(iter(loader)), F.cross_entropy)
    loop = TrainLoop(model, model.params, next(iter(loader)), optimizer=Sgd(0.2), precision="fp32.32", engine="direct")
    with pytest.raises(ValueError, match=r"100 steps take 100 batches, and there are 4: give Epochs"):
        loop.run(loader, 100)
    assert len(loop.run(loader, 4)) == 4
    assert len(loop.run(Epochs(loader), 10)) == 10
    losses = loop.run(Samples(rows, 11), 40)
    assert losses[-4:].mean() < losses[:4].mean()


@pytest.mark.parametrize("source", ["loader", "data set"])
def test_loaders_and_data_sets_feed_a_study(source: str) -> None:
    module, rows = made("mlp")[0], digits()
    batches = data.DataLoader(rows, 11) if source == "loader" else Samples(rows, 11)
    model = from_torch(module, next(iter(data.DataLoader(rows, 11))), F.cross_entropy)
    study = compare(model, model.params, batches, ["fp32.32", "fp16.16/stochastic"], optimizer=Sgd(0.2), steps=40,
                    seeds=1, engine="direct", evaluate=accuracy(module, rows))  # fmt: skip
    assert not study.failures
    assert all(result["test_accuracy"] > 0.6 for result in study.results)


def test_a_study_knows_modules_and_tensors_apart() -> None:
    x, y = digits().tensors
    wide, tall = (
        from_torch(nn.Sequential(nn.Linear(8, 3), kind()), (x, y), F.cross_entropy) for kind in (nn.ReLU, nn.Tanh)
    )
    assert described(wide) != described(tall)
    assert described([x]) != described([x + 1])
    assert described([x]) == described([x.numpy()])
