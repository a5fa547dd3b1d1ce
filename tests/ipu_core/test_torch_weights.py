"""Weights go both ways: state_dict and safetensors, tied names, other formats, counters and refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, from_torch
from tests.ipu_core.test_torch_models import made

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
    model.to_torch(loop.params, loop.model_state, steps=loop.step)
    expected = module.state_dict()
    for name, tensor in twin.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
def test_a_file_of_torch_trains_on(kind: str, tmp_path: Path) -> None:
    module, model, loop = trained(kind)
    model.to_torch(loop.params, loop.model_state)
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
