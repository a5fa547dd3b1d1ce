"""What numbers are like, what became of changes of them, and what rounding made zero, counted by compiled loops."""

from __future__ import annotations

from lowprec import _kernels

magnitudes = _kernels.magnitudes
changes = _kernels.changes
underflows = _kernels.underflows
"""As the reference's."""
