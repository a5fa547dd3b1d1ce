"""Captured models train as torch does in float32, on both engines, and their weights go back."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Sgd, TrainLoop, compare, from_torch, from_torch_optimizer
from ipu_core.errors import NotCovered
from lowprec import float32
from tests.ipu_core.frontends.torch_peer import check_gradients, check_losses, check_narrow, loss_of

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        rows, places, width = x.shape
        q, k, v = self.qkv(x).view(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, places, width))


class Gpt(nn.Module):
    """Embeddings are tied to the head."""

    def __init__(self, words: int = 20, width: int = 16, layers: int = 2, places: int = 8) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(places, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.attention = nn.ModuleList(Attention(width, 2) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.word.weight
        nn.init.normal_(self.word.weight, std=0.1)

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return F.cross_entropy(self.head(self.norms[-1](x)).flatten(0, 1), labels.flatten())


class Tagger(nn.Module):
    def __init__(self, kind: str = "LSTM", **options: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(12, 6), getattr(nn, kind)(6, 5, batch_first=True, **options)
        self.tags = nn.Linear(10 if options.get("bidirectional") else 5, 4)

    def forward(self, ids: Any) -> Any:
        return self.tags(self.layer(self.words(ids))[0]).transpose(1, 2)


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.out(self.layers(x, src_key_padding_mask=mask).mean(1))


class Net(nn.Sequential):
    """Convolutions with batch norms, whose running statistics are a state."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6), nn.SiLU(), nn.Dropout(dropout),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
        )  # fmt: skip


def made(kind: str) -> tuple[Any, list[Any], Any]:
    """A model, batches and its loss."""
    torch.manual_seed(7)
    labels = [torch.randint(0, 3, (6,)) for _ in range(3)]
    if kind == "mlp":
        x = torch.randn(3, 6, 8)
        model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3))
        return model, list(zip(x, labels, strict=True)), nn.CrossEntropyLoss(label_smoothing=0.1)
    if kind == "cnn":
        return Net(), list(zip(torch.randn(3, 6, 1, 8, 8), labels, strict=True)), F.cross_entropy
    if kind == "gpt":
        ids = torch.randint(0, 20, (3, 2, 9))
        return Gpt(), [(x[:, :-1], x[:, 1:]) for x in ids], None
    if kind == "encoder":
        mask = torch.zeros(6, 5, dtype=torch.bool)
        mask[1, 3:] = True
        return Encoder(), [(x, mask, y) for x, y in zip(torch.randn(3, 6, 5, 8), labels, strict=True)], F.cross_entropy
    options = {"bidirectional": True, "num_layers": 2} if kind == "LSTM" else {}
    batches = [(x, y) for x, y in zip(torch.randint(0, 12, (3, 2, 5)), torch.randint(0, 4, (3, 2, 5)), strict=True)]
    return Tagger(kind, **options), batches, F.cross_entropy


@pytest.mark.parametrize("kind", ["mlp", "cnn", "gpt", "encoder", "LSTM", "GRU", "RNN"])
def test_losses_and_gradients_are_those_of_torch(kind: str) -> None:
    check_losses(*made(kind))


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
def test_halves_train(kind: str) -> None:
    check_narrow(*made(kind))


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_engines_give_the_same_bits(kind: str, precision: str) -> None:
    module, batches, loss = made(kind)
    model = from_torch(module, batches[0], loss)
    tiles, direct = (
        TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision=precision, engine=engine,
                  model_state=model.state)
        for engine in ("tiles", "direct")
    )  # fmt: skip
    assert [tiles.train(batch) for batch in batches] == [direct.train(batch) for batch in batches]
    for one, other in zip(tiles.arrays().values(), direct.arrays().values(), strict=True):
        assert one.tobytes() == other.tobytes()
    assert tiles.profile is not None
    assert tiles.profile.cycles > 0


