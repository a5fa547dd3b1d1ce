"""Why a run in low precision learns less than in float32: the equation, the cause, and what brings the loss back."""

from ipu_core.study.blame.blame import blame
from ipu_core.study.blame.report import Blame, Culprit

__all__ = ["Blame", "Culprit", "blame"]
