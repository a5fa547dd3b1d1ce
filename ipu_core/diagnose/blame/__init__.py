"""Why a run in low precision learns less than in float32: the equation, the cause, and what brings the loss back."""

from ipu_core.diagnose.blame.layers import Cheapest, Sensitivity, cheapest, sensitivity
from ipu_core.diagnose.blame.report import Blame, Culprit
from ipu_core.diagnose.blame.search import blame

__all__ = ["Blame", "Cheapest", "Culprit", "Sensitivity", "blame", "cheapest", "sensitivity"]
