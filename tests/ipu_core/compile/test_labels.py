"""Names in profiles: a parameter's own, its moments by their place in the state, equations by parameter and number."""

from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.compile.labels import label, state_names, value_names
from ipu_core.train.optim import Adam
from ipu_core.train.step import step_block


def test_names_of_a_step() -> None:
    def loss(params: Any, batch: Any) -> Any:
        return nn.mse(batch["x"] @ params["w"], batch["y"])

    arrays = {"x": np.ones((5, 3), np.float32), "y": np.ones((5, 2), np.float32)}
    block = step_block(loss, Adam(bias_correction=False), {"w": np.ones((3, 2), np.float32)}, arrays)
    assert list(state_names(block).values()) == [
        "state.optimizer.first_moment.w", "state.optimizer.second_moment.w", "w",
    ]  # fmt: skip
    names = value_names(block)
    assert [names[var] for var in block.inputs[block.carried :]] == ["input.batch.x", "input.batch.y", "input.lr"]
    product = next(equation for equation in block.equations if equation.op == "dot")
    assert label(product) == names[product.output] == f"w.dot.{product.number}"
    assert len(set(names.values())) == len(names)
