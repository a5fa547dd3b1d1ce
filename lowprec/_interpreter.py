"""Refuses Pythons and interpreters that lowprec does not run in, when it is imported.

Free-threaded Python is refused, since caches and the compiled module count on the interpreter's lock; so is a second
interpreter of a process, in which NumPy cannot be either.
"""

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("lowprec was not tested on free-threaded Python and refuses it: use the ordinary build of Python")

try:
    import numpy  # noqa: F401 - only to see whether it can be here
except ImportError as error:
    # Any other failure is NumPy's own, and its words are the right ones; for this one NumPy has no type of exception.
    if "more than once per process" not in str(error) and "subinterpreter" not in str(error):
        raise
    raise ImportError(
        "lowprec can be in one interpreter of a process alone, as NumPy can, which is in another one already: use "
        "processes in place of sub-interpreters"
    ) from None
