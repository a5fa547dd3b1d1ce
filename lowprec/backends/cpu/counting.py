"""What float32 numbers are like, counted by the compiled loop."""

from __future__ import annotations

from lowprec import _kernels

magnitudes = _kernels.magnitudes
"""As the reference's."""