def test_rules_go_by_the_names_of_torch_s_layers() -> None:
    module, batches, loss = made("encoder")
    model = from_torch(module, batches[0], loss)
    names = {name.rpartition(".layers.")[0] for name in model.params if ".layers." in name}
    (stack,) = names
    loop = TrainLoop(
        model, model.params, batches[0], optimizer=Sgd(0.1), engine="direct",
        precision=f"fp16.16/nearest/{stack}.layers.*.self_attn:partials=float32/{stack}.layers.0.linear1.*:weights=float32",
    )  # fmt: skip
    products = [e for e in loop.block.equations if e.op == "dot"]
    wide = {e.layer for e in products if e.arithmetic.accumulate == float32}
    assert wide == {e.layer for e in products if e.layer and e.layer.endswith("self_attn")} != set()
    assert {e.parameter for e in products if e.layer in wide} > {None}  # scores have no parameter
    kept = {name for name, array in loop.params.items() if array.dtype == np.float32}
    assert kept == {f"{stack}.layers.0.linear1.weight", f"{stack}.layers.0.linear1.bias"}
    assert any(f"{Path(__file__).name}:" in (e.source or "") for e in products)


def test_trained_weights_go_back_with_running_statistics() -> None:
    module, batches, loss = made("cnn")
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                     model_state=model.state)  # fmt: skip
    for batch in batches:
        optimizer.zero_grad()
        loss_of(twin, batch, loss).backward()
        optimizer.step()
        loop.train(batch)
    assert model.to_torch(loop.params, loop.model_state, steps=loop.step) is module
    expected = twin.state_dict()
    assert int(expected["1.num_batches_tracked"]) == 3
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)
    assert module.training
    arrays = model.state_dict(loop.params, loop.model_state)
    assert arrays.keys() == expected.keys()
    params, state = model.from_state_dict(arrays)
    again = TrainLoop(model, params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                      model_state=state)  # fmt: skip
    assert again.train(batches[0]) == loop.train(batches[0])


def test_tied_weights_are_one_parameter_under_both_names() -> None:
    module, batches, _ = made("gpt")
    model = from_torch(module, batches[0])
    assert "word.weight" in model.params
    assert "head.weight" not in model.params
    arrays = model.state_dict({name: array + 1 for name, array in model.params.items()})
    assert arrays["head.weight"] is not None
    np.testing.assert_array_equal(arrays["head.weight"], arrays["word.weight"])
    np.testing.assert_array_equal(arrays["head.weight"], model.params["word.weight"] + 1)


def test_frozen_parameters_are_constants() -> None:
    module, batches, loss = made("mlp")
    module[0].weight.requires_grad_(False)
    model = from_torch(module, batches[0], loss)
    assert set(model.params) == {"0.bias", "2.weight", "2.bias"}
    check_gradients(module, model, batches[0], loss)


def test_a_module_in_eval_mode_and_its_flags() -> None:
    module, batches, loss = made("cnn")
    module[1].eval()
    trained, fixed = (from_torch(module, batches[0], loss, training=mode) for mode in (True, False))
    assert set(trained.state or ()) == {"5.running_mean", "5.running_var"}
    assert fixed.state is None
    assert module.training
    assert not module[1].training
    check_gradients(module, trained, batches[0], loss)
    module.eval()
    check_gradients(module, fixed, batches[0], loss)


def test_dropout_is_drawn_from_the_key_of_the_step() -> None:
    module, batches, loss = Encoder(0.5), *made("encoder")[1:]
    model = from_torch(module, batches[0], loss)

    def losses(key: int) -> list[float]:
        loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.0), precision="fp32.32", engine="direct",
                         key=key)  # fmt: skip
        return [loop.train(batches[0]) for _ in range(2)]

    assert losses(1) == losses(1)
    assert len({*losses(1), *losses(2)}) == 4


def test_several_precisions_side_by_side() -> None:
    module, batches, loss = made("mlp")
    model = from_torch(module, batches[0], loss)
    study = compare(model, model.params, [tuple(x.numpy() for x in batch) for batch in batches],
                    ["fp32.32", "fp16.16/stochastic"], optimizer=Adam(1e-2), steps=3, seeds=1)  # fmt: skip
    assert "fp16.16/stochastic" in str(study.table())


