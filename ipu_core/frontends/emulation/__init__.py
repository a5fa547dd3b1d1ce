"""A side road for whole scripts of PyTorch: within a context every operation of torch rounds as a precision says.

    with ipu_core.emulate("fp16.16/stochastic") as emulation:
        train(module)  # any code of torch, on the CPU in float32
    print(emulation)

`from_torch` is the road: it knows the layers, plans them and accounts them. This one sees one operation after another.
"""

from ipu_core.frontends.emulation.mode import Emulation, emulate

__all__ = ["Emulation", "emulate"]
