"""What a collective costs on a system's links: messages one after another, each its latency and its bytes over a rate.

The forms are ASTRA-sim's, message by message (Ring.cc), and add up to Calculon's closed one (network.py):
latency + 2(n - 1)/n S / bandwidth for an all-reduce by a ring. What a collective *computes* is said by the order of its
sums and not here. Assumptions, each [model]:

- The members of a group are neighbours in the torus, each `stride` chips from the next, and groups side by side (the
  stages of a pipeline) have rings of their own: none waits for another's links.
- A ring takes the links of a chip to one neighbour in each direction (`System.neighbour_bandwidth`), a ring pair both
  directions at once, as links do; the other links idle.
- A message is a superstep: it begins with a sync of the chips of the group, and of those between them.
- Between racks every chip has its share of its machine's gateway links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ipu_core.chip.system import System
from ipu_core.errors import UnsupportedByTarget
from lowprec.checks import expect, integer, shown
from lowprec.values.collective import ALGORITHMS

TREES: Final = ("all_reduce", "broadcast")
"""What a tree is for: it leaves nobody a part."""


@dataclass(frozen=True)
class Phase:
    """Messages of one size, one after another, by all members at once.

    Attributes:
        name: what it does and over what.
        messages: how many follow each other.
        size: bytes of each.
        bandwidth: bytes per second.
        latency: seconds of each before its first byte.
        sent: messages that the busiest chip sends, in both directions together.
        gateways: whether they pass between racks.
    """

    name: str
    messages: int
    size: float
    bandwidth: float
    latency: float
    sent: int
    gateways: bool = False

    @property
    def seconds(self) -> float:
        """Of all its messages."""
        return self.messages * (self.latency + self.size / self.bandwidth)


@dataclass(frozen=True)
class CollectiveCost:
    """What a collective costs.

    Attributes:
        kind: "all_reduce", "reduce_scatter", "all_gather" or "broadcast".
        algorithm: one of ALGORITHMS.
        chips: members of the group.
        racks: in how many racks they stand.
        size: bytes of the whole: what each member has before a reduction, or after a gathering or broadcast.
        phases: in order; none for a group of one.
    """

    kind: str
    algorithm: str
    chips: int
    racks: int
    size: int
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """From the first message to the last."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def messages(self) -> int:
        """How many follow each other."""
        return sum(phase.messages for phase in self.phases)

    @property
    def link_bytes(self) -> float:
        """Bytes that the busiest chip sends over IPU-Links."""
        return sum(phase.sent * phase.size for phase in self.phases if not phase.gateways)

    @property
    def gateway_bytes(self) -> float:
        """Bytes that the busiest chip sends to other racks."""
        return sum(phase.sent * phase.size for phase in self.phases if phase.gateways)

    def words(self) -> str:
        """In a line."""
        racks = f" in {self.racks} racks" if self.racks > 1 else ""
        parts = ", ".join(f"{1e3 * phase.seconds:.3f} ms {phase.name}" for phase in self.phases) or "nothing to send"
        return f"{self.kind} of {self.size:,} bytes by {self.chips} chips{racks}, {self.algorithm}: {parts}"


def all_reduce(
    system: System, size: int, chips: int | None = None, *, stride: int = 1, algorithm: str | None = None,
    members: int | None = None,
) -> CollectiveCost:  # fmt: skip
    """Everybody has the sum of all vectors of `size` bytes.

    By a ring 2(n - 1) messages of size/n; by a ring pair as many each way, each half as large; by a tree 2 ceil(log2 n)
    messages of the whole; on two levels a reduce-scatter within the rack, an all-reduce of the shards across racks, an
    all-gather within the rack, each by a ring.

    Args:
        system: with links.
        size: bytes of a chip's vector.
        chips: members; None: all chips.
        stride: chips from one member to the next, such as the stages of a pipeline.
        algorithm: one of ALGORITHMS; None: "ring_pair", or "two_level" where the group stands in several racks.
        members: of two levels, chips of an inner ring; None: those in a rack.

    Raises:
        ValueError: an algorithm that there is not, more members than there are chips, inner rings that do not divide
            them.
        UnsupportedByTarget: chips without links.
    """
    return _made("all_reduce", system, size, chips, stride, algorithm, members)


def reduce_scatter(
    system: System, size: int, chips: int | None = None, *, stride: int = 1, algorithm: str | None = None,
    members: int | None = None,
) -> CollectiveCost:  # fmt: skip
    """Everybody has one part of the sum of all vectors of `size` bytes: arguments and errors as `all_reduce`.

    By a ring n - 1 messages of size/n; a tree leaves nobody a part and is refused (ValueError).
    """
    return _made("reduce_scatter", system, size, chips, stride, algorithm, members)


def all_gather(
    system: System, size: int, chips: int | None = None, *, stride: int = 1, algorithm: str | None = None,
    members: int | None = None,
) -> CollectiveCost:  # fmt: skip
    """Everybody has all parts, `size` bytes together: arguments, errors and messages as of `reduce_scatter`."""
    return _made("all_gather", system, size, chips, stride, algorithm, members)


def broadcast(
    system: System, size: int, chips: int | None = None, *, stride: int = 1, algorithm: str | None = None,
    members: int | None = None,
) -> CollectiveCost:  # fmt: skip
    """Everybody has what one had, `size` bytes: arguments and errors as `all_reduce`.

    By a ring n parts follow each other from neighbour to neighbour, 2(n - 1) messages of size/n until the last has the
    last; by a tree ceil(log2 n) messages of the whole; on two levels a tree across racks, then a ring in each.
    """
    return _made("broadcast", system, size, chips, stride, algorithm, members)


