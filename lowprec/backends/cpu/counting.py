"""What numbers are like and what became of changes of them, counted by the compiled loops."""

from __future__ import annotations

from lowprec import _kernels

magnitudes = _kernels.magnitudes
changes = _kernels.changes
"""As the reference's."""
