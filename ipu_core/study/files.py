"""The files of a study beside its results: their names, their checksums, and whether they can be written."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ipu_core.train.checkpoint import replacing

CHECKPOINTS = "checkpoints"
LONGEST = 160  # characters of a file's name; most file systems take 255 bytes, and a draft's name is longer
SHOWN = ("table.txt", "plan.txt", "page.html", "convergence.png")
KINDS = {"parameters": ".npz", "state": ".npz", "watch": ".npy"}
OWN = re.compile(
    r"manifest\.json|(table|plan)\.txt|page\.html|convergence\.png|(parameters|state)-.+\.npz|watch-.+\.npy"
)
"""Names of the files that a study writes into its folder as drafts first."""


def is_own(name: str) -> bool:
    """Whether a file of a study's folder has a name that a study gives."""
    return name == "results.jsonl" or OWN.fullmatch(name) is not None


def point_file(folder: Path, kind: str, point: object) -> Path:
    """Where a study's folder keeps a point's trained parameters, its state at the end, or what was watched of it.

    Args:
        folder: Of the study.
        kind: One of KINDS.
        point: As text its name.
    """
    return folder / file_name(f"{kind} {point}", KINDS[kind])


def file_name(words: str, suffix: str = ".npz") -> str:
    """The name of a file after some words; many words are cut, and told apart by their hash."""
    # A precision's name has slashes, such as fp16.16/nearest.
    name = words.replace("/", "-").replace(" ", "-")
    # Names with rules may be of any length, and two may begin alike.
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    return f"{name}{suffix}"


def checksum(path: Path) -> str | None:
    """The SHA-256 of a file; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes a small text file, whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises an OSError within as a ValueError that names the folder.

    Raises:
        ValueError: an OSError was raised within.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write to the output folder {folder}: {error.strerror}") from error


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes files by name, each whole or not at all."""
    with writing(folder):
        for name, text in texts.items():
            write_text(folder / name, text)


def check_writable(folder: Path, names: Iterable[str]) -> None:
    """Makes a folder and checks that files of these names can be written there, before any work is done.

    Raises:
        ValueError: they cannot.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Tried, not asked: permissions tell nothing of read-only mounts.
        trial = folder / f".writable.{os.getpid()}.draft"
        trial.touch()
        trial.unlink()
    for name in names:
        with writing(folder / name):
            # os.replace onto a folder fails, which would show after the training.
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
