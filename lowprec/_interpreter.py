"""Which Pythons lowprec runs on, and in which interpreter of a process.

With the interpreter's lock, which its caches and its module count on; in one interpreter, as NumPy.
"""

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("lowprec was not tested on free-threaded Python and refuses it: use the ordinary build of Python")

try:
    import numpy  # noqa: F401 - only to see whether it can be here
except ImportError as error:
    # Any other failure is NumPy's own, and its words are the right ones. It has no exception of its own for this one.
    if "more than once per process" not in str(error) and "subinterpreter" not in str(error):
        raise
    raise ImportError(
        "lowprec can be in one interpreter of a process alone, as NumPy can, which is in another one already: use "
        "processes in place of sub-interpreters"
    ) from None
