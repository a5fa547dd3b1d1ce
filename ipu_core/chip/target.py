"""The chips as data: tiles, clock, memory, arithmetic and exchange rates, each figure with its source.

Sources: [WP] Graphcore data sheets and white papers (tiles, memory, clock, peak rates); [PL] the PopLibs and
Poplar public repositories (planner constants, multiply-accumulates per cycle); [CI] Jia et al., "Dissecting the
Graphcore IPU architecture via microbenchmarking", arXiv 1912.03413; [derived] from such; [open] no public source.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ipu_core.errors import UnsupportedByTarget
from lowprec.checks import expect, integer, number
from lowprec.values.accumulation import ADDERS, Adder

AMP_ADDERS: Final = tuple(adder for adder in ADDERS if adder != "aligned")
"""What may be the AMP unit's order; aligned adders are other machines'."""

_COMMON: Final[dict[str, Any]] = {
    "workers": 6,  # [PL] hardware worker contexts per tile, round robin, one instruction a cycle for the tile
    "load_store_bytes_per_cycle": 24,  # [PL] two 64-bit loads and one 64-bit store
    "exchange_bytes_per_cycle": 4,  # [derived] 8 TB/s / (1472 tiles x 1.33 GHz)
    "exchange_bytes_per_cycle_shared": 8,  # [PL] two tiles of a supertile that receive the same data
    "tiles_per_supertile": 2,  # [PL]
    "exchange_fixed_cycles": 100,  # [PL] the planner's constant per exchange
    "sync_cycles": 90,  # [PL] the planner's constant per on-chip sync
    "local_copy_bytes_per_cycle": 8,  # [PL] ldst64pace: one 64-bit word in and out per cycle
    "link_bandwidth": 320e9,  # [WP] bytes per second, all IPU-Links, both directions
    "host_bandwidth": 64e9,  # [WP] bytes per second, PCIe Gen4 x16, both directions
    "adder": "sequential",  # [open] order and width inside the AMP unit's 4-element dot
    "streaming_bandwidth": 20e9,  # [open] bytes per second of streaming memory for one M2000
}

_CHIPS: Final[dict[str, dict[str, Any]]] = {
    "gc2": {
        "tiles": 1216,  # [WP]
        "tile_memory": 262_144,  # [WP] 304 MiB in all
        "clock": 1.6e9,  # [WP]
        "macs": (("float16", "float16", 32), ("float16", "float32", 32), ("float32", "float32", 8)),  # [PL]
        "published_sram_bandwidth": 45e12,  # [CI]
        "streaming_memory": 0,  # [open] the host's
        "host_bandwidth": 32e9,  # [WP] C2 card: PCIe Gen4 x16 shared by two chips
    },
    "gc200": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP] 624 KiB, 897 MiB in all
        "clock": 1.33e9,  # [WP]
        "macs": (("float16", "float16", 64), ("float16", "float32", 32), ("float32", "float32", 16)),  # [PL]
        "published_sram_bandwidth": 47.5e12,  # [WP]
        "streaming_memory": 130_600_000_000,  # [derived] M2000: 526 GB of exchange memory, 3.6 GB on tiles, 4 chips
    },
    "bow": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP]
        "clock": 1.85e9,  # [WP]
        "macs": (("float16", "float16", 64), ("float16", "float32", 32), ("float32", "float32", 16)),  # [PL]
        "published_sram_bandwidth": 65e12,  # [WP]
        "streaming_memory": 64_000_000_000,  # [WP] Bow-2000: 256 GB for 4 chips
    },
    "c600": {
        "tiles": 1472,  # [WP]
        "tile_memory": 638_976,  # [WP]
        "clock": 1.5e9,  # [derived] 280 TFLOP/s / (2 x 64 x 1472)
        "macs": (("float16", "float16", 64), ("float8", "float16", 128)),  # [derived] 280 and 560 TFLOP/s
        "link_bandwidth": 0.0,  # [WP] a single-chip card
        "published_sram_bandwidth": 0.0,  # [open]
        "streaming_memory": 0,  # [open] the host's
    },
}

CHIPS: Final = tuple(_CHIPS)

_FAMILIES: Final = {"gc2": "mk1", "gc200": "mk2", "bow": "mk2", "c600": "mk2"}


@dataclass(frozen=True, init=False)
class Target:
    """One chip, by name, with any figure replaced by keyword: ``Target("gc200", tiles=4)``.

    Attributes:
        name: "gc2", "gc200", "bow" or "c600".
        tiles: number of tiles.
        workers: worker threads per tile (W).
        tile_memory: bytes of memory per tile.
        clock: hertz.
        macs: (operand format, partials format, multiply-accumulates per cycle and tile) of the AMP unit.
        load_store_bytes_per_cycle, exchange_bytes_per_cycle, exchange_bytes_per_cycle_shared,
            local_copy_bytes_per_cycle: bytes per cycle and tile.
        tiles_per_supertile: neighbours that may receive the same data together: 2, or 1 for none.
        exchange_fixed_cycles, sync_cycles: cycles per exchange and per barrier.
        link_bandwidth, host_bandwidth, streaming_bandwidth: bytes per second of the chip.
        streaming_memory: bytes of streaming memory, one chip's share of its system's; 0: the host's, without a figure.
        published_sram_bandwidth: bytes per second as published (0: none), to compare with `sram_bandwidth`.
        adder: how the AMP unit adds products, which no public source says: "sequential", "dot4" or "pairwise" (see
            `lowprec.matmul`). The orders of sums that are this target's own use it, and with them a `Training` that the
            keyword `target=` says, so it decides bits.

    Raises:
        ValueError: unknown name or adder, or a figure out of range.
        TypeError: unknown keyword, or a figure that is no number of its kind.
    """

    name: str
    tiles: int
    workers: int
    tile_memory: int
    clock: float
    macs: tuple[tuple[str, str, int], ...]
    load_store_bytes_per_cycle: int
    exchange_bytes_per_cycle: int
    exchange_bytes_per_cycle_shared: int
    tiles_per_supertile: int
    exchange_fixed_cycles: int
    sync_cycles: int
    local_copy_bytes_per_cycle: int
    link_bandwidth: float
    host_bandwidth: float
    streaming_bandwidth: float
    streaming_memory: int
    published_sram_bandwidth: float
    adder: Adder

    def __init__(self, name: str = "gc200", **changes: Any) -> None:
        if not isinstance(name, str) or name not in _CHIPS:
            raise ValueError(f"unknown target {name!r}; valid targets are {', '.join(CHIPS)}")
        names = [field.name for field in fields(self)]
        if unknown := [key for key in changes if key not in names]:
            raise TypeError(f"Target has no figure {unknown[0]!r}; it has {', '.join(names[1:])}")
        for field_name, value in {"name": name, **_COMMON, **_CHIPS[name], **changes}.items():
            checked = value if field_name in ("name", "adder") else _checked(field_name, value)
            object.__setattr__(self, field_name, checked)
        if not isinstance(self.adder, str) or self.adder not in AMP_ADDERS:
            raise ValueError(f"unknown adder {self.adder!r}; it is one of {', '.join(AMP_ADDERS)}")

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

    def seconds(self, cycles: float) -> float:
        """Cycles as seconds at this target's clock."""
        return number("cycles", cycles) / self.clock

    def transfer_cycles(self, size: int, bandwidth: float) -> int:
        """Cycles in which `size` bytes pass an interface of `bandwidth` bytes per second, a number above 0."""
        if not (number("bandwidth", bandwidth) > 0 and math.isfinite(bandwidth)):
            raise ValueError(f"bandwidth must be bytes per second, finite and above 0, not {bandwidth!r}")
        return math.ceil(integer("size", size, 0) * self.clock / bandwidth)


