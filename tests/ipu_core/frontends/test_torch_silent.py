"""Modules that do more than their operations say: each trains as in torch, or is refused with its layer and line."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, from_torch
from ipu_core.errors import NotCovered
from tests.ipu_core.frontends.torch_peer import OLDER

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
pytestmark = pytest.mark.filterwarnings("ignore")
Forward = Callable[["Part", Any], Any]


class Part(nn.Module):
    """A layer whose forward is a function of itself and its input."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.own, self.calls, self.generator = forward, 0, np.random.default_rng(1)
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.teacher, self.memory = nn.Linear(4, 4).requires_grad_(False), torch.zeros(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any) -> Any:
        return self.own(self, x)


class Whole(nn.Module):
    """A layer before the part and one after it, and the mean square of what they give."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), Part(forward), nn.Linear(4, 2)

    def forward(self, x: Any, y: Any) -> Any:
        return (self.last(self.part(self.first(x))) - y).square().mean()


def made(forward: Forward) -> tuple[Any, list[Any]]:
    torch.manual_seed(5)
    return Whole(forward), [(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(2)]


def trained_by_torch(module: Any, batches: list[Any], steps: int) -> tuple[list[float], Any]:
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], 0.05)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = twin(*batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, twin.state_dict()


def check_equal(module: Any, batches: list[Any], steps: int = 4) -> None:
    """Losses, weights, running statistics and counters after some steps are torch's."""
    expected, state = trained_by_torch(module, batches, steps)
    model = from_torch(module, batches[0])
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.05), precision="fp32.32", engine="direct",
                     model_state=model.state)  # fmt: skip
    losses = [loop.train(batches[step % len(batches)]) for step in range(steps)]
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for name, array in model.state_dict(loop.params, loop.model_state, steps=steps).items():
        np.testing.assert_allclose(array, state[name].numpy(), rtol=1e-4, atol=2e-6, err_msg=name)


def averaged(part: Part, x: Any) -> Any:
    """With a running mean of its inputs, which no gradient passes."""
    with torch.no_grad():
        part.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return part.linear(x - part.mean)


def averaged_in_the_open(part: Part, x: Any) -> Any:
    y = part.linear(x)
    part.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y * part.mean


def counted(part: Part, x: Any) -> Any:
    part.count += 2
    part.count.add_(1)
    return part.linear(x)


def attended(mask: str) -> Forward:
    """Rows as queries and keys, of which the first three see no key."""

    def forward(part: Part, x: Any) -> Any:
        seen = torch.ones(6, 6).tril().bool() & (torch.arange(6) > 2)
        given = seen if mask == "truth" else torch.where(seen, 0.0, float("-inf"))
        q = part.linear(x)
        return F.scaled_dot_product_attention(q, x, q, attn_mask=given)

    return forward


def by_batch(part: Part, x: Any) -> Any:
    """A mask that depends on the batch, in which a row of zeros sees nothing."""
    seen = (x.detach()[:, :1] > 0) & torch.ones(6, 6).bool()
    q = part.linear(x)
    return F.scaled_dot_product_attention(q, q, x, attn_mask=seen) + x


def zeros_normalized(part: Part, x: Any) -> Any:
    y = part.linear(x) * torch.tensor([1.0, 1, 1, 0, 0, 0])[:, None]
    return F.normalize(y, dim=1) + y.norm(dim=1, keepdim=True) + y.std(1, keepdim=True)


def similar(part: Part, x: Any) -> Any:
    y = F.relu(part.linear(x) * torch.tensor([1.0, 1, 1, 0, 0, 0])[:, None])
    return x + F.cosine_similarity(y, x, dim=1)[:, None]


def at_zero(function: Callable[[Any], Any]) -> Forward:
    """A function of zeros that have a gradient, beside its input."""

    def forward(part: Part, x: Any) -> Any:
        y = part.linear(x)
        return x + y + function(y - y.detach())

    return forward


