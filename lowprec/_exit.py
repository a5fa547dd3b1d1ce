"""Silences the compiled module's leak warnings at the end of a process in which they would be false.

nanobind checks at the end whether all objects of the compiled module are gone, and reports those that are left as
leaks. Python never frees the frames of daemon threads, nor, in a forked child, those of the parent's other threads, so
objects that these hold are left without anybody's fault. In all other processes leaks are still reported.
"""

import atexit
import os
import sys

import lowprec._interpreter  # noqa: F401 - before the module: refuses interpreters that were not tested
import lowprec._kernels as _kernels  # a module that is missing is told as such


def _at_exit() -> None:
    # In a process without other threads a leak is a fault of the module, and is to be said.
    if len(sys._current_frames()) > 1:
        _forget()


def _forget() -> None:
    _kernels.set_leak_warnings(False)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    # A forked child never runs the frames of the threads that its parent had.
    os.register_at_fork(after_in_child=_forget)
