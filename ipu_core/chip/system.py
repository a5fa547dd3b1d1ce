"""Systems as data: how many chips, how they are linked, what their hosts give; each figure with its source.

Sources as in `ipu_core.chip.target`; [S] Graphcore's talks; [model] an assumption of ours, said where it stands.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ipu_core.chip.target import CHIPS, Target
from ipu_core.errors import Unvalidated
from lowprec.checks import expect, integer, number, shown

_COMMON: Final[dict[str, Any]] = {
    "rack": 64,  # [S] IPU-Links make a 2D torus within a POD64
    "machine": 4,  # [S] an M2000 or a Bow-2000
    "link_rate": 128 * 2**30 / 8,  # [PL] the planner's 128 Gibit/s of a link, each way; ten are published as 160 GB/s
    "link_efficiency": 0.85,  # [PL] the planner's
    "links_of_ring": 2,  # [model] to a neighbour in the torus lead two of the ten links: the x16 of the talks, 32 GB/s
    "link_latency": 0.0,  # [open] of a hop, beside the sync that every message has
    "gateway_bandwidth": 25e9,  # [S] 2 x 100 Gb/s for four chips
    "gateway_latency": 0.0,  # [open] beside the sync
    "sync_hop": 15e-9,  # [PL] of a hop of the sync across chips
    "host_samples_per_second": 0.0,  # depends on the data and on the hosts: given, or not known
}

_GOOD: Final[dict[str, Any]] = {
    "macs": (("float16", "float16", 232), ("float16", "float32", 116), ("float32", "float32", 58)),  # [derived]
    "host_port": 1.25e12,  # [derived] more than 10 PB/s of memory for 8,192 chips
    "streaming_share": 1.25e12,  # [derived] the same
    "streaming_memory": 488_000_000_000,  # [derived] up to 4 PB for 8,192 chips
}
"""Of a chip of the "Good" computer: a Bow that reaches what was announced, more than 10 EFLOP/s from 8,192 chips."""

_CARD: Final[dict[str, Any]] = {"rack": 2, "machine": 2, "gateway_bandwidth": 0.0}  # [WP] two chips on a card
_PODS: Final = {
    **{f"pod{count}": ("gc200", count) for count in (4, 16, 64, 128, 256)},
    **{f"bow-pod{count}": ("bow", count) for count in (16, 32, 64, 128, 256, 512, 1024)},
}
_SYSTEMS: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "c2": ("gc2", 2, _CARD),
    "m2000": ("gc200", 4, {}),
    "bow-2000": ("bow", 4, {}),
    **{name: (chip, count, {}) for name, (chip, count) in _PODS.items()},
    "good": ("bow", 8192, {}),
}

SYSTEMS: Final = tuple(_SYSTEMS)
GOOD_WORDS: Final = (
    "the Good computer is a roadmap: its chips' generation was announced without figures, and a Bow is taken whose "
    "units and memory reach the sums that were (more than 10 EFLOP/s, up to 4 PB at more than 10 PB/s)"
)
_MAY_BE_ZERO: Final = ("link_latency", "gateway_bandwidth", "gateway_latency", "sync_hop", "host_samples_per_second")
_COUNTS: Final = ("chips", "rack", "machine", "links_of_ring")


@dataclass(frozen=True, init=False)
class System:
    """Chips, links, gateways and hosts by name, with any figure replaced: ``System("bow-pod64", link_latency=1e-6)``.

    A keyword that is a figure of a chip changes all its chips: ``System("bow-pod16", clock=1.5e9)``. What a `Target`
    answers it answers for all chips together.

    Attributes:
        name: one of SYSTEMS; of a Target, or of a chip's name, a system of one that is named as the chip.
        target: each of its chips.
        chips: how many.
        rack: chips that IPU-Links reach, as a 2D torus; beyond, messages take gateways.
        machine: chips of one machine, which share a host port and gateway links.
        link_rate: bytes per second each way of one of a chip's ten links.
        link_efficiency: the share of it that messages get, above 0 to 1.
        links_of_ring: links of a chip that lead to one of its neighbours in the torus, so that a ring has as many in
            each direction.
        link_latency, gateway_latency: seconds of a message's hop, beside the sync that it waits for.
        gateway_bandwidth: bytes per second each way of a machine to other racks; 0: it has no gateways.
        sync_hop: seconds of a hop of the sync across chips, see `sync_seconds`.
        host_samples_per_second: samples that all hosts together can prepare, 0: not known. It is a figure of the data
            and the hosts, which no account here derives.

    Raises:
        ValueError: unknown name, a figure out of range, chips beyond a rack without gateways.
        TypeError: unknown keyword, or a figure that is no number of its kind.

    It warns with `Unvalidated` of "good", which was never built.
    """

    name: str
    target: Target
    chips: int
    rack: int
    machine: int
    link_rate: float
    link_efficiency: float
    links_of_ring: int
    link_latency: float
    gateway_bandwidth: float
    gateway_latency: float
    sync_hop: float
    host_samples_per_second: float

    def __init__(self, name: str | Target = "bow-pod16", **changes: Any) -> None:
        own = [field.name for field in fields(self)][2:]
        of_chip = [field.name for field in fields(Target)][1:]
        if unknown := [key for key in changes if key not in own and key not in of_chip and key != "target"]:
            raise TypeError(
                f"System has no figure {unknown[0]!r}; it has target, {', '.join(own)}, and those of a Target"
            )
        called, target, figures = _named(name)
        chip = changes.pop("target", target)
        expect(Target, target=chip)
        of_target = {key: value for key, value in changes.items() if key in of_chip}
        given = {**figures, **{key: value for key, value in changes.items() if key in own}}
        if called in CHIPS and "machine" not in changes:
            # As such chips are sold: their gateways are shared, whoever names the chips alone.
            most = _CARD["machine"] if called == "gc2" else _COMMON["machine"]
            given["machine"] = min(most, integer("chips", given["chips"], 1))
        object.__setattr__(self, "name", called)
        object.__setattr__(self, "target", replace(chip, **of_target) if of_target else chip)
        for field in own:
            object.__setattr__(self, field, _checked(field, given[field]))
        if 0 < self.target.link_bandwidth < (ring := self.links_of_ring * self.link_rate):
            raise ValueError(
                f"{self.links_of_ring} links of {self.link_rate:g} bytes a second to a neighbour are {ring:g}, more "
                f"than all of a chip's together: link_bandwidth={self.target.link_bandwidth:g}"
            )
        if self.chips > self.rack and not self.gateway_bandwidth:
            raise ValueError(
                f"{self.chips:,} chips are more than a rack of {self.rack:,}, and there are no gateways to others: "
                "gateway_bandwidth="
            )
        if called == "good":
            warnings.warn(GOOD_WORDS, Unvalidated, stacklevel=2)

    @property
    def racks(self) -> int:
        """How many racks they stand in."""
        return -(-self.chips // self.rack)

    @property
    def neighbour_bandwidth(self) -> float:
        """Bytes per second each way between a chip and one neighbour in the torus; 0: its chips have no links."""
        return self.links_of_ring * self.link_rate * self.link_efficiency if self.target.link_bandwidth else 0.0

    @property
    def gateway_share(self) -> float:
        """Bytes per second each way to other racks, one chip's share of its machine's."""
        return self.gateway_bandwidth / self.machine

    def sync_seconds(self, chips: int | None = None) -> float:
        """Seconds of a sync across so many chips, all if None: `sync_hop` x (1 + chips/4) x 2 [PL]; 0 for one chip.

        Raises:
            ValueError: more than there are, or fewer than one.
        """
        count = self.chips if chips is None else integer("chips", chips, 1, self.chips)
        return 0.0 if count == 1 else self.sync_hop * (1 + count / 4) * 2

    def peak_flops(self, operands: str, partials: str) -> float:
        """Peak floating-point operations per second of all chips, as `Target.peak_flops`.

        Raises:
            UnsupportedByTarget: the chips have no such mode.
        """
        return self.chips * self.target.peak_flops(operands, partials)

    @property
    def family(self) -> str:
        """The chips' generation."""
        return self.target.family

    @property
    def memory(self) -> int:
        """Bytes of tile memory."""
        return self.chips * self.target.memory

    @property
    def streaming_memory(self) -> int:
        """Bytes of streaming memory, as systems are commonly equipped; 0: the hosts', without a figure."""
        return self.chips * self.target.streaming_memory

    @property
    def streaming_bandwidth(self) -> float:
        """Bytes per second between all chips and their streaming memory."""
        return self.chips * self.target.streaming_bandwidth

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second each way between all chips and their hosts."""
        return self.chips * self.target.host_bandwidth

    @property
    def sram_bandwidth(self) -> float:
        """Bytes per second between tiles' memories and their registers, all chips."""
        return self.chips * self.target.sram_bandwidth

    @property
    def exchange_bandwidth(self) -> float:
        """Bytes per second of exchanges within the chips, all of them."""
        return self.chips * self.target.exchange_bandwidth

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second each way of all chips' links, as published; a ring has `neighbour_bandwidth` of a chip's."""
        return self.chips * self.target.link_bandwidth

    @property
    def power(self) -> tuple[float, float]:
        """Watts, the least and the most: the chips' shares of their machines."""
        least, most = self.target.power
        return self.chips * least, self.chips * most

    def seconds(self, cycles: float) -> float:
        """Cycles of a chip as seconds."""
        return self.target.seconds(cycles)


