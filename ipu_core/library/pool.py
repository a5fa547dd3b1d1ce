"""Pooling on tiles, without a training layer: windows are views of the images."""

from typing import Any

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.convolution import windows_of
from ipu_core.library.steps import Steps
from lowprec.spec.windows import checked_pair, windows
from lowprec.types import Pair


def max_pool2d(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    window: int | Pair = 2,
    stride: int | Pair | None = None,
    name: str = "max_pool2d",
) -> Tensor:
    """Adds the largest of every window; NaN if there is one. Windows that would reach beyond the image are left out.

    Args:
        graph: where.
        x: mapped images (n, h, w, channels).
        programs: what is to be run is appended to it.
        window: its size, one number or (vertical, horizontal).
        stride: distance of windows; None: their size.
        name: for profiles.

    Returns:
        A new array (n, rows, columns, channels) in the format of x.

    Raises:
        TypeError: numbers that are no integers.
        ValueError: images without four axes, numbers below 1, windows larger than the image.
    """
    return _flat(Steps(graph, programs, name).reduce_max(_windows(x, window, stride), (3, 4)))


def avg_pool2d(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    window: int | Pair = 2,
    stride: int | Pair | None = None,
    accumulate: Any = "float32",
    stochastic: bool = False,
    operation: int = 0,
    name: str = "avg_pool2d",
) -> Tensor:
    """Adds the mean of every window: its sum times the reciprocal of its size, in the format of x.

    Args:
        graph, x, programs, window, stride, name: as `max_pool2d`.
        accumulate: format of the partial sums.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the sum; the product takes the next.

    Raises:
        TypeError, ValueError: as `max_pool2d`.
    """
    steps = Steps(graph, programs, name, stochastic, operation)
    return _flat(steps.reduce_mean(_windows(x, window, stride), (3, 4), fmt=x.format, accumulate=accumulate))


def _windows(x: Tensor, window: Any, stride: Any) -> Tensor:
    """The images as (n, rows, columns, kernel rows, kernel columns, channels)."""
    if x.ndim != 4:
        raise ValueError(f"images have the axes (n, h, w, channels), not the shape {x.shape}")
    kernel = checked_pair("window", window, 1, one=True)
    where = windows((x.shape[1], x.shape[2]), kernel, kernel if stride is None else stride, 0, 1)
    return windows_of(x, where.kernel, where.stride, (1, 1), where.count)


def _flat(pooled: Tensor) -> Tensor:
    """Without the axes of the windows."""
    return pooled.reshape(*pooled.shape[:3], pooled.shape[5])
