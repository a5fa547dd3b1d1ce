"""What a training step gives beside its loss: the module's outputs, carried in the state of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.model import TorchModel
from ipu_core.ir.block import Array
from ipu_core.ir.pytree import PyTree, flatten, map_leaves, unflatten
from ipu_core.ir.trace.values import elementwise, scope, where
from ipu_core.poptorch.words import OutputMode
from lowprec.extras import optional


class LossWithOutputs:
    """A loss function (params, state, batch) -> (the loss, new state) whose state holds the outputs of its last step.

    A state of micro-batches is the mean of theirs: each writes its outputs to a place of its own, with zeros elsewhere,
    and as many times the mean is read. That is exact for a power of two of them, else within a unit in the last place.

    Args:
        model: captured with its outputs kept.
        count: micro-batches of a replica.
        replicas: how many, each with outputs of its own.
        places: 1, the last or the sum of all; or count.
        mode: of the outputs.
        total: whether gradients are added up, not averaged.

    Raises:
        ValueError: outputs of integers.
    """

    for_host = ("outputs",)
    """The part of the state that the host reads from every replica."""

    def __init__(self, model: TorchModel, count: int, replicas: int, mode: OutputMode, *, total: bool) -> None:
        self.model, self._count, self._replicas, self._total = model, count, replicas, total
        self._mode = OutputMode.Final if mode == OutputMode.Default else mode
        nodes = model.exported.graph.graph.output_node().args[0]
        # the outputs stand behind the loss, at the end of what the graph gives
        self.values = [node.meta["val"] for node in nodes[len(nodes) - self._tree.leaves :]]
        if any(not x.is_floating_point() for x in self.values):
            raise ValueError(
                f"{model.__name__} gives integers or truth values, which a step that trains cannot hand back: an "
                "inferenceModel does, or give scores and find their maximum on the host"
            )

    @property
    def _tree(self) -> PyTree:
        return self.model.exported.result.children[1]

    @property
    def _every(self) -> bool:
        return self._count > 1 and self._mode in (OutputMode.All, OutputMode.EveryN)

    def state(self) -> dict[str, Any]:
        """The state before the first step: buffers, and outputs of zeros."""
        places = (self._count,) if self._every else ()
        empty = [np.zeros((*places, *map(int, x.shape)), np.float32) for x in self.values]
        return {"buffers": self.model.state or {}, "outputs": empty}

    def batch(self, batch: Any) -> dict[str, Any]:
        """A step's batch, with the places that its micro-batches write to."""
        batch = map_leaves(self._by_replica, batch)
        if self._count == 1:
            return {"batch": batch}
        # row i is micro-batch i's; repeated, since all arrays of a batch are cut alike
        places = np.eye(self._count, dtype=np.float32)
        if not self._every:
            # a column of the identity keeps the last micro-batch, of ones the sum
            places = places[:, -1:] if self._mode == OutputMode.Final else np.ones((self._count, 1), np.float32)
        every = np.tile(places, (self._replicas, 1))
        return {"batch": batch, "places": np.repeat(every, len(flatten(batch)[0][0]) // len(every), axis=0)}

    def _by_replica(self, x: Any) -> Any:
        """A step's rows, which PopTorch has by micro-batch and then by replica, as a loop cuts them: by replica."""
        if self._count == 1 or self._replicas == 1:
            return x
        rows = np.asarray(x)
        parts = rows.reshape((self._count, self._replicas, -1, *rows.shape[1:]))
        return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(rows.shape)

    def __call__(self, params: Mapping[str, Any], state: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """The loss and the new state of one micro-batch. To be traced."""
        leaves = flatten(batch["batch"])[0]
        self.model.check_shapes(leaves)
        (loss, outputs), slots = self.model.run(params, state["buffers"], leaves)
        made = [self._placed(x, batch.get("places")) for x in flatten(outputs)[0]]
        parts = self._count * self._replicas
        if self._total and parts > 1:
            with scope(loss, family="loss"):
                # the loop averages gradients over micro-batches; the loss times their number makes it their sum
                loss = elementwise("multiply", loss, float(parts))
        return loss, {"buffers": {name: slots[name].read() for name in state["buffers"]}, "outputs": made}

    def _placed(self, x: Any, places: Any) -> Any:
        if places is None:
            return x
        if not self._every:
            # a choice, not a product: an infinite output times 0 would be NaN in another one's place
            return where(places[:1].reshape((1,) * len(x.shape)), x, 0.0)
        row = places[:1].reshape((self._count,) + (1,) * len(x.shape))
        return where(row, x.reshape((1, *x.shape)), 0.0)

    def read(self, state: Mapping[str, Any], of_replicas: Sequence[Array] | None) -> list[list[Array]]:
        """The outputs of a step: of each micro-batch, or the one that is the sum or the last; replicas' in turn.

        Args:
            state: the loop's.
            of_replicas: what every replica had, (replicas, ...); nothing where the state has it.
        """
        found = of_replicas or [np.asarray(x)[None] for x in state["outputs"]]
        # the loop averaged this state, too: all but one of the summands were zeros
        arrays = [np.asarray(x, np.float32) * np.float32(self._count) for x in found]
        if self._every:
            return [self._joined([x[:, number] for x in arrays]) for number in range(self._count)]
        return [self._joined(arrays)]

    def _joined(self, arrays: Sequence[Array]) -> list[Array]:
        if self._replicas == 1:
            return [x[0] for x in arrays]
        return of_replicas(list(zip(*arrays, strict=True)))

    def nested(self, outputs: Sequence[Any]) -> Any:
        """Outputs nested as the module nests them, in its classes."""
        return self.model.exported.remake(unflatten(self._tree, list(outputs)))


def of_replicas(found: Sequence[Sequence[Array]]) -> list[Array]:
    """A batch's outputs of all replicas one after another, as PopTorch gives them: numbers become a vector."""
    return [np.concatenate([np.atleast_1d(x) for x in column]) for column in zip(*found, strict=True)]


def combined(found: Sequence[Sequence[Array]], mode: OutputMode, period: int) -> list[Any]:
    """What comes back of the outputs of all batches of a call, as tensors.

    Args:
        found: outputs by batch.
        mode: All, EveryN, Final or Sum.
        period: of EveryN.
    """
    torch = optional("torch", extra="torch")
    if mode == OutputMode.EveryN:
        found = found[period - 1 :: period]
    if mode == OutputMode.Final:
        found = found[-1:]
    columns = list(zip(*found, strict=True))
    if mode == OutputMode.Sum:
        return [torch.tensor(np.sum(np.stack(column), axis=0, dtype=column[0].dtype)) for column in columns]
    if mode == OutputMode.Final or len(found) == 1:
        return [torch.tensor(column[0]) for column in columns]
    return [torch.tensor(np.concatenate([np.atleast_1d(x) for x in column])) for column in columns]
