"""What the figures were taken on: one line for the head of every run."""

import os
import platform
from pathlib import Path

import numpy as np

import lowprec as lp
from lowprec.testing import isa_names


def model() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def family() -> str:
    """Model, family and model number: clouds give many processors the same name."""
    words = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            words.setdefault(name.strip(), value.strip())
    except OSError:
        return model()
    return f"{model()} {words.get('cpu family', '')} {words.get('model', '')}".strip()


def described() -> str:
    """Model, instruction sets and versions."""
    sets = ", ".join(isa_names())
    return f"{model()}, {os.cpu_count()} processors; {sets}; lowprec {lp.__version__}, numpy {np.__version__}"
