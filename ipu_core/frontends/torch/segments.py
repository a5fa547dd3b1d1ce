"""A run of a captured graph by torch whose gradients take the memory of a part of it.

Where one value alone goes on, a graph can be cut; of a part between two cuts the value that goes in is kept, and the
others are made again when the gradients reach it (Chen et al. 2016, arXiv 1604.06174). The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ipu_core.frontends.torch.memory import give_back
from lowprec.extras import optional

PARTS = 8
"""Into how many parts of alike size a graph is cut, where it can be: what is kept of all is then about one of them."""


class Part(NamedTuple):
    """Nodes that run together, the one whose result alone goes in, or None, and the one whose result goes out."""

    nodes: Sequence[Any]
    entry: Any
    exit: Any


def in_segments(torch: Any, interpreter: Any, given: Sequence[Any]) -> Any:
    """What `interpreter.run(*given)` gives.

    Args:
        torch: the module torch.
        interpreter: a `torch.fx.Interpreter` of a graph without inner names for its inputs.
        given: the graph's inputs. Those without gradients may be written to; what they were is kept until the
            gradients have been made.
    """
    checkpoint = optional("torch.utils.checkpoint", extra="torch").checkpoint
    held, inputs = dict[Any, Any](), iter(given)
    nodes = list(interpreter.module.graph.nodes)
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            held[node] = next(inputs) if node.op == "placeholder" else interpreter.run_node(node)
    value = None
    for part in parts_of([node for node in nodes if node not in held]):
        run = _Run(interpreter, part, held)
        if part.entry is None or _apart(value, held):
            value = checkpoint(run.copied, value, use_reentrant=False)
        else:
            value = run.once(value)
    return value


def parts_of(nodes: Sequence[Any]) -> list[Part]:
    """The parts of a graph without its inputs, the last with its output."""
    place = {node: at for at, node in enumerate(nodes)}
    last = {node: max((place[user] for user in node.users), default=at) for node, at in place.items()}
    sizes = [_size(node.meta.get("val")) for node in nodes]
    alive, since, made, entry, parts = set[Any](), 0, 0, None, list[Part]()
    for at, (node, size) in enumerate(zip(nodes, sizes, strict=True)):
        alive, made = {one for one in (*alive, node) if last[one] > at}, made + size
        if len(alive) == 1 and PARTS * made >= sum(sizes) and hasattr((only := next(iter(alive))).meta["val"], "shape"):
            parts.append(Part(nodes[since : at + 1], entry, only))
            since, made, entry = at + 1, 0, only
    return [*parts, Part(nodes[since:], entry, nodes[-1])]


def _size(value: Any) -> int:
    """The elements of a result, or of several."""
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return int(value.numel()) if hasattr(value, "numel") else 0


def _apart(value: Any, held: Mapping[Any, Any]) -> bool:
    """Whether a copy of a tensor can stand for it: it has all of its memory, and no input has it, too."""
    memory = value.untyped_storage()
    others = (x.untyped_storage().data_ptr() for x in held.values() if hasattr(x, "untyped_storage"))
    return memory.nbytes() == value.numel() * value.element_size() and memory.data_ptr() not in others


class _Run:
    """One part with the tensors that it reads: the first time they are written to, later as they were before."""

    def __init__(self, interpreter: Any, part: Part, held: Mapping[Any, Any]) -> None:
        self._interpreter, self._part = interpreter, part
        read = {node: held[node] for one in part.nodes for node in one.all_input_nodes if node in held}
        # trained parameters are leaves that nothing writes to
        written = {node: x for node, x in read.items() if hasattr(x, "detach") and not (x.requires_grad and x.is_leaf)}
        before = {node: x.detach().clone().requires_grad_(x.requires_grad) for node, x in written.items()}
        self._inputs, self._before = read, {**read, **before}

    def copied(self, value: Any) -> Any:
        """What the part makes of a value, which stays as it is, though operations in place may write to it."""
        return self.once(value if value is None else value.clone())

    def once(self, value: Any) -> Any:
        """What the part makes of a value."""
        env, self._inputs = {**self._inputs, self._part.entry: value}, self._before
        self._interpreter.env = env
        give_back()  # what the part before freed
        try:
            for node in self._part.nodes:
                env[node] = self._interpreter.run_node(node)
                for used in self._interpreter.user_to_last_uses.get(node, ()):
                    env.pop(used, None)
            return env[self._part.exit]
        finally:
            self._interpreter.env = {}  # gradients end a run as soon as they have all that they need of it