def read_system(text: str) -> System:
    """A system as it is typed: its name and any figures that are one number or word, as in "bow-pod64/chips=4".

    Raises:
        ValueError: no such system or figure, or a figure out of range; the text is named.
    """
    name, *words = text.split("/")
    figures: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not (key and mark) or key in (*figures, "name"):
            raise ValueError(f"{text}: a figure is typed once, as in bow-pod64/chips=4, not as {word!r}")
        figures[key] = _typed(value)
    try:
        return System(name, **figures)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text}: {error}" if words else str(error)) from None


def read_chips(text: str) -> Target | System:
    """The same, but a chip's name and figures of a chip are a Target: "bow/tiles=736", but "bow/chips=2" a System."""
    name, *words = text.split("/")
    of_chip = {field.name for field in fields(Target)}
    system = read_system(text)
    return system.target if name in CHIPS and {word.partition("=")[0] for word in words} <= of_chip else system


def _typed(text: str) -> int | float | str:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def _named(name: Any) -> tuple[str, Target, dict[str, Any]]:
    """(name, chip, figures) of what a System is made from."""
    if isinstance(name, Target):
        return name.name, name, {**_COMMON, "chips": 1, "machine": 1}
    if not isinstance(name, str) or name not in (*_SYSTEMS, *CHIPS):
        raise ValueError(
            f"unknown system {shown(name)}; valid systems are {', '.join((*SYSTEMS, *CHIPS))}, or a Target"
        )
    if name in CHIPS:
        return name, Target(name), {**_COMMON, "chips": 1, "machine": 1}
    chip, chips, changes = _SYSTEMS[name]
    target = Target(chip, **(_GOOD if name == "good" else {}))
    return name, target, {**_COMMON, "chips": chips, **changes}


def _checked(name: str, value: Any) -> Any:
    """A figure as a plain int or float.

    Raises:
        TypeError: another kind.
        ValueError: out of range.
    """
    if name in _COUNTS:
        return integer(name, value, 1)
    rate, zero = number(name, value), name in _MAY_BE_ZERO
    if not math.isfinite(rate) or rate < 0 or (rate == 0 and not zero):
        raise ValueError(f"{name} must be {'0 or ' if zero else ''}positive, not {value!r}")
    if name == "link_efficiency" and rate > 1:
        raise ValueError(f"link_efficiency must be a share, at most 1, not {value!r}")
    return rate
