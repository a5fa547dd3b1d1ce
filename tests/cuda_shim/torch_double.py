"""The few names of torch that lowprec uses of tensors on a GPU, over CuPy's double: views of bits, and DLPack."""

from __future__ import annotations

import numpy as np

import lowprec as lp
from tests.cuda_shim.cupy_double import ndarray

NAMES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64")
NAMES += ("uint8", "uint16", "bool")


class dtype:
    """As torch's, which print as torch.float16."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


for _name in NAMES:
    globals()[_name] = dtype(_name)


class Tensor:
    """A tensor on a GPU: memory of CuPy's double, and a dtype of its own."""

    is_cuda = True
    requires_grad = False

    def __init__(self, array: ndarray, kind: dtype) -> None:
        self.codes, self.dtype = array, kind

    def element_size(self) -> int:
        return int(self.codes.itemsize)

    def view(self, kind: dtype) -> Tensor:
        return Tensor(self.codes, kind)

    def __dlpack__(self) -> ndarray:
        wanted = lp.formats[self.dtype.name].dtype if self.dtype.name in lp.formats else np.dtype(self.dtype.name)
        return self.codes.view(wanted)


def from_dlpack(x: ndarray) -> Tensor:
    assert x.dtype.isbuiltin == 1, f"torch may not know {x.dtype}"
    return Tensor(x, globals()[x.dtype.name])