class Odd(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3), function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x)).sum()


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda x: torch.linalg.svd(x)[1], r"aten\.linalg_svd is not covered .*no counterpart"),
        (lambda x: x.mode(1)[0], r"aten\.mode"),
        (lambda x: nn.functional.adaptive_max_pool1d(x, 3, True)[1] + x, r"aten\.add .*places of a maximum"),
        (lambda x: torch.fft.rfft(x).abs(), r"aten\.fft_rfft"),
        (lambda x: x * (9 * x).to(torch.uint8), r"aten\.to .*int32 or int64 and no narrower integers"),
        (
            lambda x: x.index_add(0, x[0].long().abs(), x),
            r"aten\.index_add .*numbers that are computed say where it adds",
        ),
        (lambda x: x.scatter(0, torch.tensor([[0, 0], [1, 0]]), x), r"aten\.scatter .*says one place twice"),
        (lambda x: x.scatter(0, torch.tensor([[1]]), x, reduce="add"), r"aten\.scatter .*scatter_add adds"),
    ],
)
def test_what_is_not_covered_is_refused_with_layer_and_line(function: Any, words: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Odd(function)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    with pytest.raises(NotCovered, match=rf"{words}.*layer inner \(Odd\), .*test_torch_models\.py:\d+: ") as refusal:
        from_torch(Outer(), (torch.randn(3, 3),))
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_captured_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"Odd cannot be captured: it decides .*test_torch_models\.py:\d+") as refusal:
        from_torch(Odd(lambda x: x if x.sum() > 0 else -x), (torch.randn(3, 3),))
    assert "\n" not in str(refusal.value)


def test_arguments_are_checked() -> None:
    module, batches, loss = made("mlp")
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not 3"):
        from_torch(3, batches[0])
    with pytest.raises(ValueError, match="example input 0 must be a tensor or an array, not 'x'"):
        from_torch(module, ("x", batches[0][1]), loss)
    with pytest.raises(ValueError, match=r"one number without axes, not \(6, 3\)"):
        from_torch(module, (batches[0][0],))
    model = from_torch(module, batches[0], loss)
    with pytest.raises(ValueError, match=r"captured for arrays of \(\(6, 8\), \(6,\)\), not \(\(2, 8\), \(2,\)\)"):
        TrainLoop(model, model.params, tuple(x[:2] for x in batches[0]), optimizer=Sgd(0.1), precision="fp32.32")


def test_statistics_are_not_forgotten_in_silence() -> None:
    module, batches, loss = made("cnn")
    model = from_torch(module, batches[0], loss)
    with pytest.raises(ValueError, match=r"Net has statistics that training updates: give model_state=model\.state"):
        TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32")


def test_a_model_is_printed_in_one_line() -> None:
    module, batches, loss = made("cnn")
    model = from_torch(module, batches[0], loss)
    assert repr(model) == "<TorchModel of Net, trained: 9 parameters (297 numbers), 4 buffers>"


def test_labels_that_are_no_class_are_seen() -> None:
    module, batches, loss = made("mlp")
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    x, y = (tensor.numpy().copy() for tensor in batches[0])
    y[0] = -100
    assert np.isfinite(loop.train((x, y)))
    y[0] = 3
    assert np.isnan(loop.train((x, y)))


def test_torch_is_imported_by_from_torch_alone() -> None:
    code = "import sys, ipu_core; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels_of_any_length_are_aligned_as_torch_aligns_them() -> None:
    """Rows too short for their labels, padding that is no label, equal neighbours; in half on the tiles, too."""
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = torch.nn.GRU(3, 8, batch_first=True), torch.nn.Linear(8, 6)
            self.loss = torch.nn.CTCLoss(zero_infinity=True)

        def forward(self, x: Any, labels: Any, places: Any, lengths: Any) -> Any:
            return self.loss(self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1), labels, places, lengths)

    labels = torch.tensor([[1, 1, 2, 5, 5], [3, 4, 5, -1, 77], [1, 2, 3, 4, 5], [2, 0, 0, 0, 0]])
    batch = torch.randn(4, 12, 3), labels, torch.tensor([12, 10, 3, 12]), torch.tensor([5, 3, 5, 1])
    module, own = Net(), torch.ctc_loss
    model = from_torch(module, batch)
    assert torch.ctc_loss is own  # captured by a stand-in, which is gone
    assert model.check(batch).first is None
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    settings = from_torch_optimizer(model, optimizer)
    loops = [
        TrainLoop(model, model.params, batch, optimizer=settings, precision=precision, engine=engine)
        for precision, engine in (("fp32.32", "direct"), ("fp16.16/nearest", "direct"), ("fp16.16/nearest", "tiles"))
    ]
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        exact, half, tiles = (loop.train(batch) for loop in loops)
        assert exact == pytest.approx(loss.item(), rel=1e-6)
        assert half == tiles == pytest.approx(exact, rel=1e-2)
