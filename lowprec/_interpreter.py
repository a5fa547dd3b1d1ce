"""Which Pythons lowprec runs on: those with the interpreter's lock, which its caches and its module count on."""

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("lowprec was not tested on free-threaded Python and refuses it: use the ordinary build of Python")
