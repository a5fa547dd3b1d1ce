"""Optimizers as traced functions from (parameters, gradients, state, lr) to the new ones: Sgd, Lars, Adam, AdamW,
Lamb, RmsProp, Adagrad, Lion.

The arithmetic is float32; weights and moments are stored in the formats the precision says. The one equation that
writes a weight is `scaled_add(weight, direction, scale)` with role "update".
"""

from ipu_core.train.optim.adam import Adam, AdamW, Lamb
from ipu_core.train.optim.adaptive import Adagrad, Lion, RmsProp
from ipu_core.train.optim.common import Exclude, Group, Optimizer, nothing, vectors
from ipu_core.train.optim.sgd import Lars, Sgd

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "Exclude",
    "Group",
    "Lamb",
    "Lars",
    "Lion",
    "Optimizer",
    "RmsProp",
    "Sgd",
    "nothing",
    "vectors",
]
