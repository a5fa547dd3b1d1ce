"""One call of the module itself stands beside what is captured of it, and nothing of the call stays."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import numpy as np
import pytest

from ipu_core import from_torch
from ipu_core.errors import NotCovered
from ipu_core.frontends.torch.operations import OPERATIONS
from tests.ipu_core.frontends.test_torch_fidelity import Net, deaf, slightly
from tests.ipu_core.frontends.test_torch_models import Encoder, made
from tests.ipu_core.frontends.torch_nets import NETS

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Noted(nn.Module):
    """A net with all that a call may leave something in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop, self.size = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), 0
        self.register_buffer("mean", torch.full((4,), 2.0))

    def forward(self, x: Any) -> Any:
        self.size, self.seen = len(x), x
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0))
        return self.drop(self.norm(self.linear(x)) * self.mean).square().mean()


def test_nothing_of_the_call_stays() -> None:
    module, x = Noted(), torch.randn(6, 4)
    module.norm.eval()
    module.linear.weight.grad = kept = torch.ones(4, 4)
    before, flags = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    from_torch(module, (x,))
    assert module.linear.weight.grad is kept
    assert kept.eq(1).all()
    assert module.linear.bias.grad is None
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [part.training for part in module.modules()] == flags
    assert (module.size, hasattr(module, "seen")) == (0, False)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])


class Backwards(nn.Module):
    """A hook where nothing looks for one: on the node that autograd made."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.last, self.factor = nn.Linear(4, 4), nn.Linear(4, 2), factor

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: tuple(self.factor * g for g in gradients))
        return self.last(y).square().mean()


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1.001])
def test_another_gradient_is_refused_and_named(factor: float) -> None:
    module, x = Backwards(factor), torch.randn(5, 4)
    words = r"the gradient of the module itself is another .*gradient of first\.bias: .*emulate.*eager_check=False"
    with pytest.raises(NotCovered, match=words):
        from_torch(module, (x,))
    report = from_torch(module, (x,), eager_check=False).check((x,))
    assert all(each.explained for each in (*report.results, *report.gradients))
    assert {each.name for each in report.module if not each.explained} == {"first.weight", "first.bias"}
    assert report.first is not None
    assert report.first.name == "first.bias"


def test_the_same_gradient_is_none_s_business() -> None:
    from_torch(Backwards(1.0), (torch.randn(5, 4),))


def test_an_operation_that_is_wrong_here_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 6)
    monkeypatch.setitem(OPERATIONS, "gelu", slightly(OPERATIONS["gelu"]))  # type: ignore[arg-type]  # a dict
    from_torch(Net(), (x,))  # so little is for `check`
    monkeypatch.setitem(OPERATIONS, "gelu", slightly(slightly(slightly(slightly(OPERATIONS["gelu"])))))  # type: ignore[arg-type]
    with pytest.raises(
        NotCovered, match=r"not what torch computes: aten\.gelu of body\.1 \(GELU\), .*fidelity\.py:\d+: "
    ):
        from_torch(Net(), (x,))


def test_a_gradient_that_is_wrong_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "silu", deaf(OPERATIONS["silu"]))  # type: ignore[arg-type]  # a dict
    with pytest.raises(NotCovered, match=r"not what torch computes: gradient of first\.bias"):
        from_torch(Net(), (torch.randn(5, 6),))


class Depth(nn.Module):
    """Rows that are left out by chance, as in stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        kept = x.new_empty((len(x), 1)).bernoulli_(0.8).div_(0.8)
        return (x + self.linear(x) * kept).square().mean()


def test_what_is_drawn_is_left_out_of_both() -> None:
    batch = made("encoder")[1][0]
    for module, given, loss in ((Encoder(0.5), batch, F.cross_entropy), (Depth(), (torch.randn(6, 4),), None)):
        report = from_torch(module, given, loss).check(given)
        assert report.first is None, report
        assert report.module
        assert str(report).endswith("; not seen: what is drawn (masks keep all)")
    assert "not seen" not in str(from_torch(Net(), (torch.randn(5, 6),)).check((torch.randn(5, 6),)))


class Half(nn.Module):
    """Computes in bfloat16 what is in float32 here."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x).bfloat16().softmax(1).float().square().mean()


def test_halves_of_the_module_s_own_are_explained() -> None:
    from_torch(Half(), (torch.randn(16, 8),))


class Counting(nn.Module):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear, self.calls, self.after = nn.Linear(4, 4), 0, after

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x).square().mean() * (2 if self.calls > self.after else 1)


def test_counters_are_told() -> None:
    with pytest.warns(UserWarning, match=r"a call of Counting changes calls: what was captured"):
        from_torch(Counting(100), (torch.randn(3, 4),))
    with pytest.raises(NotCovered, match="its loss depends on calls, which every call changes"):
        from_torch(Counting(1), (torch.randn(3, 4),))


class Tied(nn.Module):
    """Writes to a parameter where no operation is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if type(x) is torch.Tensor and type(self.linear.bias) is nn.Parameter:
            self.linear.bias.data.add_(1.0)
        return self.linear(x).square().mean()


def test_a_parameter_that_only_the_module_itself_writes_to_is_refused() -> None:
    module = Tied()
    before = module.linear.bias.detach().clone()
    with pytest.raises(NotCovered, match=r"writes to its parameter linear\.bias, beside the optimizer"):
        from_torch(module, (torch.randn(3, 4),))
    assert torch.equal(module.linear.bias, before)


def test_a_module_that_cannot_be_called_is_refused_in_words() -> None:
    module, labels = nn.Linear(4, 3), torch.tensor([0, 7])
    with pytest.raises(
        ValueError, match=r"Linear itself cannot be called with the example inputs: .*eager_check=False"
    ):
        from_torch(module, (torch.randn(2, 4), labels), F.cross_entropy)
    from_torch(module, (torch.randn(2, 4), labels), F.cross_entropy, eager_check=False)


def test_outputs_of_an_inference_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5)), torch.randn(2, 4)
    from_torch(module, (x,), inference=True)
    monkeypatch.setitem(OPERATIONS, "tanh", lambda call, x: x)  # type: ignore[arg-type]  # a dict
    with pytest.raises(NotCovered, match=r"not what torch computes: aten\.tanh of 1 \(Tanh\)"):
        from_torch(module, (x,), inference=True)


def test_statistics_in_eval_mode_are_not_forgotten_in_silence() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    module[1].train()
    with pytest.raises(NotCovered, match=re.escape("nothing carries to the next batch in eval mode")):
        from_torch(module, (torch.randn(5, 4),), inference=True)


@pytest.mark.parametrize("name", NETS)
def test_check_is_quiet_about_nets_for_images(name: str) -> None:
    torch.manual_seed(0)
    module, batch = NETS[name](), (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))
    model = from_torch(module, batch, F.cross_entropy, eager_check=False)
    report = model.check(batch)
    assert report.first is None, report
    assert len(report.module) == 1 + len(model.params) + len(model.state or ())


def test_check_survives_buffers_that_a_step_writes_to() -> None:
    module, x = Noted(), torch.randn(6, 4)
    model = from_torch(module, (x,))
    report = model.check((x,), state={**(model.state or {}), "mean": np.float32([1, 2, 3, 4])})
    assert report.first is None, report
    assert {each.name for each in report.module} >= {"mean", "norm.running_mean", "linear.weight", ""}
    assert torch.equal(module.mean, torch.full((4,), 2.0))
