"""What a traced step takes of each batch: the arrays by name, their types, and the classes that its labels may name."""

from __future__ import annotations

from typing import Any

from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import equations_of, inputs_of
from ipu_core.ir.pytree import flatten, paths
from ipu_core.train.arguments import feed


class Intake:
    """Brings batches to the formats and shapes that a step was traced with.

    Args:
        block: The typed step.
        batch: The one it was traced with.
        numbers: How many inputs of the step come behind the batch: the learning rate, a loss scale.
    """

    def __init__(self, block: Block, batch: Any, numbers: int) -> None:
        wanted = block.inputs[block.carried : len(block.inputs) - numbers]
        classes = {e.inputs[0]: int(e.params["classes"]) for e in equations_of(block) if e.op == "one_hot"
                   and e.family == "loss"}  # fmt: skip
        self._names = paths(flatten(batch)[1])
        held = dict(zip(block.inputs, inputs_of(block), strict=True))
        self._wanted = [(var.type, classes.get(held[var], 0)) for var in wanted]

    def __call__(self, batch: Any) -> list[Array]:
        """The arrays of a batch.

        Raises:
            ValueError, TypeError: it is unlike the one that was traced, or has labels that are no class.
        """
        leaves, tree = flatten(batch)
        if len(leaves) != len(self._wanted):
            raise ValueError(
                f"the batch holds {len(leaves)} arrays; the step was traced with {len(self._wanted)} "
                f"({', '.join(self._names)}). Batches are given one by one: [(x, y), (x, y), ...], or a function of "
                "the step's number"
            )
        if (names := paths(tree)) != self._names:
            raise ValueError(f"the batch holds {', '.join(names)}; the step was traced with {', '.join(self._names)}")
        arrays = [feed(i, leaf, kind) for i, (leaf, (kind, _)) in enumerate(zip(leaves, self._wanted, strict=True))]
        for i, (array, (_, classes)) in enumerate(zip(arrays, self._wanted, strict=True)):
            if classes and array.size and not 0 <= array.min() <= array.max() < classes:
                held = f"labels from {array.min()} to {array.max()}"
                raise ValueError(f"array {i} of the batch holds {held}; the loss has the classes 0 to {classes - 1}")
        return arrays
