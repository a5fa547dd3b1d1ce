"""What stops people who come with a module of torch: batches of any kind are taken, and refusals name the cure."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any

import pytest

import ipu_core
from ipu_core import Sgd, TrainLoop, from_torch
from ipu_core.errors import NotCovered

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
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


class Deciding(nn.Linear):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out.mean() if out.sum() > 0 else -out.mean()


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
        (nn.Linear(3, 2), ([1.0, 2.0], Y), F.cross_entropy, r"example input 0\.0 must be a tensor or an array, not 1"),
        (Deciding(3, 2), (X,), None, rf"decides by numbers in tensors.*torch\.where.*test_torch_stops\.py.*{EMULATE}"),
        (Counting(3, 2), (X,), None, rf"decides by numbers in tensors.*test_torch_stops\.py.*{EMULATE}"),
        (Likely(3, 2), (X,), None, rf"torch\.distributions looks at .*validate_args=False.*{EMULATE}"),
    ],
)  # fmt: skip
def test_each_is_answered_by_one_sentence_with_the_cure(module: Any, batch: Any, loss: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as refusal:
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
    with pytest.raises(ValueError, match=rf"knows SGD, Adam, AdamW, LAMB, not RMSprop{EMULATE}"):
        ipu_core.from_torch_optimizer(model, torch.optim.RMSprop(model.module.parameters()))
    with pytest.raises(TypeError, match="not to a state_dict of 2 tensors"):
        model.to_torch(model.params, module=model.module.state_dict())
