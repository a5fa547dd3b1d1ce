"""Counts of special values, of lost changes and of underflows, by compiled loops."""

from __future__ import annotations

from lowprec import _kernels

magnitudes = _kernels.magnitudes
changes = _kernels.changes
underflows = _kernels.underflows
"""All three as in `lowprec.backends.reference.counting`, which defines them."""
