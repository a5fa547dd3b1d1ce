"""The instruction set of the compiled loops, and the fast paths that they take, as contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lowprec import _kernels
from lowprec.checks import expect


def isa_names() -> list[str]:
    """The instruction sets this machine can run, worst first."""
    return _kernels.isa_names()


@contextmanager
def isa(name: str) -> Iterator[None]:
    """Within the context, the compiled loops are those of the named instruction set (for the whole process).

    Raises:
        TypeError: no name.
        ValueError: not one of `isa_names()`.
    """
    expect(str, name=name)
    before = _kernels.isa()
    _kernels.set_isa(name)
    try:
        yield
    finally:
        _kernels.set_isa(before)


def path_names() -> list[str]:
    """The fast paths that can be switched off."""
    return _kernels.path_names()


@contextmanager
def without(*paths: str) -> Iterator[None]:
    """Within the context, these fast paths are not taken either (in the whole process): the same bits, more slowly.

    Those that the environment variable LOWPREC_WITHOUT names, with commas between them, are not taken from the import
    on, which fails where it names another.

    Raises:
        TypeError: no name.
        ValueError: not one of `path_names()`.
    """
    expect(str, **{f"path {number}": path for number, path in enumerate(paths)})
    before = _kernels.paths_off()
    # Those that are off already stay off: contexts may lie in each other.
    _kernels.set_paths_off([*before, *paths])
    try:
        yield
    finally:
        _kernels.set_paths_off(before)
