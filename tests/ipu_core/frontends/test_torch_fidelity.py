"""The report of the first layer whose float32 results rounding does not explain: silent where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_core import Sgd, TrainLoop, from_torch
from ipu_core.frontends.torch.operations import OPERATIONS
from ipu_core.ir.trace.values import Value, elementwise
from ipu_core.nn import stop_gradient
from tests.ipu_core.frontends.test_torch_models import Encoder, made

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["mlp", "cnn", "gpt", "LSTM"])
def test_all_is_explained_where_all_is_well(kind: str) -> None:
    module, batches, loss = made(kind)
    model = from_torch(module, batches[0], loss)
    report = model.check(batches[1])
    assert report.first is None, report
    assert len(report.gradients) == len(model.params)
    assert len(report.results) > 3
    assert str(report).startswith(f"all {len(report.results)} results and {len(model.params)} gradients")


def test_dropout_is_left_out_and_outputs_have_no_gradients() -> None:
    module, batches = Encoder(0.5), made("encoder")[1]
    assert from_torch(module, batches[0], F.cross_entropy).check(batches[0]).first is None
    report = from_torch(module, batches[0][:-1], inference=True).check(batches[0][:-1])
    assert report.first is None
    assert not report.gradients


def test_after_training_in_halves() -> None:
    module, batches, loss = made("cnn")
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp16.16/stochastic",
                     engine="direct", model_state=model.state)  # fmt: skip
    loop.run(batches, 3)
    report = model.check(batches[0], loop.params, loop.model_state)
    assert report.first is None, report
    assert report.results[0].size != model.check(batches[0]).results[0].size


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Any) -> Any:
        return self.body(F.silu(self.first(x))).square().mean()


def slightly(function: Any) -> Any:
    """The same function, 0.001 % too large."""
    return lambda call, *args: elementwise("multiply", function(call, *args), 1.00001)


def deaf(function: Any) -> Any:
    """The same values, with half the gradient."""

    def result(call: Any, *args: Any) -> Value:
        value = elementwise("multiply", function(call, *args), 0.5)
        return elementwise("add", value, stop_gradient(value))

    return result


def test_the_first_layer_that_is_wrong_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "gelu", slightly(OPERATIONS["gelu"]))  # type: ignore[arg-type]  # a dict
    x = torch.randn(5, 6)
    report = from_torch(Net(), (x,), eager_check=False).check((x,))
    assert report.first is not None
    assert (report.first.name, report.first.kind, report.first.operation) == ("body.1", "GELU", "aten.gelu")
    assert "test_torch_fidelity.py" in report.first.line
    assert report.first.ours > 3 * report.first.allowed
    assert report.first.ours == pytest.approx(1e-5 * report.first.size, rel=0.1)
    assert "farther from torch than float32 rounding explains; the first: aten.gelu of body.1 (GELU)" in str(report)


def test_a_wrong_gradient_is_named_by_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "silu", deaf(OPERATIONS["silu"]))  # type: ignore[arg-type]  # a dict
    x = torch.randn(5, 6)
    report = from_torch(Net(), (x,), eager_check=False).check((x,))
    assert all(each.explained for each in report.results)
    assert {each.name for each in report.gradients if not each.explained} == {"first.weight", "first.bias"}
    assert report.first is not None
    assert report.first.operation == "gradient"


def test_a_batch_of_other_shapes_is_refused() -> None:
    x = torch.randn(5, 6)
    with pytest.raises(ValueError, match="captured for arrays of"):
        from_torch(Net(), (x,)).check((x[:2],))
