"""Tensors of a captured graph while it runs: values that operations in place replace, also through views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ipu_core.ir.trace.values import Value


class TensorView(NamedTuple):
    """A view: how a tensor shows another one, its base."""

    base: Slot
    show: Callable[[Value], Value]
    """From the base's value to the view's."""
    put: Callable[[Value, Value], Value] | None
    """From the base's value and a new one of the view to a new value of the base; None: nothing may be written."""


class Slot:
    """A tensor: its value now, and of which it is a view.

    Args:
        value: of the tensor.
        view: how it shows another one; None: it is none.
        fixed: why nothing may write to it; "": it may.

    Attributes:
        written: whether an operation in place wrote to it, or to what it is a view of.
    """

    def __init__(self, value: Value, view: TensorView | None = None, fixed: str = "") -> None:
        self._value, self._view, self._fixed = value, view, fixed
        # set before _version is asked, which reads it
        self._changes = self._seen = 0
        self._seen = self._version()
        self.written = False

    def _version(self) -> int:
        return self._changes + (self._view.base._version() if self._view else 0)

    def read(self) -> Value:
        """The value, after all that was written until now."""
        # shown again only when the base changed: each time would trace the view once more
        if self._view is not None and self._seen != self._version():
            self._value, self._seen = self._view.show(self._view.base.read()), self._version()
        return self._value

    def write(self, value: Value) -> None:
        """Replaces the value, and that of what it is a view of.

        Raises:
            NotImplementedError: a view that nothing can be written through.
        """
        self.touch()
        if self._view is None:
            self._value = value
            self._changes += 1
        elif self._view.put is None:
            raise NotImplementedError("writes in place through a view of this kind")
        else:
            self._view.base.write(self._view.put(self._view.base.read(), value))

    def touch(self) -> None:
        """Notes that something was written.

        Raises:
            NotImplementedError: nothing may be.
        """
        if self._fixed:
            raise NotImplementedError(self._fixed)
        self.written = True
        if self._view is not None:
            self._view.base.touch()


def read(value: Any) -> Any:
    """Values for slots, in lists and tuples too."""
    if isinstance(value, Slot):
        return value.read()
    return type(value)(read(x) for x in value) if isinstance(value, list | tuple) else value
