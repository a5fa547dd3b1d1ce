"""What a captured function is compared with: JAX itself, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Precision, execute, from_jax, trace, value_and_grad
from ipu_core.ir.pytree import flatten

jax = pytest.importorskip("jax")


def normal(*shape: int, seed: int = 0, scale: float = 0.3) -> Any:
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


def labelled(*shape: int, classes: int = 5) -> list[Any]:
    r = np.random.default_rng(3)
    return [(normal(*shape, seed=i, scale=1), r.integers(0, classes, shape[:1]).astype(np.int32)) for i in range(3)]


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    """As one program, which is quick to compile: one for every operation takes four times as long."""
    made: Callable[..., Any] = jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})
    return made


def check_step(loss: Callable[..., Any], params: Any, batch: Any, *, rounds: float = 20) -> None:
    """Loss and gradients in float32 are JAX's within so many roundings of the largest element."""
    model = from_jax(loss, params, batch)
    block = Precision.parse("fp32.32").apply(trace(value_and_grad(model), model.params, batch))
    value, gradients = execute(block, model.params, batch, key=0)
    wanted, theirs = compiled(jax.value_and_grad(loss))(params, batch)
    eps = np.finfo(np.float32).eps
    assert abs(value - wanted) <= rounds * eps * max(1, abs(wanted))
    assert flatten(gradients)[1] == flatten(params)[1]
    size = max(1e-3, *(float(np.abs(x).max()) for x in flatten(theirs)[0]))
    for mine, other in zip(flatten(gradients)[0], flatten(theirs)[0], strict=True):
        assert np.abs(np.asarray(mine) - np.asarray(other)).max() <= rounds * eps * size