EQUAL: dict[str, Forward] = {
    "a plain layer": lambda part, x: part.linear(x),
    "batch norm": lambda part, x: part.norm(part.linear(x)),
    "a checkpoint": lambda part, x: checkpoint(part.linear, x, use_reentrant=False),
    "a reentrant checkpoint": lambda part, x: checkpoint(part.linear, x, use_reentrant=True),
    "checkpoints within each other": lambda part, x: checkpoint(
        lambda h: checkpoint(part.linear, h.tanh(), use_reentrant=True), x, use_reentrant=True
    ),
    "a running mean": averaged,
    "a running mean with gradients on": averaged_in_the_open,
    "a counter": counted,
    "a frozen layer": lambda part, x: part.linear(x) + part.teacher(x),
    "a constant target": lambda part, x: part.linear(x) - part.linear(x).detach() / 2,
    "no gradients": lambda part, x: part.linear(x) * torch.no_grad()(part.linear)(x),
    "attention rows without a key": attended("truth"),
    "attention rows of minus infinity": attended("numbers"),
    "attention rows by the batch": by_batch,
    "norms of zeros": zeros_normalized,
    "similarity of zeros": similar,
    "elu at 0": at_zero(F.elu), "selu at 0": at_zero(F.selu), "softplus at 0": at_zero(F.softplus),
    "clamp at a bound": at_zero(lambda x: x.clamp(min=0)),
    "softshrink at a bound": at_zero(lambda x: F.softshrink(x, 0)),
    "tails": lambda part, x: torch.log1p((part.linear(x) - 12).exp()) + F.softplus(x - 15) + F.mish(x - 20) * 1e6,
    "a cache that nothing reads": lambda part, x: setattr(part, "memory", part.linear(x)) or part.memory,
}  # fmt: skip


@pytest.mark.parametrize("kind", EQUAL)
def test_what_is_captured_trains_as_in_torch(kind: str) -> None:
    check_equal(*made(EQUAL[kind]))


def test_layers_in_eval_mode_stay_in_it() -> None:
    module, batches = made(lambda part, x: part.drop(part.norm(part.linear(x))))
    module.part.norm.running_mean += 0.3
    module.part.norm.eval()
    module.part.drop.eval()
    check_equal(module, batches)
    assert module.training
    assert not module.part.norm.training


def test_a_layer_that_keeps_its_own_mode_keeps_it() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    module, batches = made(lambda part, x: part.norm(part.linear(x)))
    module.part.norm = Frozen(4)
    module.eval()
    model = from_torch(module, batches[0])
    assert model.state is None
    check_equal(module.train(), batches)


def test_forward_hooks_are_captured() -> None:
    module, batches = made(lambda part, x: part.linear(x))
    module.part.linear.register_forward_hook(lambda layer, given, y: y * 3)
    check_equal(module, batches)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return -gradient


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.sign()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient


class Clipped(Straight):
    """Gradients that are not too large pass it as they are."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return 2 * gradient.clamp(-100, 100)


class Swish(torch.autograd.Function):
    """x * sigmoid(x), which keeps x alone."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        (x,) = context.saved_tensors
        y = x.sigmoid()
        return gradient * (y * (1 + x * (1 - y)))


class Scaled(torch.autograd.Function):
    """A product, with a context made apart."""

    @staticmethod
    def forward(x: Any, y: Any, factor: float) -> Any:
        return x * y * factor

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs[:2])
        context.factor = inputs[2]

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        x, y = context.saved_tensors
        return gradient * y * context.factor, gradient * x * context.factor, None


def hooked(part: Part, x: Any) -> Any:
    y = part.linear(x)
    y.register_hook(lambda gradient: gradient.clamp(-1e6, 1e6))
    return y


