"""What a captured module is compared with: torch itself, in float32 and in float64."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core import (
    Adam,
    Precision,
    Sgd,
    Target,
    TrainLoop,
    execute,
    from_torch,
    from_torch_optimizer,
    trace,
    value_and_grad,
)
from ipu_core.engine.profile import Profile
from ipu_core.frontends.torch import TorchModel
from ipu_core.frontends.torch.fidelity import MOVED, TIMES
from ipu_core.ir.pytree import map_leaves
from ipu_core.ir.run.evaluate import evaluate

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # its threads wait for each other spinning, where others run

OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)
"""Whether this is a torch that may lack what the last three minor versions have."""


@contextlib.contextmanager
def as_far_as_torch_goes() -> Iterator[None]:
    """Skips a test of what an older torch has no derivative of, or does not export."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if OLDER and re.search("derivative for .* is not implemented|torch.export cannot capture", str(error)):
            pytest.skip(f"torch {torch.__version__}: {error}"[:200])
        raise


Loss = Callable[..., Any]


class Step(NamedTuple):
    """A loss and its gradients by the parameters' names."""

    loss: float
    gradients: dict[str, Any]


def loss_of(module: Any, batch: Any, loss: Loss | None) -> Any:
    """The loss of a module, as `from_torch` understands its arguments."""
    if isinstance(batch, dict):
        output = module(**batch)
        return output.loss
    output = module(*batch) if loss is None else module(*batch[:-1])
    return output if loss is None else loss(output, batch[-1])


def by_torch(module: Any, batch: Any, loss: Loss | None = None, *, double: bool = False) -> Step:
    """Torch's own loss and gradients, on a copy."""
    twin = copy.deepcopy(module)
    if double:
        twin = twin.double()
        batch = map_leaves(lambda x: x.double() if x.is_floating_point() else x, batch)
    value = loss_of(twin, batch, loss)
    value.backward()
    found = {name: p.grad.double().numpy() for name, p in twin.named_parameters() if p.grad is not None}
    return Step(float(value), found)


def as_arrays(batch: Any) -> Any:
    """The batch as `execute` takes it."""
    return map_leaves(lambda x: np.asarray(x.int() if x.dtype.is_signed and not x.is_floating_point() else x), batch)


def ours(model: TorchModel, batch: Any, *, exact: bool = False) -> Step:
    """The captured module's loss and gradients: in float32, or in ideal arithmetic."""
    state = () if model.state is None else (model.state,)
    step = value_and_grad(model, has_aux=bool(state))
    arrays = map_leaves(lambda x: x.astype(np.float32) if x.dtype.kind == "b" else x, as_arrays(batch))
    block = Precision.parse("fp32.32").apply(trace(step, model.params, *state, arrays))
    if exact:
        value, gradients = evaluate(trace(step, model.params, *state, arrays), model.params, *state, arrays)
    else:
        value, gradients = execute(block, model.params, *state, arrays, key=0)
    return Step(float(value[0] if state else value), _named(model, gradients))


def _named(model: TorchModel, gradients: Any) -> dict[str, Any]:
    """Gradients as torch's parameters lie."""
    found = model.state_dict(gradients)
    return {name: found[name] for name in gradients}


def check_gradients(module: Any, model: TorchModel, batch: Any, loss: Loss | None = None) -> None:
    """Gradients in float32 are as near to those in float64 as torch's own are, parameter by parameter."""
    exact, single, found = by_torch(module, batch, loss, double=True), by_torch(module, batch, loss), ours(model, batch)
    assert found.gradients.keys() == exact.gradients.keys()
    assert abs(found.loss - exact.loss) <= 4 * abs(single.loss - exact.loss) + 1e-6 * abs(exact.loss)
    size = max(np.abs(gradient).max() for gradient in exact.gradients.values())
    for name, gradient in exact.gradients.items():
        theirs = np.abs(single.gradients[name] - gradient).max()
        allowed = 8 * theirs + 2e-6 * np.abs(gradient).max() + 1e-7 * size
        assert np.abs(found.gradients[name] - gradient).max() <= allowed, name


def check_losses(
    module: Any, batches: Sequence[Any], loss: Loss | None = None, *, drifts: bool = False, steps: int = 50
) -> None:
    """Losses of so many steps of descent equal torch's in float32 within 1e-4.

    A model that drifts, as batch norms over few elements do, may be as far from them as torch is from itself: in
    float64, and from weights that differ in the last place (ResNet-18 of 8 images: by 7e-4 in step 2, by 0.15 in step
    7). Its loss and gradients are looked at again where torch's steps have led.
    """
    twins = [copy.deepcopy(module), *(_neighbours(module) if drifts else [])]
    model = from_torch(module, batches[0], loss)
    check_gradients(module, model, batches[0], loss)
    optimizers = [torch.optim.SGD(twin.parameters(), 0.02) for twin in twins]
    far = 1e-4
    loop = TrainLoop(
        model, model.params, batches[0], optimizer=Sgd(0.02), precision="fp32.32", engine="direct",
        model_state=model.state,
    )  # fmt: skip
    for step in range(steps):
        batch = batches[step % len(batches)]
        expected = []
        if drifts and step in (5, 20):
            _check_on_the_way(twins[0], batch, loss)
        for twin, optimizer in zip(twins, optimizers, strict=True):
            kind = next(twin.parameters()).dtype
            optimizer.zero_grad()
            value = loss_of(twin, map_leaves(lambda x, k=kind: x.to(k) if x.is_floating_point() else x, batch), loss)
            value.backward()
            optimizer.step()
            expected.append(float(value))
        far = max(far, *(2 * abs(expected[0] - other) / abs(expected[0]) for other in expected))
        assert abs(loop.train(batch) - expected[0]) <= far * abs(expected[0]), step


