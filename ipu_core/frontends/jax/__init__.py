"""Loss functions of JAX as functions of this library: made a jaxpr once, traced, differentiated and run here.

JAX itself is needed to make the jaxpr and to compute its constants when it is traced, never in a training step.
"""

from ipu_core.frontends.jax.model import JaxModel, from_jax

__all__ = ["JaxModel", "from_jax"]
