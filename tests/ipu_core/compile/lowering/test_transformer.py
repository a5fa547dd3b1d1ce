"""A transformer layer on tiles, forward, backward and optimizer: the bits of `execute`."""

import numpy as np
import pytest
from ir.test_transformer import BATCH, LENGTH, WORDS, loss, parameters

from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.execute import Executable
from ipu_core.train.optim import Adam
from ipu_core.train.step import initial_state, step_block

TOKENS = np.arange(BATCH * (LENGTH + 1)).reshape(BATCH, -1) * 3 % WORDS
WORDS_IN, WORDS_OUT = TOKENS[:, :-1].astype(np.int32), TOKENS[:, 1:].astype(np.int32)
FP8 = "fp16.16/stochastic/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"


@pytest.mark.parametrize(
    "spec, target",
    [
        ("fp32.32", Target("gc200")),
        ("fp16.32", Target("gc2")),
        ("fp16.16/stochastic", Target("gc200")),
        ("fp16.16/stochastic", Target("gc200", tiles=7)),
        (FP8, Target("c600")),
        ("fp8.16/stochastic", Target("c600")),
        ("fp8.16/delayed/amax_history_len=3", Target("c600", tiles=7)),
        ("fp8.16/static/backward_scale=1024", Target("c600")),
    ],
)
def test_a_transformer_layer_has_the_bits_of_execute(spec: str, target: Target) -> None:
    precision = Precision.parse(spec)
    block = precision.apply(step_block(loss, Adam(), parameters(), (WORDS_IN, WORDS_OUT)))
    state = flatten(precision.cast_state(block, initial_state(parameters(), Adam())))[0]
    machine = Machine.build(block, target)
    direct = Executable(block, machine.plan.accumulations)
    machine.write(state)
    for step in range(4):
        *state, value = direct.run([*state, WORDS_IN, WORDS_OUT, np.float32(0.01)], step)
        assert machine.step([WORDS_IN, WORDS_OUT], np.float32(0.01), step) == float(value)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(machine.read(), state, strict=True)), step


def test_a_chip_without_the_unit_says_so() -> None:
    block = Precision.parse(FP8).apply(step_block(loss, Adam(), parameters(), (WORDS_IN, WORDS_OUT)))
    with pytest.raises(UnsupportedByTarget, match="gc200 has no figure for float8"):
        Machine.build(block, Target("gc200"))
