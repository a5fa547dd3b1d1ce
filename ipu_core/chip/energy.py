"""Energy of modelled time: seconds times the power that was published, as a range, and what counts say of it.

Joules are never made from counts alone: the published picojoules of products and memories add up to a fifth to a third
of what these machines draw. So counts give parts of the total, and the rest is named as what it is.

Sources: [M2000] typical power of an M2000 (0.8 to 1.2 kW), [Bow] average of a Bow-2000 (1.25 kW), a quarter for each
of four chips; [C600] its data sheet; [2017] Graphcore's talk; [H] Horowitz, ISSCC 2014, 45 nm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lowprec.checks import number

POWER: Final[Mapping[str, tuple[float, float]]] = {
    "gc2": (120.0, 120.0),  # [2017] two to a card of 240 W
    "gc200": (200.0, 300.0),  # [M2000] / 4
    "bow": (312.5, 312.5),  # [Bow] / 4
    "c600": (185.0, 185.0),  # [C600]
}
"""Watts of a chip's share of its machine, least and most."""

UNVALIDATED_POWER: Final[Mapping[str, str]] = {
    "gc2": "a GC2's 120 W are the 2017 talk's word for a half of a card of 240 W, and no measurement",
}

PICOJOULES: Final[Mapping[str, float]] = {
    "float8": 1.5,  # no source: as of halves
    "float16": 1.5,  # [H] multiply 1.1, add 0.4
    "float32": 4.6,  # [H] multiply 3.7, add 0.9
    "tile memory": 1.25,  # [H] 10 pJ for 64 bits of 8 KB
    "streaming": 243.75,  # [H] DRAM, 1.3 to 2.6 nJ for 64 bits
}
"""Of a multiply-accumulate of a format, or of a byte that moves; exchange and links have no source and no row."""

_ALSO: Final = ("exchange", "links")
REST: Final = "all else"


@dataclass(frozen=True)
class Energy:
    """Joules of a modelled time.

    Attributes:
        seconds: as modelled.
        watts: of the chip's share of its machine, least and most.
        parts: picojoules by what counts say of it; the last is `REST`, of the least total: instructions, clocks,
            leakage, the machine's share, what the table has no row for. They add up to `picojoules` exactly.
        picojoules: of the least total.
    """

    seconds: float
    watts: tuple[float, float]
    parts: tuple[tuple[str, int], ...]
    picojoules: int

    @property
    def joules(self) -> tuple[float, float]:
        """Least and most."""
        return self.seconds * self.watts[0], self.seconds * self.watts[1]

    def words(self, of: str, times: float = 1) -> str:
        """In words, so many times as much."""
        low, high = (joules * times for joules in self.joules)
        power = f"{self.watts[0]:g}" if low == high else f"{self.watts[0]:g} to {self.watts[1]:g}"
        amount = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        total = max(1, self.picojoules)
        shares = ", ".join(f"{name} {part / total:.0%}" for name, part in self.parts if part)
        lacking = [name for name in _ALSO if name not in dict(self.parts)]
        without = f"{' and '.join(lacking)} without a figure, " if lacking else ""
        rest = f"{without}instructions, clocks, leakage, the machine's share"
        return f"energy: {amount} J {of} at {power} W; of the least, by counts: {shares} ({rest})"


def energy_of(
    seconds: float, watts: tuple[float, float], counts: Mapping[str, int], table: Mapping[str, float] = PICOJOULES
) -> Energy:
    """The energy of a time, with the parts that counts explain.

    Args:
        seconds: as modelled.
        watts: least and most.
        counts: multiply-accumulates by format and bytes by where they move, as in the table.
        table: picojoules of each; what it has no row for is left to the rest.

    Raises:
        ValueError: counts that take more than the least total, which a wrong table or power does.
    """
    total = round(seconds * watts[0] * 1e12)
    parts = [(name, round(count * table[name])) for name, count in counts.items() if name in table]
    rest = total - sum(part for _, part in parts)
    if rest < 0:
        taken = sum(part for _, part in parts) / 1e12
        raise ValueError(
            f"counts take {taken:g} J of {total / 1e12:g}: the picojoules are too many, or the watts too few"
        )
    return Energy(seconds, watts, (*parts, (REST, rest)), total)


def checked_table(given: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """A user's picojoules, over the published ones.

    Raises:
        ValueError, TypeError: a row that there is not, or no number of at least 0.
    """
    known = (*PICOJOULES, *_ALSO)
    if not isinstance(given, Mapping):
        raise TypeError(f"energy must be picojoules by name, one of {', '.join(known)}, not {given!r}")
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"there is no energy of {name!r}; there are {', '.join(known)}")
        if not 0 <= number(f"energy[{name!r}]", value) < float("inf"):
            raise ValueError(f"energy[{name!r}] must be picojoules, 0 or more, not {value!r}")
    return tuple(sorted((name, float(value)) for name, value in {**PICOJOULES, **given}.items()))
