"""Where a run's random bits come from: its key, whatever the machine, or the tiles' own generators."""

from dataclasses import replace
from typing import Any

from ipu_core.hardware_random import HardwareRandom
from ipu_core.ir.block import Block, Equation, described, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import CONVOLUTIONS
from lowprec import Key
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32

GENERATORS = ("philox", "hardware")


def check_random(random: Any) -> str | HardwareRandom:
    """The name of a generator, or how the tiles' start.

    Raises:
        ValueError: an unknown name.
        TypeError: neither name nor `HardwareRandom`.
    """
    if isinstance(random, HardwareRandom):
        low, high = random.seed
        return replace(random, seed=(low, high))
    if not isinstance(random, str):
        raise TypeError(f"random must be {' or '.join(GENERATORS)} or a HardwareRandom, not {random!r}")
    if random not in GENERATORS:
        raise ValueError(f"unknown random {random!r}: choose {' or '.join(GENERATORS)}")
    return random


def read_random(random: str | HardwareRandom, key: Key) -> HardwareRandom | None:
    """How the tiles' generators start; None: the bits are the key's.

    Args:
        random: "philox" (the key's); "hardware": the tiles' own, seeded with the key's 64 bits; or how they start.
        key: of the run.
    """
    if isinstance(random, HardwareRandom):
        return random
    return HardwareRandom((key.value & 0xFFFFFFFF, key.value >> 32)) if random == "hardware" else None


def check_hardware_random(block: Block, engine: str) -> None:
    """Refuses what the tiles' own generators cannot do.

    Raises:
        ValueError: an engine without tiles; stochastic rounding to other formats than half, or by another rule than the
            hardware's; a convolution that accumulates in half.
    """
    if engine != "tiles":
        raise ValueError(
            f"random='hardware' draws on every tile and worker, of which the engine {engine!r} knows nothing: "
            "take engine='tiles', or random='philox'"
        )
    for equation in equations_of(block):
        if equation.arithmetic.stochastic and (why := _refusal(equation)):
            raise ValueError(f"random='hardware': {described(equation)} {why}; take random='philox'")


def _refusal(equation: Equation) -> str:
    """Why the tiles' generators cannot round an equation's results; "" if they can."""
    formats = {equation.output.type.format, equation.arithmetic.accumulate or FLOAT32} - {FLOAT32}
    if formats - {FLOAT16}:
        return f"rounds to {', '.join(map(format_name, formats - {FLOAT16}))}, the hardware only to float16"
    if equation.arithmetic.rounding.mode != "stochastic":
        return f"rounds by {equation.arithmetic.rounding.mode}, which the hardware does not have"
    if equation.op in CONVOLUTIONS and equation.arithmetic.accumulate == FLOAT16:
        return "accumulates in float16, of which no order of draws is modelled"
    return ""
