"""What the equations behind the steps of a program compute: their arithmetic, memory traffic, layer and source line."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ipu_core.chip.target import Target
from ipu_core.engine.steps import StepAccount
from ipu_core.errors import UnsupportedByTarget


class Work(NamedTuple):
    """What one equation computes in one execution.

    Attributes:
        role: such as forward or update; of what looks whether a step's gradients are to be trusted guard.
        operation: such as dot.
        layer: dotted name of the part of the model it belongs to, or of the module of its parameter; "": none.
        source: line of the user's code that asked for it, as "model.py:41"; "": no line of a user's.
        flops: floating-point operations: two for each multiply-accumulate of a product or convolution, one for each
            element of an elementwise result, one for each element that a sum or maximum reads; moves have none.
        bytes: of tile memory, every operand read once and the result written once [model].
        formats: (operands, partials) by which `Target.peak_flops` knows the matrix unit's rate for it.
    """

    role: str
    operation: str
    layer: str
    source: str
    flops: int
    bytes: int
    formats: tuple[str, str]

    def seconds(self, target: Target) -> float | None:
        """Seconds that the arithmetic takes at the peak of its formats; None: the target has no figure for them."""
        try:
            return self.flops / target.peak_flops(*self.formats)
        except UnsupportedByTarget:
            return None


Works = Mapping[str, Work]
"""What is computed, by the equation's name, with which the names of its steps begin."""


def label_of(name: str, labels: Mapping[str, object]) -> str | None:
    """The longest label that a step's name begins with, up to a colon; None: there is none."""
    while name not in labels and ":" in name:
        name = name.rpartition(":")[0]
    return name if name in labels else None


def equations_of_steps(accounts: Sequence[StepAccount], works: Works) -> tuple[tuple[str, ...], ...]:
    """The equations that each step does, by name."""
    found = []
    for account in accounts:
        names = (label_of(name, works) for name in account.joined or (account.name,))
        found.append(tuple(dict.fromkeys(name for name in names if name is not None)))
    return tuple(found)


def counted_in_steps(accounts: Sequence[StepAccount], done: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The equations whose work counts in each step: every one once, in that of its steps that computes longest."""
    longest: dict[str, int] = {}
    for number, names in enumerate(done):
        for name in names:
            before = longest.setdefault(name, number)
            if accounts[number].compute_cycles > accounts[before].compute_cycles:
                longest[name] = number
    return tuple(tuple(name for name in names if longest[name] == number) for number, names in enumerate(done))
