"""Buffers of integers: counted up by a fixed number they are written back; what else becomes of them is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ipu_core.frontends.torch.errors import not_covered
from ipu_core.frontends.torch.interpret import CHECKS, REGIONS, name_of

COUNTED = {"add", "add_"}
PASSED = {"copy_", "alias", "detach", "getitem", "lift_fresh_copy", *CHECKS}


def refuse_counters(graph: Any, names: Sequence[Any], changed: Collection[str]) -> None:
    """Refuses graphs in which a buffer of integers that they change is more than counted up.

    Args:
        graph: a captured graph.
        names: of what its inputs are.
        changed: of the buffers.

    Raises:
        NotCovered: the first operation that takes such a buffer, or writes to it otherwise.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    _follow(graph, [node for node, name in zip(inputs, names, strict=True) if name in changed])


def _follow(graph: Any, begin: Sequence[Any]) -> bool:
    """Whether a result of a graph is made of these inputs alone; refuses all else that is made of them."""
    made = set(begin)
    for node in graph.graph.nodes:
        taken = [x for x in node.all_input_nodes if x in made]
        if not taken or node.op != "call_function":
            continue
        name = name_of(node)
        # a graph within the graph: its inputs are followed inside
        if name in REGIONS:
            inner, *operands = node.args[REGIONS[name] :]
            region = getattr(graph, inner.target)
            given = [x for x in region.graph.nodes if x.op == "placeholder"]
            if not _follow(region, [x for x, operand in zip(given, operands, strict=True) if operand in made]):
                continue
        # a count that something is computed from would be the one of the capture in every step
        elif name not in PASSED and not (name in COUNTED and isinstance(node.args[1], int)):
            raise not_covered(f"aten.{name}", node, "it takes or makes integers that change from step to step")
        made.add(node)
    return any(x in made for x in graph.graph.output_node().all_input_nodes)
