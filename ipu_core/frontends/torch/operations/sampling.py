"""Images read at places that are computed: grids of them, and the values between their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined, ones_at
from ipu_core.frontends.torch.operations.elementwise import greater
from ipu_core.ir.trace.values import Value, apply, matmul, reduce_sum, reshape, shape_of, transpose, where
from ipu_core.nn import stop_gradient

BILINEAR, NEAREST = 0, 1  # torch's numbers of modes
ZEROS, BORDER = 0, 1  # and of what lies beyond the image


def grid_of(call: NodeCall, theta: Value, size: Sequence[int], align: bool) -> Value:
    """The places that affine maps (images, 2, 3) send those of an image to: (images, rows, columns, x and y)."""
    if len(size) != 4:
        raise NotImplementedError("volumes (3d)")
    ends = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in size[2:]]
    high, wide = (x if align else x * (len(x) - 1) / len(x) for x in ends)
    places = np.stack([*np.meshgrid(wide, high), np.ones(tuple(size[2:]))], axis=-1).astype(call.width)
    return reshape(matmul(places.reshape(-1, 3), transpose(theta, (0, 2, 1))), call.shape)


def sampled(call: NodeCall, x: Value, grid: Value, mode: int, beyond: int, align: bool) -> Value:
    """Images (n, channels, rows, columns) at places (n, ..., 2), x before y, in which they go from -1 to 1.

    A value is a product with the shares of its two neighbours along the columns, and a sum with those along the rows:
    no element is looked up.
    """
    if len(shape_of(x)) != 4:
        raise NotImplementedError("volumes (3d)")
    if mode not in (BILINEAR, NEAREST):
        raise NotImplementedError("mode='bicubic'")
    if beyond not in (ZEROS, BORDER):
        raise NotImplementedError("padding_mode='reflection'")
    images, channels, rows, columns = shape_of(x)
    places = reshape(grid, (images, -1, 2))
    wide, high = (_shares(places[..., which], count, mode, beyond, align) for which, count in ((0, columns), (1, rows)))
    lines = matmul(reshape(x, (images, channels * rows, columns)), transpose(wide, (0, 2, 1)))
    lines = reshape(lines, (images, channels, rows, -1))
    high = reshape(transpose(high, (0, 2, 1)), (images, 1, rows, -1))
    return reshape(reduce_sum(combined("multiply", lines, high), 2), call.shape)


def _shares(place: Value, count: int, mode: int, beyond: int, align: bool) -> Value:
    """What each element of an axis gives to each place: (images, places, elements)."""
    place = combined("multiply", combined("add", place, 1.0), (count - 1) / 2 if align else count / 2)
    place = place if align else combined("subtract", place, 0.5)
    if beyond == BORDER:
        # on the border and beyond it torch has no slope
        place = where(greater(place, 0.0), place, 0.0)
        place = where(greater(float(count - 1), place), place, float(count - 1))
    if mode == NEAREST:
        return ones_at(stop_gradient(apply("rint", place)), count)
    first = stop_gradient(apply("floor", place))
    share = reshape(combined("subtract", place, first), (*shape_of(place), 1))
    # the slope at an element is that to the next one, as in torch: by maxima of distances it would be none
    here, after = (ones_at(one, count) for one in (first, combined("add", first, 1.0)))
    return combined(
        "add", combined("multiply", here, combined("subtract", 1.0, share)), combined("multiply", after, share)
    )


TABLE: dict[str, Callable[..., Any]] = {"affine_grid_generator": grid_of, "grid_sampler": sampled}
