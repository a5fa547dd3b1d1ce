"""For scripts of PyTorch: `with lowprec.torch.emulate("fp16.16/stochastic"):`, see `ipu_core.emulation`.

It has a name here and stands upstairs, beside what it opens: nothing of lowprec imports it, and torch is loaded when an
emulation begins.
"""

from ipu_core.emulation import Emulation, emulate

__all__ = ["Emulation", "emulate"]
