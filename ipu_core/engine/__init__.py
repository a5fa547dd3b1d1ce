"""The engine: runs programs on the tiled graph and accounts cycles, exchange and memory."""

from ipu_core.engine.engine import Engine
from ipu_core.engine.memory import MemoryAccount
from ipu_core.engine.profile import Profile, Step

__all__ = ["Engine", "MemoryAccount", "Profile", "Step"]
