"""What is beside the tiles: channels between them and the host, buffers in streaming memory."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ipu_core.chip.target import Target
from ipu_core.errors import OutOfStreamingMemory
from ipu_core.graph.tensor import element_type
from lowprec import FloatFormat
from lowprec.checks import expect, integer, sizes


@dataclass(frozen=True, eq=False)
class DataStream:
    """A channel between the host and the tiles; `Engine.connect` says what is at the host's end.

    Attributes:
        name: for messages and profiles.
        format: element format.
        shape: shape of one transfer.
        to_device: True for host to device, False for device to host.
    """

    name: str
    format: FloatFormat | str
    shape: tuple[int, ...]
    to_device: bool = True

    def __post_init__(self) -> None:
        expect(str, name=self.name)
        expect(bool, to_device=self.to_device)
        object.__setattr__(self, "format", element_type(self.format)[0])
        object.__setattr__(self, "shape", sizes("shape", self.shape))


@dataclass(frozen=True, eq=False)
class RemoteBuffer:
    """`entries` arrays of one shape in streaming memory, outside the tiles.

    Attributes:
        name: for messages and profiles.
        format: element format.
        shape: shape of one entry.
        entries: how many.
    """

    name: str
    format: FloatFormat | str
    shape: tuple[int, ...]
    entries: int = 1

    def __post_init__(self) -> None:
        expect(str, name=self.name)
        object.__setattr__(self, "format", element_type(self.format)[0])
        object.__setattr__(self, "shape", sizes("shape", self.shape))
        object.__setattr__(self, "entries", integer(f"entries of remote buffer {self.name!r}", self.entries, 1))

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.entries * math.prod(self.shape) * element_type(self.format)[1].itemsize


LARGEST_BUFFERS = 5  # named in a refusal


def check_remote_memory(buffers: Iterable[RemoteBuffer], target: Target) -> None:
    """Refuses remote buffers that streaming memory has no room for.

    Raises:
        OutOfStreamingMemory: with the bytes needed and there, and the largest buffers.
    """
    sizes = sorted(((buffer.name, buffer.nbytes) for buffer in buffers), key=lambda item: -item[1])
    needed = sum(size for _, size in sizes)
    # 0 says that there is no figure: nothing is refused then.
    if target.streaming_memory and needed > target.streaming_memory:
        raise OutOfStreamingMemory(needed, target.streaming_memory, sizes[:LARGEST_BUFFERS])
