"""What stops people who come with a module of torch: batches of any kind are taken, and refusals name the cure."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections import UserDict
from typing import Any

import pytest

import ipu_core
from ipu_core import Sgd, TrainLoop, from_torch, poptorch
from ipu_core.errors import NotCovered

torch = pytest.importorskip("torch")
nn, F, data = torch.nn, torch.nn.functional, torch.utils.data
pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(0)
X, Y = torch.randn(4, 3), torch.randint(0, 2, (4,))
EMULATE = r"; ipu_core\.emulate trains the module as torch does"


class Classifier(nn.Linear):
    """As those of transformers: named inputs, a setting, and a loss where there are labels."""

    def forward(self, x: Any, labels: Any = None, return_loss: bool = False) -> Any:
        out = super().forward(x)
        return F.cross_entropy(out, labels) if return_loss else out.sum()


@dataclasses.dataclass
class Batch:
    x: Any
    labels: Any
    return_loss: bool = True


@pytest.mark.parametrize("kind", [dict, UserDict, lambda **parts: Batch(**parts)])
def test_any_mapping_or_dataclass_is_a_batch_and_settings_are_bound(kind: Any) -> None:
    module = Classifier(3, 2)
    expected = float(module(X, Y, True))
    batch = kind(x=X, labels=Y, return_loss=True)
    model = from_torch(module, batch)
    given = model.batch(batch)
    assert given.keys() == {"x", "labels"}
    loop = TrainLoop(model, model.params, given, optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    assert loop.train(given) == pytest.approx(expected, rel=1e-5)
    assert model.check(batch).first is None
    with pytest.raises(ValueError, match=r"return_loss=False in a batch: True was bound"):
        model.batch(kind(x=X, labels=Y, return_loss=False))
    if kind is dict:
        with pytest.raises(ValueError, match=r"return_loss=True was bound then: model\.batch\(batch\)"):
            TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
        with pytest.raises(ValueError, match=r"twice=2 in a batch: nothing was bound"):
            model.batch({**batch, "twice": 2})


def test_batches_of_a_loader_with_a_collator_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    tokens = [{"x": X[i], "labels": int(Y[i])} for i in range(4)]
    collated = transformers.default_data_collator(tokens)
    batch = transformers.BatchEncoding({**collated, "return_loss": True})
    model = from_torch(Classifier(3, 2), batch)
    assert model.batch(batch).keys() == {"x", "labels"}
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=X)
    assert list(from_torch(Hidden(), output).batch(output)) == ["last_hidden_state"]


class Hidden(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, last_hidden_state: Any) -> Any:
        return super().forward(last_hidden_state).sum()


@dataclasses.dataclass(frozen=True)
class Pair:
    x: Any
    labels: Any
    scale: float = 1.0
    note: Any = None


class Taking(nn.Linear):
    """Takes its batch as one object and gives one of the same class, or another."""

    def forward(self, batch: Any, twice: Any = None) -> Any:
        out = super().forward(batch["x"] if isinstance(batch, dict) else batch.x) * (2.0 if twice else 1.0)
        if isinstance(batch, dict):
            return {"loss": F.cross_entropy(out, batch["labels"]), "out": out}
        if isinstance(batch, Pair):
            return Pair(out, F.cross_entropy(out, batch.labels), batch.scale, note=[out.sum(1), "kept"])
        return type(batch)(out, F.cross_entropy(out, batch.labels))


Named = collections.namedtuple("Named", "x labels")  # as users write them


@pytest.mark.parametrize("kind", [dict, Pair, Named])
def test_a_part_of_a_batch_keeps_its_class(kind: Any) -> None:
    module = Taking(3, 2)
    batch = (kind(x=X, labels=Y),)
    made = module(*batch)
    expected = made["loss"] if kind is dict else made.labels

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, given: Any) -> Any:
            out = self.module(given)
            return out["loss"] if kind is dict else out.labels

    model = from_torch(Loss(), batch)
    loop = TrainLoop(model, model.params, model.batch(batch), optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    assert loop.train(model.batch(batch)) == pytest.approx(float(expected), rel=1e-5)


def test_what_a_module_gives_comes_back_in_its_class() -> None:
    module = Taking(3, 2)
    for batch in (Pair(X, Y, 3.0), Named(X, Y)):
        expected = module(batch)
        twin = copy.deepcopy(module)
        options = poptorch.Options(engine="direct")
        training = poptorch.trainingModel(twin, options, torch.optim.SGD(twin.parameters(), 0.1))
        for model in (poptorch.inferenceModel(module, options), training):
            out = model(batch)
            assert type(out) is type(batch)
            torch.testing.assert_close(out.x, expected.x.detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(out.labels, expected.labels.detach(), rtol=1e-5, atol=1e-6)
            if isinstance(batch, Pair):
                assert (out.scale, out.note[1]) == (3.0, "kept")
                torch.testing.assert_close(out.note[0], expected.note[0].detach(), rtol=1e-5, atol=1e-6)
    found = from_torch(module, (Pair(X, Y, 3.0),), inference=True)
    given = ipu_core.Predictor(found, found.params, found.batch((Pair(X, Y, 3.0),)), precision="fp32.32")
    assert given(found.batch((Pair(X, Y, 3.0),))).keys() == {"x", "labels", "note"}


def test_outputs_of_transformers_are_theirs() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = transformers.BertForSequenceClassification(config).eval()
    rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": 1} for number in range(8)]
    options = poptorch.Options(engine="direct").deviceIterations(2)
    loader = poptorch.DataLoader(options, rows, 4, collate_fn=transformers.default_data_collator)
    (batch,) = loader
    scores = poptorch.inferenceModel(module, options)(batch["input_ids"], batch["attention_mask"]).logits
    torch.testing.assert_close(scores, module(batch["input_ids"], batch["attention_mask"]).logits.detach(), atol=1e-5,
                               rtol=1e-4)  # fmt: skip
    optimizer = poptorch.optim.AdamW(module.parameters(), 0.01)
    training = poptorch.trainingModel(module, options, optimizer)
    losses = [training(**transformers.BatchEncoding(batch)).loss for _ in range(6)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match=r"a mapping in a tuple is one of its arguments: .*model\(\*\*batch\)"):
        poptorch.trainingModel(module, options, optimizer)(batch)


def test_the_target_is_the_last_part_as_it_was_given() -> None:
    class Named3(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x)

    module = Named3(3, 2)
    model = from_torch(module, {"x": X, "a target": Y}, F.cross_entropy)
    assert model.check({"x": X, "a target": Y}).first is None


def test_arguments_that_only_a_mapping_takes() -> None:
    class Open(nn.Linear):
        def forward(self, x: Any, **more: Any) -> Any:
            return super().forward(x + more["y"] if more.get("added") else x)

    module = Open(3, 2)
    model = poptorch.inferenceModel(module, poptorch.Options(engine="direct"))
    torch.testing.assert_close(model(X, y=X, added=True), module(2 * X).detach(), rtol=1e-5, atol=1e-6)


class Deciding(nn.Linear):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out.mean() if out.sum() > 0 else -out.mean()


class Numpy(nn.Linear):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out.sum() * float(out.detach().numpy().max())


class Choosing(nn.Linear):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out[x[:, 0] > 0].sum()


class Counting(nn.Linear):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out[: int(out.abs().sum().item())].sum()


class Likely(nn.Linear):
    checked: bool | None = None

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        normal = torch.distributions.Normal(out, torch.ones_like(out).exp(), validate_args=self.checked)
        return -normal.log_prob(x[:, :2]).mean()


@pytest.mark.parametrize(
    "module, batch, loss, words",
    [
        (nn.Linear(3, 2), (X, Y), None, r"fewer arguments than the batch has.* loss=torch\.nn\.functional\.cross_en"),
        (nn.Linear(3, 2), (X,), None, r"one number without axes, not \(4, 2\): give a loss, loss=torch\.nn\.fun"),
        (nn.Linear(3, 2), (X, Y), lambda y, t: y, r"one number without axes, not \(4, 2\) \(reduction='mean'\)"),
        (nn.Linear(3, 2), (X, Y), "cross_entropy", r"one number: torch\.nn\.functional\.cross_entropy, not 'cross"),
        (nn.Linear(3, 2), (X, Y), 3, "one number: a function of torch, not 3"),
        (nn.Linear(3, 2).state_dict(), (X, Y), F.cross_entropy, r"state_dict of 2 tensors: .*load_state_dict"),
        (nn.Linear(3, 2), {"input": X, "labels": Y}, None, r"no argument of a name that the batch has: leave that out"),
        (nn.Bilinear(3, 3, 2), (X, Y), F.cross_entropy, "its forward takes more arguments than the batch has"),
        (nn.Linear(3, 2), (X, Y), nn.CrossEntropyLoss, r"one number: CrossEntropyLoss\(\), not the class"),
        (nn.Linear, (X, Y), F.cross_entropy, r"not the class Linear: Linear\(\.\.\.\) makes one"),
        (lambda x: x, (X, Y), F.cross_entropy, "a class derived from it calls the function in its forward"),
        (nn.Linear(3, 2).half(), (X, Y), F.cross_entropy, r"of torch\.float16: module\.float\(\) is captured"),
        (nn.Linear(3, 2), data.DataLoader([(X, Y)]), None, r"DataLoader .*: next\(iter\(loader\)\) is a batch"),
        (Numpy(3, 2), (X,), None, rf"NumPy takes numbers, which are not known then.*{EMULATE}"),
        (Choosing(3, 2), (X,), None, rf"depends on the data: torch\.where keeps it.*{EMULATE}"),
        (nn.Linear(3, 2), ([1.0, 2.0], Y), F.cross_entropy, r"example input 0\.0 must be a tensor or an array, not 1"),
        (Deciding(3, 2), (X,), None, rf"decides by numbers in tensors.*torch\.where.*test_torch_stops\.py.*{EMULATE}"),
        (Counting(3, 2), (X,), None, rf"decides by numbers in tensors.*test_torch_stops\.py.*{EMULATE}"),
        (Likely(3, 2), (X,), None, rf"torch\.distributions looks at .*validate_args=False.*{EMULATE}"),
    ],
)  # fmt: skip
def test_each_is_answered_by_one_sentence_with_the_cure(module: Any, batch: Any, loss: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError, NotCovered), match=words) as refusal:
        from_torch(module, batch, loss)
    assert "\n" not in str(refusal.value)
    assert "u0" not in str(refusal.value)


def test_distributions_that_look_at_nothing_are_captured() -> None:
    module = Likely(3, 2)
    module.checked = False
    model = from_torch(module, (X,))
    assert model.check((X,)).first is None


def test_refusals_that_emulate_would_serve_name_it() -> None:
    with pytest.raises(NotCovered, match=rf"linalg_svd is not covered.*{EMULATE}$"):
        from_torch(nn.Linear(3, 2), (X, Y), lambda out, _: torch.linalg.svd(out)[1].sum())
    model = from_torch(Classifier(3, 2), {"x": X})
    with pytest.raises(ValueError, match=rf"knows SGD, ASGD, Adam, .*, not LBFGS; it computes.*{EMULATE}"):
        ipu_core.from_torch_optimizer(model, torch.optim.LBFGS(model.module.parameters()))
    with pytest.raises(TypeError, match="not to a state_dict of 2 tensors"):
        model.to_torch(model.params, module=model.module.state_dict())