def _check_on_the_way(module: Any, batch: Any, loss: Loss | None) -> None:
    """The loss is that of float64, and so are gradients as a whole.

    Among ten thousand operands of a ReLU one is as near to 0 as float32's errors are (1e-5): the gradient of that
    element is there or is not, which makes up to a quarter of the largest gradient of its channel, in torch too.
    """
    exact, found = by_torch(module, batch, loss, double=True), ours(from_torch(module, batch, loss), batch)
    assert abs(found.loss - exact.loss) <= 1e-5 * abs(exact.loss)
    for name, gradient in exact.gradients.items():
        assert np.linalg.norm(found.gradients[name] - gradient) <= 0.1 * np.linalg.norm(gradient), name


def _neighbours(module: Any, far: int = 0) -> list[Any]:
    """Copies in float64, in float32 with each weight moved to the number above or below it, and so many farther away.

    Those are moved as the comparison at capture moves inputs (MOVED), by up to 8 units in the last place.
    """
    found = [copy.deepcopy(module).double()]
    for seed in range(3 + far):
        generator, twin = torch.Generator().manual_seed(seed), copy.deepcopy(module)
        with torch.no_grad():
            for p in twin.parameters():
                way = torch.randint(0, 2, p.shape, generator=generator) * 2.0 - 1.0
                p.copy_(torch.nextafter(p, way * torch.inf) if seed < 3 else p * (1 + MOVED * way))
        found.append(twin)
    return found


def check_narrow(module: Any, batches: Sequence[Any], loss: Loss | None = None, *, steps: int = 30) -> None:
    """It trains in halves with stochastic rounding: the loss falls."""
    model = from_torch(module, batches[0], loss)
    loop = TrainLoop(
        model, model.params, batches[0], optimizer=Adam(3e-3), precision="fp16.16/stochastic", engine="direct",
        model_state=model.state,
    )  # fmt: skip
    losses = loop.run(lambda step: batches[step % len(batches)], steps)
    few = len(batches)
    assert losses[-few:].mean() < losses[:few].mean() - 0.01


def check_engines(
    module: Any, batches: Sequence[Any], loss: Loss | None = None, *, precision: str, target: Target
) -> Profile:
    """Two steps on whole arrays and on a target's tiles give the same bits; the profile of the second on tiles."""
    model = from_torch(module, batches[0], loss)
    tiles, direct = (
        TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.02), precision=precision, engine=engine,
                  target=target, model_state=model.state)
        for engine in ("tiles", "direct")
    )  # fmt: skip
    assert [tiles.train(batch) for batch in batches[:2]] == [direct.train(batch) for batch in batches[:2]]
    for one, other in zip(tiles.arrays().values(), direct.arrays().values(), strict=True):
        assert one.tobytes() == other.tobytes()
    assert tiles.profile is not None
    return tiles.profile


def check_adamw(module: Any, batches: Sequence[Any], loss: Loss | None = None) -> None:
    """Three steps of AdamW have torch's losses, parameters and buffers to 1e-6.

    Where they are farther apart, each may be so many times (TIMES) as far as torch is from itself, see `_neighbours`: a
    gradient that is 0 but for rounding (of a bias before a batch norm, of an attention's keys) moves its parameter by
    the whole rate, one way or the other.
    """
    module.train()
    twin, untouched = copy.deepcopy(module), copy.deepcopy(module)
    model = from_torch(module, batches[0], loss)
    optimizer = from_torch_optimizer(model, _adamw(module))
    loop = TrainLoop(
        model, model.params, model.batch(batches[0]), optimizer=optimizer, precision="fp32.32", engine="direct",
        model_state=model.state,
    )  # fmt: skip
    found = {f"loss {step}": np.asarray(loop.train(model.batch(batch))) for step, batch in enumerate(batches)}
    found |= model.state_dict(loop.params, loop.model_state, steps=loop.step)
    wanted = _by_adamw(twin, batches, loss)
    far = {name: _apart(found[name], x) for name, x in wanted.items() if _apart(found[name], x) > _near(x)}
    if not far:
        return
    others = []
    for neighbour in _neighbours(untouched, far=5):
        with contextlib.suppress(RuntimeError):  # some cast to float32 themselves, and cannot run in float64
            others.append(_by_adamw(neighbour, batches, loss))
    assert len(others) >= 8
    for name, distance in far.items():
        own = max(_apart(wanted[name], other[name]) for other in others)
        assert distance <= TIMES * own, (name, distance, own)


def _near(x: Any) -> float:
    return 1e-6 * max(1.0, float(np.abs(x).max(initial=0.0)))


def _adamw(module: Any) -> Any:
    return torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=0.01)


def _by_adamw(module: Any, batches: Sequence[Any], loss: Loss | None) -> dict[str, Any]:
    """Torch's losses, and the module's numbers after them by name."""
    optimizer, found, kind = _adamw(module), {}, next(module.parameters()).dtype
    for step, given in enumerate(batches):
        batch = map_leaves(lambda x: x.to(kind) if getattr(x, "is_floating_point", bool)() else x, given)
        optimizer.zero_grad()
        value = loss_of(module, batch, loss)
        value.backward()
        optimizer.step()
        found[f"loss {step}"] = value.detach().numpy()
    return found | {name: x.numpy() for name, x in module.state_dict().items()}


def _apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one, np.float64) - other).max(initial=0.0))
