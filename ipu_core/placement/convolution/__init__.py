"""Plans of convolutions and of their weight gradients: the order of their sums, and the cheapest cut of both."""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.placement.convolution.conv_plan import ConvPlan, plan_convolution
    from ipu_core.placement.convolution.sizes import Convolution, ConvPlacement

__all__ = ["ConvPlacement", "ConvPlan", "Convolution", "plan_convolution"]

# The rule of orders reads sizes alone: the search is loaded when a plan is asked for.
__getattr__ = lazy_names(__name__, {"conv_plan": "ConvPlan plan_convolution", "sizes": "Convolution ConvPlacement"})