_RATES: Final = ("clock", "link_bandwidth", "host_bandwidth", "streaming_bandwidth", "published_sram_bandwidth")
_MOST_TILES: Final = 2**20
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
    rate = name in _RATES
    if isinstance(value, bool) or not isinstance(value, _NUMBERS if rate else _INTEGERS):
        raise TypeError(f"{name} must be {'a number' if rate else 'an integer'}, not {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise ValueError(f"{name} must be {'0 or ' if name in _MAY_BE_ZERO else ''}positive, not {value!r}")
    if name == "tiles_per_supertile" and value > 2:
        raise ValueError(f"tiles_per_supertile must be 1 or 2, not {value!r}")
    if name == "tiles" and value > _MOST_TILES:
        raise ValueError(f"tiles must be at most {_MOST_TILES:,}, not {value!r}: figures of every tile are kept")
    return float(value) if rate else int(value)


def _checked_macs(value: Any) -> tuple[tuple[str, str, int], ...]:
    try:
        rows = tuple((operands, partials, _checked("macs per cycle", rate)) for operands, partials, rate in value)
    except (TypeError, ValueError):
        rows = ()
    if not rows or not all(isinstance(name, str) for row in rows for name in row[:2]):
        raise TypeError(f"macs must be (operand format, partials format, macs per cycle) for each mode, not {value!r}")
    return rows
