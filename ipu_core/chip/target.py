"""The chips as data: tiles, clock, memory, arithmetic and exchange rates, each figure with its source.

Sources: [WP] Graphcore data sheets and white papers (tiles, memory, clock, peak rates); [PL] the PopLibs and
Poplar public repositories (planner constants, multiply-accumulates per cycle); [CI] Jia et al., "Dissecting the
Graphcore IPU architecture via microbenchmarking", arXiv 1912.03413; [HC] Graphcore at Hot Chips 33; [MLPerf] the
systems that Graphcore declared in MLPerf Training; [derived] from such; [open] no public source.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ipu_core.chip.energy import PICOJOULES, POWER, checked_table
from ipu_core.errors import UnsupportedByTarget
from lowprec.checks import expect, integer, number
from lowprec.values.accumulation import ADDERS, Adder

AMP_ADDERS: Final = tuple(adder for adder in ADDERS if adder != "aligned")
"""What may be the AMP unit's order; aligned adders are other machines'."""

_COMMON: Final[dict[str, Any]] = {
    "workers": 6,  # [PL] hardware worker contexts per tile, round robin, one instruction a cycle for the tile
    "load_store_bytes_per_cycle": 24,  # [PL] two 64-bit loads and one 64-bit store
    "exchange_bytes_per_cycle": 4,  # [derived] 8 TB/s / (1472 tiles x 1.325 GHz)
    "exchange_bytes_per_cycle_shared": 8,  # [PL] two tiles of a supertile that receive the same data
    "tiles_per_supertile": 2,  # [PL]
    "exchange_fixed_cycles": 100,  # [PL] the planner's constant per exchange
    "sync_cycles": 90,  # [PL] the planner's constant per on-chip sync
    "local_copy_bytes_per_cycle": 8,  # [PL] ldst64pace: one 64-bit word in and out per cycle
    "reorder_cycles": 1.25,  # [PL] the planner's 5/4, from layers of ResNet-50; its tests took up to 10.3 for halves
    "link_bandwidth": 160e9,  # [WP] bytes per second each way, all IPU-Links: 320 GB/s both ways
    "host_port": 32e9,  # [WP] bytes per second each way, PCIe Gen4 x16: 64 GB/s both ways; [open] streaming memory too
    "adder": "sequential",  # [open] order and width inside the AMP unit's 4-element dot
}

_MACHINE_OF_FOUR: Final[dict[str, Any]] = {
    "host_share": 3.125e9,  # [WP] M2000 and Bow-2000: 100 Gb/s each way to the host, for four chips
    "streaming_share": 5e9,  # [open] a quarter of the 20 GB/s that an M2000's or a Bow-2000's memory is taken to have
}

_CHIPS: Final[dict[str, dict[str, Any]]] = {
    "gc2": {
        "tiles": 1216,  # [WP]
        "tile_memory": 262_144,  # [WP] 304 MiB in all
        "clock": 1.6e9,  # [WP]
        "macs": (("float16", "float16", 32), ("float16", "float32", 32), ("float32", "float32", 8)),  # [PL]
        "published_sram_bandwidth": 45e12,  # [CI]
        "host_share": 16e9,  # [WP] C2 card: one PCIe Gen4 x16 for two chips
        "streaming_share": 16e9,  # [derived] the host's memory, at the host's rate
        "streaming_memory": 0,  # [open] the host's
    },
    "gc200": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP] 624 KiB, 897 MiB in all
        "clock": 1.325e9,  # [HC]; [derived] four data-sheet peaks give it
        "macs": (("float16", "float16", 64), ("float16", "float32", 32), ("float32", "float32", 16)),  # [PL]
        "published_sram_bandwidth": 47.5e12,  # [WP]
        **_MACHINE_OF_FOUR,
        "streaming_memory": 32_000_000_000,  # [MLPerf] v1.0 and v1.1; sold: up to 130.6 GB (M2000: 526 - 3.6, for four)
    },
    "bow": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP]
        "clock": 1.85e9,  # [WP]
        "macs": (("float16", "float16", 64), ("float16", "float32", 32), ("float32", "float32", 16)),  # [PL]
        "published_sram_bandwidth": 65e12,  # [WP]
        **_MACHINE_OF_FOUR,
        "streaming_memory": 32_000_000_000,  # [MLPerf] v2.0; sold: up to 64 GB (Bow-2000: 256 for four)
    },
    "c600": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP]
        "clock": 1.486e9,  # [derived] 280 TFLOP/s / (2 x 64 x 1472)
        "macs": (("float16", "float16", 64), ("float8", "float16", 128)),  # [derived] 280 and 560 TFLOP/s
        "link_bandwidth": 0.0,  # [WP] a single-chip card
        "published_sram_bandwidth": 0.0,  # [open]
        "host_share": 32e9,  # [derived] a card of its own: all that its port can do
        "streaming_share": 32e9,  # [derived] the host's memory, at the host's rate
        "streaming_memory": 0,  # [open] the host's
    },
}

CHIPS: Final = tuple(_CHIPS)

_RENAMED: Final = {
    "host_bandwidth": "host_port (what the chip's port can do) and host_share (what its machine gives it)",
    "streaming_bandwidth": "streaming_share (what its machine gives the chip) and host_port (through which it passes)",
}

_SYSTEM_OF: Final = {
    "gc2": 'System("c2")', "gc200": 'System("m2000")', "bow": 'System("bow-2000")', "c600": 'System("c600", chips=2)',
}  # fmt: skip
"""A system of each chip, for those who ask for more of it than there is."""

_FAMILIES: Final = {"gc2": "mk1", "gc200": "mk2", "bow": "mk2", "c600": "mk2"}


@dataclass(frozen=True, init=False)
class Target:
    """One chip, by name, with any figure replaced by keyword: ``Target("gc200", tiles=4)``.

    Attributes:
        name: "gc2", "gc200", "bow" or "c600".
        tiles: number of tiles, at most the chip's.
        workers: worker threads per tile (W).
        tile_memory: bytes of memory per tile.
        clock: hertz.
        macs: (operand format, partials format, multiply-accumulates per cycle and tile) of the AMP unit.
        power: watts of the chip's share of its machine, the least and the most (see `ipu_core.chip.energy`).
        energy: picojoules of a multiply-accumulate by format ("float16") and of a byte by where it moves ("tile
            memory", "exchange", "links", "streaming"); as a keyword a dict of those that differ from the published.
        load_store_bytes_per_cycle, exchange_bytes_per_cycle, exchange_bytes_per_cycle_shared,
            local_copy_bytes_per_cycle: bytes per cycle and tile.
        reorder_cycles: cycles of a tile for every element (or the up to `local_copy_bytes_per_cycle` bytes that stay
            together) of an operand whose elements the matrix unit takes in another order than they are stored.
        tiles_per_supertile: neighbours that may receive the same data together: 2, or 1 for none.
        exchange_fixed_cycles, sync_cycles: cycles per exchange and per barrier.
        link_bandwidth: bytes per second each way, all links of the chip to others together; 0: it has none.
        host_port: bytes per second each way that the chip's port can do, through which host and streaming memory are
            reached.
        host_share: bytes per second each way with the host that the chip's machine gives it.
        streaming_share: bytes per second, one transfer at a time, of the machine's streaming memory, this chip's share.
        streaming_memory: bytes of streaming memory, one chip's share as its systems are commonly equipped (the largest
            sold: 64 GB of a Bow-2000, 130.6 GB of an M2000); 0: the host's, without a figure.
        published_sram_bandwidth: bytes per second as published (0: none), to compare with `sram_bandwidth`.
        adder: how the AMP unit adds products, which no public source says: "sequential", "dot4" or "pairwise" (see
            `lowprec.matmul`). The orders of sums that are this target's own use it, and with them a `Training` that the
            keyword `target=` says, so it decides bits.

    Raises:
        ValueError: unknown name or adder, a figure out of range, or more tiles than the chip has.
        TypeError: unknown keyword or one of an earlier version, or a figure that is no number of its kind.
    """

    name: str
    tiles: int
    workers: int
    tile_memory: int
    clock: float
    macs: tuple[tuple[str, str, int], ...]
    power: tuple[float, float]
    energy: tuple[tuple[str, float], ...]
    load_store_bytes_per_cycle: int
    exchange_bytes_per_cycle: int
    exchange_bytes_per_cycle_shared: int
    tiles_per_supertile: int
    exchange_fixed_cycles: int
    sync_cycles: int
    local_copy_bytes_per_cycle: int
    reorder_cycles: float
    link_bandwidth: float
    host_port: float
    host_share: float
    streaming_share: float
    streaming_memory: int
    published_sram_bandwidth: float
    adder: Adder

    def __init__(self, name: str = "gc200", **changes: Any) -> None:
        if not isinstance(name, str) or name not in _CHIPS:
            raise ValueError(f"unknown target {name!r}; valid targets are {', '.join(CHIPS)}")
        names = [field.name for field in fields(self)]
        if renamed := [key for key in changes if key in _RENAMED]:
            raise TypeError(f"Target has no figure {renamed[0]!r} any more, but {_RENAMED[renamed[0]]}")
        if unknown := [key for key in changes if key not in names]:
            raise TypeError(f"Target has no figure {unknown[0]!r}; it has {', '.join(names[1:])}")
        published = {"power": POWER[name], "energy": PICOJOULES}
        for field_name, value in {"name": name, **_COMMON, **published, **_CHIPS[name], **changes}.items():
            checked = value if field_name in ("name", "adder") else _checked(field_name, value)
            object.__setattr__(self, field_name, checked)
        if self.tiles > (most := _CHIPS[name]["tiles"]):
            raise ValueError(
                f"tiles must be at most {most:,}, all of a {name}, not {self.tiles:,}: more are several chips, "
                f"a System, such as {_SYSTEM_OF[name]}"
            )
        if not isinstance(self.adder, str) or self.adder not in AMP_ADDERS:
            raise ValueError(f"unknown adder {self.adder!r}; it is one of {', '.join(AMP_ADDERS)}")

    @property
    def changes(self) -> dict[str, Any]:
        """The figures that are not the published chip's."""
        own = Target(self.name)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value != getattr(own, name)}

    @property
    def words(self) -> str:
        """The name, and what is not as published: "bow with tiles 736"."""
        changed = ", ".join(f"{name} {value}" for name, value in self.changes.items())
        return f"{self.name} with {changed}" if changed else self.name

    @property
    def family(self) -> str:
        """ "mk1" or "mk2": the generation that the chip is of, whose order of sums is taken (`placement.orders`)."""
        return _FAMILIES[self.name]

    def check_adder(self, adder: Adder) -> None:
        """Refuses an order of additions that no tile has.

        Raises:
            UnsupportedByTarget: it is none of AMP_ADDERS.
        """
        if not isinstance(adder, str) or adder not in AMP_ADDERS:
            raise UnsupportedByTarget(
                f"the tiles of {self.name} have no {adder} adder; orders with it run on the direct engine"
            )

    def macs_per_cycle(self, operands: str, partials: str) -> int:
        """Multiply-accumulates per cycle and tile, for example ``("float16", "float32")`` for FP16.32.

        Any fp8 format counts as "float8".

        Raises:
            UnsupportedByTarget: the chip's AMP unit has no such mode, or no figure for it is public.
        """
        expect(str, operands=operands, partials=partials)
        key = ("float8" if operands.startswith("float8") else operands, partials)
        for have_operands, have_partials, macs in self.macs:
            if key == (have_operands, have_partials):
                return macs
        known = ", ".join(f"{a} x {a} into {p}" for a, p, _ in self.macs)
        if key[0] == "float8" and ("float8", "float16") in [mode[:2] for mode in self.macs]:
            known += " (the precisions fp8.16 and fp8.16/unit_scaled=true)"
        raise UnsupportedByTarget(
            f"{self.name} has no figure for {operands} x {operands} into {partials}; known: {known}. "
            "The direct engine (engine='direct') needs none"
        )

    @property
    def fastest_halves(self) -> tuple[str, str]:
        """(operands, partials) of FP16.16, or of the first mode of a unit that has none."""
        modes = [(operands, partials) for operands, partials, _ in self.macs]
        return ("float16", "float16") if ("float16", "float16") in modes else modes[0]

    def peak_flops(self, operands: str, partials: str) -> float:
        """Peak floating-point operations per second of the whole chip; a multiply-accumulate counts as two."""
        return 2.0 * self.macs_per_cycle(operands, partials) * self.tiles * self.clock

    @property
    def memory(self) -> int:
        """Bytes of memory on the whole chip."""
        return self.tiles * self.tile_memory

    @property
    def sram_bandwidth(self) -> float:
        """Bytes per second between the tiles' memories and their registers, whole chip."""
        return float(self.load_store_bytes_per_cycle * self.tiles * self.clock)

    @property
    def exchange_bandwidth(self) -> float:
        """Bytes per second of an all-to-all exchange, whole chip."""
        return float(self.exchange_bytes_per_cycle * self.tiles * self.clock)

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second each way between the tiles and the host: the smaller of port and share."""
        return min(self.host_port, self.host_share)

    @property
    def streaming_bandwidth(self) -> float:
        """Bytes per second between the tiles and streaming memory: the smaller of port and share."""
        return min(self.host_port, self.streaming_share)

    @property
    def host_rate(self) -> str:
        """`host_bandwidth` in words, and which of the two it is."""
        return f"{self.host_bandwidth / 1e9:g} GB/s each way, {_whose(self.host_port, self.host_share)}"

    @property
    def streaming_rate(self) -> str:
        """`streaming_bandwidth` in words, and which of the two it is."""
        return f"{self.streaming_bandwidth / 1e9:g} GB/s, {_whose(self.host_port, self.streaming_share)}"

    def seconds(self, cycles: float) -> float:
        """Cycles as seconds at this target's clock."""
        return number("cycles", cycles) / self.clock

    def transfer_cycles(self, size: int, bandwidth: float) -> int:
        """Cycles in which `size` bytes pass an interface of `bandwidth` bytes per second, a number above 0."""
        if not (number("bandwidth", bandwidth) > 0 and math.isfinite(bandwidth)):
            raise ValueError(f"bandwidth must be bytes per second, finite and above 0, not {bandwidth!r}")
        return math.ceil(integer("size", size, 0) * self.clock / bandwidth)


