"""Loss functions of JAX as functions of this library: made a jaxpr once, traced, differentiated and run here.

JAX itself is needed to make the jaxpr and to compute its constants when it is traced; in a training step it draws what
keys of a batch say, where there are such, and gives the rates of optax's schedules.
"""

from ipu_core.frontends.jax.model import JaxModel, from_jax
from ipu_core.frontends.jax.optimizers import from_optax

__all__ = ["JaxModel", "from_jax", "from_optax"]
