"""The distribution's version, read from its metadata when it is first asked for."""

from importlib.metadata import version

__version__ = version("lowprec")
