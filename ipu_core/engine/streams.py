"""The host's ends: what is connected to data streams, and the arrays of remote buffers in streaming memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import element_type
from lowprec import FloatFormat, astype
from lowprec.arrays import whole_array
from lowprec.checks import expect

Receive = Callable[[], NDArray[Any]]
Send = Callable[[NDArray[Any]], None]


def as_elements(what: str, values: Any, fmt: FloatFormat | str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Host values as elements of a format: floats rounded to nearest by the format's own rules, integers unchanged.

    Raises:
        ValueError: wrong shape, or values an integer format does not hold.
        TypeError: values that are no numbers.
    """
    given = whole_array(values)
    if given.shape != shape:
        raise ValueError(f"{what} takes shape {shape}, not {given.shape}")
    dtype = element_type(fmt)[1]
    if given.dtype == dtype:
        return given
    if isinstance(fmt, FloatFormat):
        # `astype` takes no truth values.
        return np.asarray(astype(given if given.dtype.kind != "b" else given.astype(np.int8), fmt))
    if given.dtype.kind not in "biu":
        raise TypeError(f"{what} takes {dtype}, not {given.dtype}")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if given.size and (int(given.min()) < least or int(given.max()) > most):
        raise ValueError(f"{what}: values {given.min()}..{given.max()} do not fit {dtype}")
    return given.astype(dtype)


class HostEnds:
    """Connections of streams and storage of remote buffers of one engine."""

    def __init__(self) -> None:
        self._receive: dict[DataStream, Receive] = {}
        self._send: dict[DataStream, Send] = {}
        self._remote: dict[RemoteBuffer, NDArray[Any]] = {}

    def connect(self, stream: DataStream, host: Any) -> None:
        """Connects the host's end (see `Engine.connect`)."""
        expect(DataStream, stream=stream)
        if stream.to_device:
            self._receive[stream] = _source(stream, host)
        else:
            self._send[stream] = _sink(stream, host)

    def receive(self, stream: DataStream) -> NDArray[Any]:
        """One transfer from the host."""
        if stream not in self._receive:
            raise ValueError(f"stream {stream.name!r} is not connected: engine.connect(stream, array or callable)")
        values = self._receive[stream]()
        return as_elements(f"stream {stream.name!r}", values, stream.format, stream.shape)

    def send(self, stream: DataStream, values: NDArray[Any]) -> None:
        """One transfer to the host."""
        if stream not in self._send:
            raise ValueError(
                f"stream {stream.name!r} is not connected: engine.connect(stream, list, array or callable)"
            )
        self._send[stream](values)

    def remote(self, buffer: RemoteBuffer) -> NDArray[Any]:
        """A remote buffer's memory: entries along the first axis."""
        expect(RemoteBuffer, buffer=buffer)
        if buffer not in self._remote:
            dtype = element_type(buffer.format)[1]
            self._remote[buffer] = np.zeros((buffer.entries, *buffer.shape), dtype)
        return self._remote[buffer]


def _source(stream: DataStream, host: Any) -> Receive:
    if callable(host):
        call: Receive = host
        return call
    if isinstance(host, Iterator):

        def following() -> NDArray[Any]:
            try:
                return np.asarray(next(host))
            except StopIteration:
                raise EOFError(f"stream {stream.name!r}: the host's iterator has no more transfers") from None

        return following
    # Converted once, when it is connected, and not at every transfer.
    values = as_elements(f"stream {stream.name!r}", host, stream.format, stream.shape)
    return lambda: values


def _sink(stream: DataStream, host: Any) -> Send:
    if callable(host):
        call: Send = host
        return call
    if isinstance(host, list):
        return host.append
    if isinstance(host, np.ndarray) and host.shape == stream.shape:

        def fill(values: NDArray[Any]) -> None:
            host[...] = values

        return fill
    raise TypeError(f"stream {stream.name!r} sends to a callable, a list or an array of shape {stream.shape}")
