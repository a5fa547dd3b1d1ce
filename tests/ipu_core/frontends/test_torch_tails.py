"""Functions at their kinks, at zero and far out: the value and the gradient that torch has, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Precision, execute, from_torch, trace
from tests.ipu_core.frontends.torch_peer import OLDER, ours

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")

NEAR = (-1e-4, -1e-9, -0.0, 0.0, 1e-9, 1e-4)
HALVES = (-2.5, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.5, 3.0)
FAR = (-30.0, -9.0, -6.0, -1.5, 1.5, 6.0, 9.0, 30.0)


def of_labels(name: str, label: float) -> Callable[[Any], Any]:
    """A loss of labels that are all the same, row by row."""
    return lambda x: getattr(F, name)(x, torch.full_like(x, label), reduction="none")


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[float, ...]]] = {
    "log1p": (torch.log1p, (-0.5, *NEAR, 1e-30, 0.5, 30.0)),
    "expm1": (torch.expm1, (-0.5, *NEAR, 1e-30, 1.5, 30.0)),
    "softplus": (F.softplus, (*NEAR, *FAR)),
    "softplus, its own slope": (lambda x: F.softplus(x, 2, 5), (*NEAR, *FAR)),
    "logsigmoid": (F.logsigmoid, (*NEAR, *FAR)),
    "mish": (F.mish, (*NEAR, *FAR)),
    "erfc": (torch.erfc, (*NEAR, -9.0, -3.0, 0.9, 1.0, 1.1, 2.0, 3.0, 4.0, 6.0, 9.0)),
    "elu": (lambda x: F.elu(x, 0.7), (*NEAR, *FAR)),
    "selu": (F.selu, (*NEAR, *FAR)),
    "celu": (lambda x: F.celu(x, 1.5), (*NEAR, *FAR)),
    "clamp": (lambda x: x.clamp(-1.5, 6), (*NEAR, *FAR)),
    "clamp by tensors": (lambda x: x.clamp(torch.full_like(x, -1.5), torch.full_like(x, 6)), (*NEAR, *FAR)),
    "hardtanh": (F.hardtanh, (-1.0, 1.0, *NEAR, *FAR)),
    "relu6": (F.relu6, (*NEAR, *FAR)),
    "hardsigmoid": (F.hardsigmoid, (-3.0, 3.0, *NEAR, *FAR)),
    "hardswish": (F.hardswish, (*(() if OLDER else (-3.0, 3.0)), *NEAR, *FAR)),  # torch 2.6 has other slopes there
    "leaky_relu": (F.leaky_relu, (*NEAR, *FAR)),
    "hardshrink": (F.hardshrink, (-0.5, 0.5, *NEAR, *FAR)),
    "softshrink": (F.softshrink, (-0.5, 0.5, *NEAR, *FAR)),
    "threshold": (lambda x: F.threshold(x, 1.5, 2.0), (*NEAR, *FAR)),
    "floor": (torch.floor, (*HALVES, *NEAR, *FAR)),
    "ceil": (torch.ceil, (*HALVES, *NEAR, *FAR)),
    "trunc": (torch.trunc, (*HALVES, *NEAR, *FAR)),
    "round": (torch.round, (*HALVES, *NEAR, *FAR)),
    "round of a decimal": (lambda x: x.round(decimals=1), (0.23, 0.78, -0.04, *NEAR, *FAR)),
    "frac": (torch.frac, (*HALVES, *NEAR, *FAR)),
    "fmod": (lambda x: x.fmod(1.5), (*HALVES, *NEAR, *FAR)),
    "fmod by the parameter": (lambda x: torch.fmod(torch.full_like(x, 7), x), (*HALVES, *FAR)),
    "remainder": (lambda x: x % 1.5, (*HALVES, *NEAR, *FAR)),
    "remainder by the parameter": (lambda x: torch.full_like(x, 7) % x, (*HALVES, *FAR)),
    "quotients": (lambda x: x.detach() // 1.5 + torch.div(x, -1.5, rounding_mode="trunc"), (*HALVES, *NEAR, *FAR)),
    "absolute": (torch.abs, (*NEAR, *FAR)),
    "power 1.5": (lambda x: x**1.5, (0.0, 1e-4, 1.5, 30.0)),
    "power 2.3": (lambda x: x**2.3, (0.0, 1e-4, 1.5, 30.0)),
    "power 20": (lambda x: x**20, (-1.5, -0.5, 0.0, 0.5, 1.5)),
    "power 0": (lambda x: x**0, (*FAR, float("inf"))),
    "binary cross entropy of 1": (of_labels("binary_cross_entropy", 1), (0.0, 1e-30, 1e-4, 0.5, 1.0)),
    "binary cross entropy of 0": (of_labels("binary_cross_entropy", 0), (0.0, 1e-9, 1e-4, 0.5, 1.0)),
    "logits of 1": (of_labels("binary_cross_entropy_with_logits", 1), (*NEAR, -30.0, -9.0, 1.5, 9.0)),
    "logits of 0": (of_labels("binary_cross_entropy_with_logits", 0), (*NEAR, -9.0, -1.5, 9.0, 30.0)),
    "soft margins": (of_labels("soft_margin_loss", 1), (*NEAR, *FAR)),
    "norm of one": (lambda x: x[:, None].norm(dim=1), (-0.0, 0.0, *FAR)),
    "sum of magnitudes": (lambda x: x[:, None].norm(p=1, dim=1), (-0.0, 0.0, *FAR)),
    "deviation": (lambda x: torch.stack([x, -x]).std(0), (-0.0, 0.0, *FAR)),
    "normalize": (lambda x: F.normalize(torch.stack([x, x * 0 + 1]), dim=0)[0], (-6.0, -1.5, -0.0, 0.0, 1.5, 6.0)),
    "normalize of zeros": (lambda x: F.normalize(torch.stack([x, x]), dim=0)[0], (-0.0, 0.0)),
    "cosine of zeros": (
        lambda x: F.cosine_similarity(torch.stack([x, x]), torch.stack([x, 2 * x]), dim=0), (-0.0, 0.0, 1e-9)
    ),
    "cosine": (lambda x: F.cosine_similarity(torch.stack([x, x * 0 + 1]), torch.stack([x * 0 + 1] * 2), dim=0), FAR),
}  # fmt: skip


class Module(torch.nn.Module):
    """A function of its parameter, and the sum of it."""

    def __init__(self, function: Any, x: Any, total: bool) -> None:
        super().__init__()
        self.function, self.x, self.total = function, torch.nn.Parameter(x.clone()), total

    def forward(self, zero: Any) -> Any:
        made = self.function(self.x) + zero
        return made.sum() if self.total else made


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_far_out_and_at_kinks_are_those_of_torch(name: str) -> None:
    function, points = FUNCTIONS[name]
    zero, x = torch.zeros(1), torch.tensor(points)
    wide = x.double().requires_grad_()
    exact = function(wide)
    (slopes,) = torch.autograd.grad(exact.sum(), wide)
    module = from_torch(Module(function, x, total=False), (zero,), inference=True)
    block = Precision.parse("fp32.32").apply(trace(module, module.params, (zero.numpy(),)))
    values = execute(block, module.params, (zero.numpy(),), key=0)
    model = from_torch(Module(function, x, total=True), (zero,))
    gradients = ours(model, (zero,)).gradients["x"]
    np.testing.assert_allclose(values, exact.detach().numpy(), rtol=1e-5, atol=1e-36, err_msg="values")
    np.testing.assert_allclose(gradients, slopes.numpy(), rtol=2e-5, atol=1e-36, err_msg="gradients")
