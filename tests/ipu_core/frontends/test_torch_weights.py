"""Weights go both ways: state_dict and safetensors, tied names, other formats, counters and refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, from_torch, unit_scale
from tests.ipu_core.frontends.test_torch_models import made

torch = pytest.importorskip("torch")
package = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def trained(kind: str, precision: str = "fp32.32") -> tuple[Any, Any, Any]:
    """A module, its capture, and a loop that has trained it for three steps."""
    module, batches, loss = made(kind)
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision=precision, engine="direct",
                     model_state=model.state)  # fmt: skip
    loop.run(batches, 3)
    return module, model, loop


@pytest.mark.parametrize("kind", ["cnn", "gpt", "LSTM"])
def test_a_file_of_trained_weights_is_torch_s(kind: str, tmp_path: Path) -> None:
    module, model, loop = trained(kind)
    path = tmp_path / "model.safetensors"
    model.save_weights(path, loop.params, loop.model_state, steps=loop.step)
    twin = copy.deepcopy(module)
    twin.load_state_dict(package.load_file(path))
    assert loop.to_torch() is module
    expected = module.state_dict()
    for name, tensor in twin.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
def test_a_file_of_torch_trains_on(kind: str, tmp_path: Path) -> None:
    module, model, loop = trained(kind)
    loop.to_torch()
    path = tmp_path / "model.safetensors"
    package.save_model(module, str(path))  # which writes tied weights once
    params, state = model.load_weights(path)
    for name, array in loop.params.items():
        assert array.tobytes() == params[name].tobytes()
    batch = made(kind)[1][0]
    again = TrainLoop(model, params, batch, optimizer=Sgd(0.1), precision="fp32.32", engine="direct", model_state=state)
    assert again.train(batch) == loop.train(batch)


def test_halves_are_read_and_written_exactly(tmp_path: Path) -> None:
    module, model, loop = trained("cnn", "fp16.16/stochastic")
    assert all(array.dtype == np.float16 for array in loop.params.values())
    model.save_weights(tmp_path / "a.safetensors", loop.params)
    read = model.load_weights(tmp_path / "a.safetensors")[0]
    for name, array in loop.params.items():
        np.testing.assert_array_equal(read[name], array.astype(np.float32))
    narrow = {name: x.bfloat16() if x.is_floating_point() else x for name, x in module.state_dict().items()}
    params, _ = model.from_state_dict(narrow)
    np.testing.assert_array_equal(model.state_dict(params)["0.weight"], narrow["0.weight"].float().numpy())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    module, model, _ = trained("cnn")
    arrays = dict(module.state_dict())
    with pytest.raises(ValueError, match=r"0\.weight of Net has the shape \(4, 1, 3, 3\), not \(4, 9\)"):
        model.from_state_dict({**arrays, "0.weight": arrays["0.weight"].reshape(4, 9)})
    del arrays["1.running_mean"]
    with pytest.raises(KeyError, match=r"no 1\.running_mean of Net"):
        model.from_state_dict(arrays)
    (tmp_path / "x.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(ValueError, match="no safetensors file"):
        model.load_weights(tmp_path / "x.safetensors")


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_a_loop_writes_what_it_has_trained_to_any_such_module(kind: str, precision: str) -> None:
    module, model, loop = trained(kind, precision)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.add_(1)
    before = copy.deepcopy(module.state_dict())
    assert loop.to_torch(twin) is twin
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # the one that was captured is as it was
    expected = model.state_dict(loop.params, loop.model_state, steps=3)
    found = twin.state_dict()
    for _ in range(2):  # counters count once
        loop.to_torch(twin)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name].numpy(), array, strict=True)
    if kind == "gpt":
        assert twin.head.weight is twin.word.weight
        twin.head.weight = torch.nn.Parameter(torch.zeros_like(twin.word.weight))
        loop.to_torch(twin)
        assert torch.equal(twin.head.weight, twin.word.weight)  # tied where it was captured
    else:
        assert int(found["1.num_batches_tracked"]) == 3
        assert not torch.equal(found["1.running_mean"], before["1.running_mean"])


def test_a_loop_goes_on_from_its_checkpoint_and_writes_back(tmp_path: Path) -> None:
    _, _, loop = trained("cnn")
    loop.save(tmp_path / "loop.npz")
    wanted = loop.to_torch().state_dict()
    module, batches, loss = made("cnn")
    model = from_torch(module, batches[0], loss)
    again = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                      model_state=model.state)  # fmt: skip
    again.load(tmp_path / "loop.npz")
    for name, tensor in again.to_torch().state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    for copied in (copy.copy(again), again.in_precision("fp32.32")):
        assert copied.to_torch() is module
    with pytest.raises(TypeError, match=r"holds no module of PyTorch: .* or it was pickled"):
        copy.deepcopy(again).to_torch()


def test_a_loss_with_parameters_has_them_back() -> None:
    class Warm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heat = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(x * self.heat, y)

    module, batches, _ = made("mlp")
    loss = Warm()
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    loop.train(batches[0])
    loop.to_torch()
    assert float(loss.heat) == loop.params["loss.heat"] != 1
    loop.to_torch(copy.deepcopy(module))  # which has no loss


def test_a_loop_says_what_it_cannot_write_to() -> None:
    module, _, loop = trained("cnn")
    narrow = copy.deepcopy(module)
    narrow[10] = torch.nn.Linear(6, 1)
    before = copy.deepcopy(narrow.state_dict())
    with pytest.raises(ValueError, match=r"the Net given has 10\.weight of shape \(1, 6\), .* captured \(3, 6\)"):
        loop.to_torch(narrow)
    assert all(torch.equal(tensor, before[name]) for name, tensor in narrow.state_dict().items())
    with pytest.raises(ValueError, match=r"the Linear given has no 0\.weight"):
        loop.to_torch(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"to a torch\.nn\.Module, not to 'cnn'"):
        loop.to_torch("cnn")
    params, batch = {"w": np.ones(3, np.float32)}, np.ones(3, np.float32)
    plain = TrainLoop(lambda p, x: (p["w"] * x).sum(), params, batch, optimizer=Sgd(0.1), precision="fp32.32")
    with pytest.raises(TypeError, match=r"its loss is not what from_torch gave.*model\.to_torch\(loop\.params"):
        plain.to_torch()


def test_a_loss_under_unit_scaling_is_still_the_module_s() -> None:
    module, batches, loss = made("mlp")
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(unit_scale(model), model.params, batches[0], optimizer=Sgd(0.1), precision="unit-fp16",
                     engine="direct")  # fmt: skip
    loop.train(batches[0])
    assert loop.to_torch() is module
    np.testing.assert_array_equal(module[0].bias.detach().numpy(), loop.params["0.bias"].astype(np.float32))