def packed(part: Part, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        return part.linear(x).square()


def clamped(part: Part, x: Any) -> Any:
    with torch.no_grad():
        part.linear.weight.clamp_(-0.1, 0.1)
    return part.linear(x)


def taught(part: Part, x: Any) -> Any:
    with torch.no_grad():
        part.teacher.weight.mul_(0.9).add_(part.linear.weight, alpha=0.1)
    return part.linear(x) - part.teacher(x)


def warmed(part: Part, x: Any) -> Any:
    part.count += 1
    return part.linear(x) * (1 - 0.5**part.count)


def in_a_ring(part: Part, x: Any) -> Any:
    part.count.add_(1).remainder_(3)
    return part.linear(x)


def assigned(part: Part, x: Any) -> Any:
    part.mean = 0.9 * part.mean + 0.1 * x.detach().mean(0)
    return part.linear(x) - part.mean


def remembered(part: Part, x: Any) -> Any:
    part.memory = 0.9 * part.memory + 0.1 * x.detach().mean(0)
    return part.linear(x) - part.memory


def remembered_in_place(part: Part, x: Any) -> Any:
    part.memory.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return part.linear(x) - part.memory


def stepped(part: Part, x: Any) -> Any:
    part.calls += 1
    return part.linear(x) / part.calls


def data(part: Part, x: Any) -> Any:
    part.linear.weight.data.clamp_(-0.1, 0.1)
    return part.linear(x)


HERE = r".*layer part \(Part\), .*test_torch_silent\.py:\d+: "
REFUSED: dict[str, tuple[Forward, str]] = {
    "reversed gradients": (lambda part, x: Reversed.apply(part.linear(x)), "the backward of Reversed" + HERE),
    "straight through": (lambda part, x: Straight.apply(part.linear(x)), "the backward of Straight" + HERE),
    "clipped gradients": (lambda part, x: Clipped.apply(part.linear(x)), "the backward of Clipped" + HERE),
    "a hook on a hidden gradient": (hooked, "a gradient's hook" + HERE),
    "saved tensors in halves": (packed, "a hook on saved tensors" + HERE),
    "clamped weights": (clamped, r"aten\.clamp_ .*writes to a parameter" + HERE),
    "a teacher that follows": (taught, r"aten\.mul_ .*writes to a parameter" + HERE),
    "a counter that is read": (warmed, r"aten\.\w+ .*integers that change" + HERE),
    "a counter in a ring": (in_a_ring, r"aten\.remainder_ .*integers that change" + HERE),
    "an assigned buffer": (assigned, r"an assignment to part\.mean .*copy_" + HERE),
    "an assigned tensor": (remembered, r"an assignment to part\.memory" + HERE),
    "a tensor in place": (remembered_in_place, r"aten\.mul_ .*no buffer" + HERE),
    "Python's random": (lambda part, x: part.linear(x) * random.random(), "Python's random" + HERE),
    "NumPy's random": (lambda part, x: part.linear(x) * float(np.random.rand()), "NumPy's random" + HERE),
    "a generator of its own": (lambda part, x: part.linear(x) * part.generator.random(), "NumPy's random" + HERE),
    "torch's choices": (lambda part, x: part.linear(x)[:, torch.randperm(4)], r"aten\.randperm" + HERE),
    "a counter of Python": (stepped, r"its loss depends on part\.calls, .*emulate"),
    "data in place": (data, "cannot capture Whole"),
}  # fmt: skip


# An older torch stops elsewhere on the way, and says less of where.
OLDER_WORDS = {
    "clamped weights": r"cannot capture Whole: .*test_torch_silent\.py:\d+: ",
    "an assigned tensor": r"an assignment to part\.memory .*layer part \(Part\), ",
    "data in place": r"aten\.clamp_ .*no buffer" + HERE,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_graph_holds_is_refused_with_layer_and_line(kind: str) -> None:
    forward, words = REFUSED[kind]
    words = OLDER_WORDS.get(kind, words) if OLDER else words
    module, batches = made(forward)
    before = copy.deepcopy(module.state_dict())
    states = random.getstate(), np.random.get_state()[2], torch.get_rng_state()
    with pytest.raises((NotCovered, ValueError), match=words) as refusal:
        from_torch(module, batches[0])
    assert "\n" not in str(refusal.value)
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert (random.getstate(), np.random.get_state()[2]) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert module.part.calls == 0


@pytest.mark.parametrize("function", [Swish.apply, lambda y: Scaled.apply(y, y + 1, 0.5)])
def test_a_backward_that_is_the_derivative_is_captured(function: Any) -> None:
    check_equal(*made(lambda part, x: function(part.linear(x))))


def test_a_reentrant_checkpoint_without_gradients_before_it_is_refused() -> None:
    part = Part(lambda part, x: checkpoint(part.linear, x, use_reentrant=True).square().mean())
    with pytest.raises(NotCovered, match=r"use_reentrant=True .*torch gives what is in it none.*by the model itself"):
        from_torch(part, (torch.randn(6, 4),))


def doubled(*given: Any) -> None:
    """A hook that changes nothing."""


@pytest.mark.parametrize(
    "register, words",
    [
        (
            lambda part: part.linear.register_full_backward_hook(doubled),
            r"layer part\.linear \(Linear\) has it",
        ),
        (lambda part: part.register_full_backward_pre_hook(doubled), r"layer part \(Part\) has it"),
        (lambda part: part.linear.weight.register_hook(doubled), r"the parameter part\.linear\.weight has it"),
        (
            lambda part: part.linear.bias.register_post_accumulate_grad_hook(doubled),
            r"the parameter part\.linear\.bias has it",
        ),
    ],
)
def test_hooks_on_gradients_are_refused_where_they_are_registered(register: Any, words: str) -> None:
    module, batches = made(lambda part, x: part.linear(x))
    register(module.part)
    place = rf"test_torch_silent\.py:{doubled.__code__.co_firstlineno}"
    with pytest.raises(NotCovered, match=rf"{words}, .*{place}; ipu_core\.emulate"):
        from_torch(module, batches[0])
    from_torch(module, batches[0], inference=True)
