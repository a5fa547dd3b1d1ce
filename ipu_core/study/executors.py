"""Executors that the command line names: the workers of a cluster."""

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from urllib.parse import urlsplit

from lowprec.extras import optional

SECONDS = 10  # in which a scheduler must answer


@contextmanager
def connected(spec: str | None) -> Iterator[Executor | None]:
    """The executor that an address names, open within the context; None for None.

    Args:
        spec: "dask://HOST:PORT", the address of a running Dask scheduler.

    Raises:
        ValueError: no such address, or nobody answers there.
        ImportError: the package that it needs is not installed.
    """
    if spec is None:
        yield None
        return
    address = _address(spec)
    distributed = optional("distributed", extra="dask")
    for name in ("distributed", "tornado", "asyncio"):  # what fails is said in one line, here or by a point
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=SECONDS)
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {spec} within {SECONDS} seconds") from error
    with client:
        # pure=False: Dask would answer equal calls from its cache, and a point may be trained again on purpose.
        yield client.get_executor(pure=False)


def _address(spec: str) -> str:
    try:
        parts = urlsplit(spec)
        if parts.scheme == "dask" and parts.hostname and parts.port and spec == f"dask://{parts.netloc}":
            return f"tcp://{parts.netloc}"
    except ValueError:  # a port that is none
        pass
    raise ValueError(f"an executor is named by an address such as dask://localhost:8786, not {spec!r}")
