"""Equations that run at once: what each of them executes next shares a compute set."""

from collections.abc import Sequence as Listed

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import CrossReplica, CrossReplicas, Execute, Program, Sequence


def fused(graph: Graph, equations: Listed[Listed[Program]]) -> list[Program]:
    """The programs of equations of which none needs another's result, in fewer supersteps.

    Args:
        graph: that they are of; its compute sets are joined.
        equations: the programs of each, in order.
    """
    pending, steps = [list(programs) for programs in equations], list[Program]()
    while any(pending):
        # Moves cannot join a compute set. They come first: no equation reads what another one writes.
        links = list[CrossReplica]()
        for left in pending:
            while left and not isinstance(left[0], Execute):
                step = left.pop(0)
                (links if isinstance(step, CrossReplica) else steps).append(step)  # type: ignore[arg-type]
        steps += [links[0] if len(links) == 1 else CrossReplicas(*links)] if links else []
        sets = [step.compute_set for step in (left.pop(0) for left in pending if left) if isinstance(step, Execute)]
        if sets:
            more = f": and {len(sets) - 1} more" if len(sets) > 1 else ""
            steps.append(Execute(graph.join(sets, f"{sets[0].name}{more}")))
    return [Sequence(*steps)] if steps else []
