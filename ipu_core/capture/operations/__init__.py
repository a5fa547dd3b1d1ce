"""The table from operations of torch (aten) to functions of the values here, one line each.

A function takes the call and all arguments in the order of torch's schema. A name with an overload ("max.dim") comes
before the bare name; operations in place ("add_") are those without the underscore, and a write.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ipu_core.capture.operations import elementwise, images, losses, norms, products, recurrent, reductions, shapes
from ipu_core.capture.operations.norms import WRITES
from ipu_core.capture.operations.shapes import PIECES, VIEWS

FAMILIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "elements": elementwise.TABLE, "shapes": shapes.TABLE, "reductions": reductions.TABLE,
    "products": products.TABLE, "images": images.TABLE, "norms": norms.TABLE, "losses": losses.TABLE,
    "recurrent": recurrent.TABLE,
}  # fmt: skip
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    name: function for table in FAMILIES.values() for name, function in table.items()
}

__all__ = ["FAMILIES", "OPERATIONS", "PIECES", "VIEWS", "WRITES"]
