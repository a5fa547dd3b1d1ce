"""Data that are made here, with answers that are known: what models of no data set at hand are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipu_core.study.typed import check_name
from ipu_core.train.digests import described, digest
from lowprec.types import Array


@dataclass(frozen=True, eq=False)
class Made:
    """Data made for a model.

    Attributes:
        name: What to call them in tables.
        size: The sizes of model and data, a frozen dataclass.
        arrays: By name.
    """

    name: str
    size: Any
    arrays: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def digest(self) -> str:
        """Of all arrays."""
        return digest(described(dict(self.arrays)))


def sized(sizes: Mapping[str, Any], size: str) -> Any:
    """One of a model's sizes.

    Raises:
        ValueError: no such.
    """
    check_name("size", size, sizes)
    return sizes[size]