@dataclass(frozen=True)
class _Group:
    """Members of a collective: how many, how far apart, how they stand in racks; and those of an inner ring."""

    system: System
    chips: int
    stride: int
    members: int | None = None

    @property
    def racks(self) -> int:
        """The fewest of which each has as many members."""
        most = max(1, self.system.rack // self.stride)
        return next(
            racks for racks in range(1, self.chips + 1) if self.chips % racks == 0 and self.chips <= racks * most
        )

    def rate(self, gateways: bool) -> float:
        return self.system.gateway_share if gateways else self.system.neighbour_bandwidth

    def latency(self, members: int, gateways: bool, hops: int = 1) -> float:
        """Of a message: the sync of the members and of the chips between them, and its hops."""
        one = self.system.gateway_latency if gateways else self.system.link_latency
        return self.system.sync_seconds(min(self.system.chips, members * self.stride)) + hops * one


def _made(
    kind: str, system: System, size: int, chips: int | None, stride: int, algorithm: str | None,
    members: int | None,
) -> CollectiveCost:  # fmt: skip
    expect(System, system=system)
    count = system.chips if chips is None else integer("chips", chips, 1)
    integer("size", size, 0), integer("stride", stride, 1)
    if (count - 1) * stride + 1 > system.chips:
        raise ValueError(
            f"{count:,} chips, each {stride} from the next, are more than {system.name}'s {system.chips:,}"
        )
    group = _Group(system, count, stride, members)
    racks = group.racks
    if members is not None and (integer("members", members, 1) > count or count % members):
        raise ValueError(f"inner rings of {members} do not divide {count} chips")
    chosen = algorithm if algorithm is not None else "two_level" if racks > 1 else "ring_pair"
    if not isinstance(chosen, str) or chosen not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {shown(chosen)}; there are {', '.join(ALGORITHMS)}")
    if chosen == "tree" and kind not in TREES:
        raise ValueError(f"a tree leaves nobody a part: {kind} is by ring, ring_pair or two_level")
    if count > 1 and not system.neighbour_bandwidth:
        raise UnsupportedByTarget(f"the chips of {system.name} ({system.target.name}) have no links: another system")
    make = {"ring": _ring, "ring_pair": _ring, "tree": _tree, "two_level": _two_levels}[chosen]
    phases = make(kind, group, float(size), chosen) if count > 1 else ()
    return CollectiveCost(kind, chosen, count, racks, size, phases)


def _ring(kind: str, group: _Group, size: float, algorithm: str) -> tuple[Phase, ...]:
    ways = 2 if algorithm == "ring_pair" else 1
    words = "by two rings" if ways == 2 else "by a ring"
    return (_round(kind, group, size, group.chips, group.racks > 1, words, ways),)


def _round(kind: str, group: _Group, size: float, members: int, gateways: bool, words: str, ways: int = 1) -> Phase:
    """A ring of some members, each with a vector of `size` bytes."""
    # a broadcast's last part leaves the first chip after n - 1 others and has n - 1 hops before it
    messages = (members - 1) * (2 if kind in ("all_reduce", "broadcast") else 1)
    return Phase(
        f"{kind} {words}", messages, size / members / ways, group.rate(gateways), group.latency(members, gateways),
        ways * (members if kind == "broadcast" else messages), gateways,
    )  # fmt: skip


def _tree(kind: str, group: _Group, size: float, _: str) -> tuple[Phase, ...]:
    """Level by level, partners twice as far apart in each: within a level no two messages share a link."""
    phases = []
    rack = group.chips // group.racks
    for level in range((group.chips - 1).bit_length()):
        apart = 1 << level
        # partners that stand a multiple of twice their distance from each rack's first are in one rack
        gateways = group.racks > 1 and rack % (2 * apart) != 0
        latency = group.latency(min(group.chips, 2 * apart), gateways, 1 if gateways else apart)
        where = f"{apart} apart, {'between racks' if gateways else 'in the rack'}"
        one = Phase(where, 1, size, group.rate(gateways), latency, 1, gateways)
        phases.append(one)
    down = tuple(reversed(phases))
    return (*phases, *down) if kind == "all_reduce" else down


def _two_levels(kind: str, group: _Group, size: float, _: str) -> tuple[Phase, ...]:
    inside = group.members or group.chips // group.racks
    outside, in_rack = group.chips // inside, group.chips // group.racks
    # Inner rings that no rack holds whole take gateways too, and outer ones that stay within one take none.
    near, far = in_rack % inside != 0, group.racks > 1
    inner, outer = "across racks" if near else "in the rack", "across racks" if far else "in the rack, over groups"
    across = _Group(group.system, outside, group.stride * inside)
    if kind == "broadcast":
        tree = tuple(
            Phase(f"broadcast {outer}", 1, size, group.rate(far), across.latency(outside, far), 1, far)
            for _ in range((outside - 1).bit_length())
        )
        return (*tree, *_some(_round(kind, group, size, inside, near, inner)))
    middle = _round(kind, across, size / inside, outside, far, outer)
    scatter = _round("reduce_scatter", group, size, inside, near, inner)
    gather = _round("all_gather", group, size, inside, near, inner)
    steps = {
        "all_reduce": (scatter, middle, gather), "reduce_scatter": (scatter, middle), "all_gather": (middle, gather),
    }  # fmt: skip
    return _some(*steps[kind])


def _some(*phases: Phase) -> tuple[Phase, ...]:
    """Those that send anything."""
    return tuple(phase for phase in phases if phase.messages)
