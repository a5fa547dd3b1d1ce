"""Whole scripts of PyTorch under a precision: within a context every operation of torch rounds as it says.

    with ipu_core.emulate("fp16.16/stochastic") as emulation:
        train(module)  # any code of torch, on the CPU in float32
    print(emulation)

`from_torch` knows the layers, plans them and counts their cycles; this sees one operation after another.
"""

from ipu_core.frontends.emulation.mode import Emulation, emulate

__all__ = ["Emulation", "emulate"]
