"""The table from operations of torch (aten) to functions of the values here, one line each.

A function takes the call and all arguments in the order of torch's schema. A name with an overload ("max.dim") comes
before the bare name; operations in place ("add_") are those without the underscore, and a write.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ipu_core.frontends.torch.operations import (
    alignments,
    distances,
    elementwise,
    images,
    losses,
    noise,
    norms,
    products,
    rearranged,
    recurrent,
    reductions,
    resizing,
    sampling,
    scatters,
    shapes,
    whole_numbers,
)
from ipu_core.frontends.torch.operations.aliases import ALIASES
from ipu_core.frontends.torch.operations.norms import WRITES
from ipu_core.frontends.torch.operations.shapes import PIECES

_TABLES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "elements": {**elementwise.TABLE, **whole_numbers.TABLE}, "shapes": {**shapes.TABLE, **rearranged.TABLE},
    "reductions": reductions.TABLE, "products": products.TABLE,
    "images": {**images.TABLE, **resizing.TABLE, **sampling.TABLE},
    "norms": norms.TABLE, "losses": {**losses.TABLE, **distances.TABLE, **alignments.TABLE},
    "recurrent": recurrent.TABLE, "noise": noise.TABLE, "scatters": scatters.TABLE,
}  # fmt: skip
FAMILIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    family: {**table, **{alias: table[name] for alias, name in ALIASES.items() if name in table}}
    for family, table in _TABLES.items()
}
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    name: function for table in FAMILIES.values() for name, function in table.items()
}
View = tuple[Callable[..., Any], Callable[..., Any] | None]
_VIEWS: Mapping[str, View] = {
    **shapes.VIEWS, "diagonal": (rearranged.diagonal, None), "unfold": (resizing.windows, None),
}  # fmt: skip
VIEWS: Mapping[str, View] = {**_VIEWS, **{alias: _VIEWS[name] for alias, name in ALIASES.items() if name in _VIEWS}}
"""See `shapes.VIEWS`: those of every family, under all their names."""
PARTLY: Mapping[str, str] = {
    "`to`": "of computed floats: integers narrower than int32; `long()` of NaN, and beyond 64 bits, as torch has them",
    "indices that are computed": "those outside of the axis, and negative ones, which take zeros",
    "`index`, `index_put`": "indices of the batch but rows of one axis and `x[arange, rows]`; masks of the batch",
    "`gather`": "an index of the batch that takes a part of the rows",
    "`scatter_add`, `scatter_reduce`": "an index of another shape than the source; products and means; of the largest "
    "or smallest, an index that is another along other axes",
    "`scatter`": "`reduce`; of an index of the batch all but one number; places that repeat",
    "`adaptive_max_pool`": "the places (indices), where they are used",
    "`sort`, `argsort`, `topk`, `argmax`, `max`, `min`": "one number without axes; of integers, more than 2^24",
    "`conv`, `conv_transpose`": "volumes (3d)",
    "`instance_norm`": "running statistics",
    "`embedding`": "`scale_grad_by_freq`, `max_norm`",
    "`embedding_bag`": "`scale_grad_by_freq`, `max_norm`, `padding_idx`; bags that begin where the batch says",
    "`quantile`": "`interpolation`, several shares",
    "`diag_embed`": "another diagonal than that of the last two axes",
    "`upsample`": "volumes (3d), `antialias`",
    "`grid_sampler`, `affine_grid_generator`": "volumes (3d), `mode='bicubic'`, `padding_mode='reflection'`",
    "`lstm`, `gru`, `rnn`": "packed sequences, `proj_size`",
    "`ctc_loss`": "targets of all rows in one array; constant targets that hold the blank or no symbol",
    "`bernoulli`": "a probability for each element",
    "`normal`": "tensors of means and deviations",
    "integers of the batch": "arithmetic with those above 2^24 in magnitude, which are rounded to float32 for it",
}
"""What a supported operation does not do."""

__all__ = ["FAMILIES", "OPERATIONS", "PARTLY", "PIECES", "VIEWS", "WRITES"]