def _whose(port: float, share: float) -> str:
    """Which of two rates is the smaller, and so the one that counts."""
    return "all that the chip's port can do" if port <= share else "its machine's share"


_RATES: Final = (
    "clock",
    "reorder_cycles",
    "link_bandwidth",
    "host_port",
    "host_share",
    "streaming_share",
    "published_sram_bandwidth",
)
_INTEGERS: Final = (int, np.integer)
_NUMBERS: Final = (int, float, np.integer, np.floating)
_MAY_BE_ZERO: Final = (
    "exchange_fixed_cycles",
    "sync_cycles",
    "link_bandwidth",
    "published_sram_bandwidth",
    "streaming_memory",
)


def _checked(name: str, value: Any) -> Any:
    """A figure as a plain int, float or tuple.

    Raises:
        TypeError: another kind.
        ValueError: out of range.
    """
    if name == "macs":
        return _checked_macs(value)
    if name == "power":
        return _checked_power(value)
    if name == "energy":
        pairs = isinstance(value, tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in value)
        return checked_table(dict(value) if pairs else value)  # pairs: as another Target has them
    rate = name in _RATES
    if isinstance(value, bool) or not isinstance(value, _NUMBERS if rate else _INTEGERS):
        raise TypeError(f"{name} must be {'a number' if rate else 'an integer'}, not {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise ValueError(f"{name} must be {'0 or ' if name in _MAY_BE_ZERO else ''}positive, not {value!r}")
    if name == "reorder_cycles" and value > 1e6:
        raise ValueError(f"reorder_cycles must be at most a million cycles of an element, not {value!r}")
    if not rate and value >= 1 << 53:
        raise ValueError(f"{name} must be below 2^53, so that sums of it stay exact, not {value!r}")
    if name == "tiles_per_supertile" and value > 2:
        raise ValueError(f"tiles_per_supertile must be 1 or 2, not {value!r}")
    return float(value) if rate else int(value)


def _checked_power(value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2 or not all(isinstance(watts, _NUMBERS) and not isinstance(watts, bool) for watts in pair):
        raise TypeError(f"power must be watts, or the least and the most, not {value!r}")
    if not 0 < pair[0] <= pair[1] < math.inf:
        raise ValueError(f"power must be watts above 0, the least first, not {value!r}")
    return float(pair[0]), float(pair[1])


def _checked_macs(value: Any) -> tuple[tuple[str, str, int], ...]:
    try:
        rows = tuple((operands, partials, _checked("macs per cycle", rate)) for operands, partials, rate in value)
    except (TypeError, ValueError):
        rows = ()
    if not rows or not all(isinstance(name, str) for row in rows for name in row[:2]):
        raise TypeError(f"macs must be (operand format, partials format, macs per cycle) for each mode, not {value!r}")
    return rows
