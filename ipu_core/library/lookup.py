"""Rows of a table and the largest of rows on tiles, without a training layer: the new arrays of `gather` and `rows`."""

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array
from ipu_core.library.rows import take_along, top_indices
from ipu_core.library.steps import Steps
from ipu_core.library.tables import gather


def embedding(
    graph: Graph, table: Tensor, indices: Tensor, programs: list[Program], *, name: str = "embedding"
) -> Tensor:
    """Adds rows of a table.

    Args:
        graph: where.
        table: mapped (entries, ..).
        indices: mapped int32 in [0, entries), any shape; others are refused where the program runs.
        programs: what is to be run is appended to it.
        name: for profiles.

    Returns:
        A new array of the shape of indices and then the table's other axes, in the table's format.

    Raises:
        ValueError: a table of more axes that cannot be viewed as rows and columns.
    """
    out = add_array(graph, table.format, indices.shape + table.shape[1:], name)
    programs += gather(graph, table, indices, out, name=name)
    return out


def topk(
    graph: Graph, x: Tensor, k: int, programs: list[Program], *, largest: bool = True, name: str = "topk"
) -> tuple[Tensor, Tensor]:
    """Adds the k largest along the last axis, the largest first, and their int32 indices.

    Of equal ones the lowest index comes first, NaN before all numbers.

    Args:
        graph: where.
        x: mapped floats (.., n).
        k: from 1 to n.
        programs: what is to be run is appended to it.
        largest: False: the smallest, the smallest first (and NaN before all numbers).
        name: for profiles.

    Returns:
        Two new arrays (.., k), the first in the format of x.

    Raises:
        ValueError: a k that is not from 1 to n, or leading axes that cannot be viewed as one.
    """
    if not 1 <= k <= x.shape[-1]:
        raise ValueError(f"k must be from 1 to {x.shape[-1]}, the length of the rows, not {k}")
    steps, shape = Steps(graph, programs, name), (*x.shape[:-1], k)
    ordered = x if largest else steps.elementwise("negative", x, fmt=x.format)
    values, indices = add_array(graph, x.format, shape, name), add_array(graph, "int32", shape, f"{name}: indices")
    programs += top_indices(graph, ordered, indices, name=f"{name}: indices")
    programs += take_along(graph, x, indices, values, name=name)
    return values, indices
