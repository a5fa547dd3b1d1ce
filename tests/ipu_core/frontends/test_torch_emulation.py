"""Scripts of torch under a precision: products are lowprec's, results lie on the formats' grids, roles are right."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import emulate
from ipu_core.errors import NotCovered
from tests.ipu_core.frontends.test_torch_models import made
from tests.ipu_core.frontends.torch_peer import loss_of

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


def on_grid(tensor: Any, fmt: str) -> bool:
    array = tensor.detach().numpy()
    return bool((lowprec.round(array, fmt) == array).all())


def losses(kind: str, precision: str | None, steps: int = 6, key: int = 0) -> tuple[list[float], Any]:
    """Of training as a script does it, and what printed it."""
    module, batches, loss = made(kind)
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)

    def train() -> list[float]:
        found = []
        for step in range(steps):
            optimizer.zero_grad()
            value = loss_of(module, batches[step % 3], loss)
            value.backward()
            optimizer.step()
            found.append(float(value.detach()))
        return found

    if precision is None:
        return train(), module
    with emulate(precision, key=key) as emulation:
        return train(), emulation


@pytest.mark.parametrize("kind", ["mlp", "cnn", "gpt", "encoder", "LSTM"])
def test_scripts_train_as_without_it(kind: str) -> None:
    plain, _ = losses(kind, None)
    np.testing.assert_allclose(losses(kind, "fp32.32")[0], plain, rtol=2e-5)
    narrow = losses(kind, "fp16.16/stochastic")[0]
    np.testing.assert_allclose(narrow, plain, rtol=5e-3)
    assert narrow != plain
    assert narrow == losses(kind, "fp16.16/stochastic")[0] != losses(kind, "fp16.16/stochastic", key=1)[0]


@pytest.mark.parametrize(
    "kind, products",
    [
        ("mlp", (2, 1, 2)),
        ("cnn", (3, 2, 3)),  # the images need no gradient
        ("gpt", (13, 17, 9)),  # two layers of four products with weights and two without; the head
        ("encoder", (13, 16, 9)),
    ],
)
def test_roles_are_known_from_autograd(kind: str, products: tuple[int, int, int]) -> None:
    emulation = losses(kind, "fp16.32", steps=1)[1]
    assert dict(emulation.products) == dict(zip(("forward", "grad_input", "grad_weight"), products, strict=True))
    assert f"products: {products[0]} forward" in str(emulation)
    assert "not known here, but to from_torch: layers, cycles, memory" in str(emulation)


def test_a_product_is_lowprec_s_and_a_gradient_s_operand_has_the_format_of_gradients() -> None:
    x, w = torch.randn(5, 40), torch.randn(40, 7, requires_grad=True)
    seed = torch.randn(5, 7)
    with emulate("fp16.16/nearest/gradients=float8_e5m2"):
        y = x @ w
        y.backward(seed)
    half = [lowprec.astype(tensor.detach().numpy(), "float16") for tensor in (x, w)]
    expected = lowprec.matmul(*half, accumulate="float16", group=16)
    np.testing.assert_array_equal(y.detach().numpy(), expected.astype(np.float32))
    narrow = lowprec.astype(seed.numpy(), "float8_e5m2", overflow="saturate")
    expected = lowprec.matmul(half[0].T, narrow, accumulate="float16", group=16)
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), expected.astype(np.float32))


def test_products_of_8_bits_are_added_32_at_a_time() -> None:
    x, w = torch.randn(5, 90), torch.randn(90, 7, requires_grad=True)
    with emulate("fp16.16/nearest/operands=float8_e4m3fn/gradients=float8_e5m2"):
        y = x @ w
        y.sum().backward()
    a, b = (lowprec.astype(tensor.detach().numpy(), "float8_e4m3fn", overflow="saturate") for tensor in (x, w))
    expected = lowprec.matmul(a, b, accumulate="float16", group=32)
    np.testing.assert_array_equal(y.detach().numpy(), expected.astype(np.float32))
    assert (expected != lowprec.matmul(a, b, accumulate="float16", group=16)).any()


def test_results_weights_and_moments_lie_on_their_grids() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    with emulate("fp16.16/stochastic/first_moment=bfloat16"):
        hidden = module[1](module[0](torch.randn(4, 6)))
        module[3](module[2](hidden)).square().mean().backward()
        optimizer.step()
    assert on_grid(hidden, "float16")
    for parameter in module.parameters():
        assert on_grid(parameter, "float16")
        assert on_grid(parameter.grad, "float16") or parameter is module[2].weight or parameter is module[2].bias
        assert on_grid(optimizer.state[parameter]["exp_avg"], "bfloat16")
    assert not all(on_grid(optimizer.state[parameter]["exp_avg_sq"], "bfloat16") for parameter in module.parameters())


LAYERS = {
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    "Conv2d": (lambda: nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 3, 8, 7)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5, 6)),
    "Bilinear sum": (lambda: nn.Sequential(nn.Linear(7, 4, bias=False), nn.Linear(4, 1)), (2, 3, 7)),
    "MultiheadAttention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_are_torch_s_in_float32(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(4)
    layer, x = make(), torch.randn(shape)
    expected = []
    for emulated in (False, True):
        twin, given = copy.deepcopy(layer), x.clone().requires_grad_()
        if emulated:
            with emulate("fp32.32") as emulation:
                out = twin(given)
                out.square().sum().backward()
            assert emulation.products["grad_weight"] >= 1
            assert emulation.products["grad_input"] >= 1
        else:
            out = twin(given)
            out.square().sum().backward()
        found = [out, given.grad, *(p.grad for p in twin.parameters())]
        for one, other in zip(found, expected or found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        expected = found


def test_a_forward_pass_that_is_done_again_is_no_gradient() -> None:
    layers, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4, requires_grad=True)
    for again, reentrant in ((1, False), (2, True)):
        with emulate("fp16.32") as emulation:
            torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=reentrant).sum().backward()
        assert dict(emulation.products) == {"forward": 2 + again, "grad_weight": 2, "grad_input": 2}


def test_evaluation_without_gradients_rounds_too() -> None:
    layer, x = nn.Linear(30, 4), torch.randn(3, 30)
    for context in (torch.no_grad, torch.inference_mode):
        with emulate("fp16.32") as emulation, context():
            found = layer(x)
        assert on_grid(found, "float16")
        assert dict(emulation.products) == {"forward": 1}
    assert not on_grid(layer(x), "float16")


def test_what_hides_products_is_refused_and_all_is_as_before_afterwards() -> None:
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    with pytest.raises(NotCovered, match="linalg_inv_ex holds products"), emulate("fp32.32"):
        torch.linalg.inv(torch.eye(3))
    with pytest.raises(NotCovered, match="convolution: convolutions of volumes"), emulate("fp32.32"):
        nn.Conv3d(1, 1, 2)(torch.ones(1, 1, 3, 3, 3))
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled) == before
    optimizer = torch.optim.SGD([nn.Parameter(torch.full((1,), 1 / 3))], 0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.zeros(1)
    optimizer.step()
    assert float(optimizer.param_groups[0]["params"][0]) == float(torch.full((1,), 1 / 3))
    with pytest.raises(ValueError, match="keeps moments scaled"):
        emulate("mlperf-bert")
    with pytest.raises(ValueError, match="no layers are known"):
        emulate("fp16.16/nearest/head:partials=float32")
    for spec, words in (
        ("fp8", "fp8 has operands of products that are cast and scaled, which is not done here: see from_torch"),
        ("unit-fp16", "a model under unit scaling"),
        ("fp16.32/promote=128", "sums that are promoted"),
        ("fp16.32/group=4", "an order of products"),
        ("fp16.16/nearest/store_root=true", "second moments kept as roots"),
        ("fp16.16/nearest/norms=operands", "norms of narrow numbers"),
        ("mlperf-bert-pod16", "gradients kept as a running mean"),
    ):
        with pytest.raises(ValueError, match=words):
            emulate(spec)


def test_other_types_are_left_alone() -> None:
    a = torch.randn(3, 3, dtype=torch.float64)
    with emulate("fp16.16/nearest") as emulation:
        product = a @ a
    assert torch.equal(product, a @ a)
    assert not emulation.products


def test_any_format_and_rounding_of_a_role() -> None:
    x, w = torch.randn(5, 40), torch.randn(40, 7, requires_grad=True)
    seed = torch.randn(5, 7)
    with emulate("fp32.32/operands=e5m3@toward_zero/gradients=fixed16_8/output=e6m5@odd/partials=e8m9"):
        y = x @ w
        y.backward(seed)
    narrow = [lowprec.round(tensor.detach().numpy(), "e5m3", "toward_zero") for tensor in (x, w)]
    wide = lowprec.matmul(*narrow, accumulate="e8m9", group=16, out_format="float32")
    np.testing.assert_array_equal(y.detach().numpy(), lowprec.round(wide, "e6m5", "odd"))
    wide = lowprec.matmul(narrow[0].T, lowprec.round(seed.numpy(), "fixed16_8"), accumulate="e8m9", group=16,
                          out_format="float32")  # fmt: skip
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), lowprec.round(wide, "e6m5", "odd"))


def test_weights_and_moments_in_formats_without_a_dtype() -> None:
    module = nn.Linear(6, 8)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    with emulate("fp32.32/weights=e8m5@stochastic(bits=5)/moments=e8m3"):
        module(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    for parameter in module.parameters():
        assert on_grid(parameter, "e8m5")
        assert not on_grid(parameter, "e8m4")
        assert on_grid(optimizer.state[parameter]["exp_avg"], "e8m3")
