"""Plans of convolutions and of their weight gradients: the order of their sums, and the cheapest cut of both."""

from ipu_core.plan.convolution.plan import ConvPlan, plan_convolution
from ipu_core.plan.convolution.sizes import Convolution, ConvPlacement

__all__ = ["ConvPlacement", "ConvPlan", "Convolution", "plan_convolution"]
