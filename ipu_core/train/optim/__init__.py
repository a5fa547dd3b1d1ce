"""Optimizers as traced functions from (parameters, gradients, state, lr) to the new ones: Sgd, Lars, Asgd, Adam, AdamW,
NAdam, RAdam, Adamax, Lamb, RmsProp, Adagrad, Adadelta, Adafactor, Lion, Rprop.

The arithmetic is float32; weights and moments are stored in the formats the precision says. The one equation that
writes a weight is `scaled_add(weight, direction, scale)` with role "update".
"""

from typing import TYPE_CHECKING

from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from ipu_core.train.optim.adafactor import Adafactor
    from ipu_core.train.optim.adam import Adam, AdamW, Lamb
    from ipu_core.train.optim.adam_kinds import Adamax, NAdam, RAdam
    from ipu_core.train.optim.adaptive import Adadelta, Adagrad, RmsProp
    from ipu_core.train.optim.common import Exclude, Group, Optimizer, nothing, vectors
    from ipu_core.train.optim.sgd import Asgd, Lars, Sgd
    from ipu_core.train.optim.signs import Lion, Rprop

__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Asgd",
    "Exclude",
    "Group",
    "Lamb",
    "Lars",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RmsProp",
    "Rprop",
    "Sgd",
    "nothing",
    "vectors",
]

# A study loads the optimizer that it takes before its bars are there, and no other.
__getattr__ = lazy_names(
    __name__,
    {
        "adafactor": "Adafactor",
        "adam": "Adam AdamW Lamb",
        "adam_kinds": "Adamax NAdam RAdam",
        "adaptive": "Adadelta Adagrad RmsProp",
        "common": "Exclude Group Optimizer nothing vectors",
        "sgd": "Asgd Lars Sgd",
        "signs": "Lion Rprop",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
