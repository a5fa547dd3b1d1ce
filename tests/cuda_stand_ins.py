"""Libraries in the place of CUDA's whose functions say that there is no device, for a PyTorch on the CPU.

The wheels of PyTorch for Linux name the CUDA libraries that they were linked with, four gigabytes, without which they
cannot be imported. Here each becomes a library of a few kilobytes beside PyTorch's own, with the same name, versions of
symbols and functions; every function returns cudaErrorNoDevice. It needs gcc and binutils. Run as a script in an
environment, `python tests/cuda_stand_ins.py`, it writes what the PyTorch installed there lacks.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

NAMES = re.compile(r"lib(cu|nv|nccl)")
FUNCTIONS = re.compile(r"_*(cu|nv|nccl)[A-Za-z]")
NO_DEVICE = 100
"""cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE."""


class Wanted(NamedTuple):
    """What libraries ask of others.

    Attributes:
        versions: for each library that is asked for, by name, its versions of symbols.
        functions: for each version of symbols, "" for none, the functions.
    """

    versions: dict[str, set[str]]
    functions: dict[str, set[str]]


def printed(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(dynamic: str) -> set[str]:
    """Names of CUDA's libraries in what `readelf --dynamic` prints."""
    return {name for name in re.findall(r"\(NEEDED\).*\[([^]]+)\]", dynamic) if NAMES.match(name)}


def versions(symbols: str) -> dict[str, set[str]]:
    """For each file that `readelf --version-info` prints needs of, the versions of symbols."""
    found: dict[str, set[str]] = {}
    file = ""
    for line in symbols.splitlines():
        if named := re.search(r" File: (\S+)", line):
            file = named[1]
        elif version := re.search(r" Name: (\S+)  Flags", line):
            found.setdefault(file, set()).add(version[1])
    return found


def functions(undefined: str) -> dict[str, set[str]]:
    """CUDA's functions in what `nm --dynamic --undefined-only` prints, by version of symbols."""
    found: dict[str, set[str]] = {}
    for symbol in re.findall(r" U (\S+)", undefined):
        name, _, version = symbol.partition("@")
        if FUNCTIONS.match(name):
            found.setdefault(version.lstrip("@"), set()).add(name)
    return found


def wanted(libraries: Iterable[Path]) -> Wanted:
    """What these libraries want of CUDA's."""
    found = Wanted({}, {})
    for path in map(str, libraries):
        asked = versions(printed("readelf", "--version-info", "--wide", path))
        for name in needed(printed("readelf", "--dynamic", "--wide", path)):
            found.versions.setdefault(name, set()).update(asked.get(name, ()))
        for version, names in functions(printed("nm", "--dynamic", "--undefined-only", path)).items():
            found.functions.setdefault(version, set()).update(names)
    return found


def write(library: Path, symbols: Mapping[str, set[str]]) -> None:
    """Links a library with these functions by version; those of the version "" have none."""
    names = sorted(set[str]().union(*symbols.values()))
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)
    nodes = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(of)) or '*;'} }};\n"
        for version, of in sorted(symbols.items())
        if version
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write("".join(nodes))
        script.flush()
        how = [f"-Wl,-soname,{library.name}", *([f"-Wl,--version-script,{script.name}"] if nodes else [])]
        command = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", *how, "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True)


def stand_in(folder: Path) -> list[str]:
    """Writes the libraries of CUDA's that those of a folder lack, into the folder; gives their names."""
    asked = wanted(path for path in sorted(folder.glob("lib*.so*")) if not NAMES.match(path.name))
    for name, of in asked.versions.items():
        write(folder / name, {version: asked.functions.get(version, set()) for version in of or {""}})
    return sorted(asked.versions)


if __name__ == "__main__":
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit("torch is not installed here")
    print("in the place of", *stand_in(Path(torch.origin).parent / "lib"))
