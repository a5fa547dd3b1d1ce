"""The primitives of JAX that a captured function may use: names -> functions of (call, operands)."""

from ipu_core.frontends.jax.operations import elementwise, moves, orders, products, scatters

OPERATIONS = {**elementwise.TABLE, **moves.TABLE, **products.TABLE, **scatters.TABLE, **orders.TABLE}

IN_FLOAT32 = {"exp", "exp2", "expm1", "log", "log1p", "div", "sqrt", "rsqrt", "reduce_sum", "cumsum", "cumprod"}
"""What softmaxes, norms and losses are made of, whose places in a jaxpr nothing tells: float32 in every precision."""
