"""Packed rows in a folder: written window by window, whole or not at all, and read as a data set."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.packing.rows import WINDOW, Options, PackedRows, packed_window
from ipu_core.train.checkpoint import replacing
from lowprec.checks import expect_path, iterable
from lowprec.random import KeyLike, as_key
from lowprec.types import Array

MANIFEST = "packing.json"


class PackedFolder:
    """The packed rows of a folder, as `PackedRows` in a data set for `ipu_core.Samples`; rows are read when asked for.

    Attributes:
        folder: Where they are.
        options: How they were packed.
        sequences: How many there are.
        efficiency: Share of tokens that are a sequence's.
    """

    def __init__(self, folder: str | Path) -> None:
        """Opens a folder.

        Raises:
            ValueError: it holds no packed rows, or they were not written to the end.
        """
        self.folder = Path(folder)
        found = _manifest(self.folder)
        if found is None:
            raise ValueError(f"{folder} holds no packed rows: packing.write makes them")
        if not found["finished"]:
            raise ValueError(f"{folder} was not written to the end: the same packing.write goes on with it")
        self.options = Options(**found["options"])
        windows = found["windows"]
        self.sequences, tokens = (sum(each[name] for each in windows) for name in ("sequences", "tokens"))
        self._ends = list(itertools.accumulate(each["rows"] for each in windows))
        self.efficiency = tokens / (len(self) * self.options.length)
        self._rows = [np.load(_file(self.folder, "rows", n), mmap_mode="r") for n in range(len(windows))]
        self._sources = [np.load(_file(self.folder, "sources", n), mmap_mode="r") for n in range(len(windows))]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> dict[str, Array]:
        window, place = self._place(row)
        tokens, positions, segments, starts = self._cut(self._rows[window][place])
        return {"tokens": tokens, "positions": positions, "segments": segments, "starts": starts}

    def window(self, number: int) -> PackedRows:
        """The rows of one window, in memory."""
        tokens, positions, segments, starts = self._cut(np.array(self._rows[number]))
        return PackedRows(tokens, positions, segments, starts, np.array(self._sources[number]))

    def sources(self, row: int) -> Array:
        """The numbers of a row's sequences among all, -1 where there is none."""
        window, place = self._place(row)
        return np.array(self._sources[window][place])

    def _place(self, row: int) -> tuple[int, int]:
        row = operator.index(row)
        number = row + len(self) if row < 0 else row
        if not 0 <= number < len(self):
            raise IndexError(f"row {row} of {len(self):,}")
        window = int(np.searchsorted(self._ends, number, "right"))
        return window, number - int(self._ends[window - 1] if window else 0)

    def _cut(self, joined: Array) -> list[Array]:
        length = self.options.length
        return [np.array(part) for part in np.split(joined, (length, 2 * length, 3 * length), axis=-1)]

    def __repr__(self) -> str:
        return (
            f"<PackedFolder {self.folder}: {len(self):,} rows of {self.options.length:,} tokens, {self.sequences:,} "
            f"sequences, {self.efficiency:.2%} filled>"
        )


def write(
    sequences: Iterable[Any], folder: str | Path, length: int, *, depth: int = 3, strategy: str = "lpfhp",
    window: int = WINDOW, key: KeyLike = 0, padding: int = 0,
) -> PackedFolder:  # fmt: skip
    """Packs a stream of sequences into a folder, of which one window at a time is in memory.

    After Ctrl-C or a kill the same call goes on behind the last whole window, to the same files: what is there already
    is compared with the sequences and kept.

    Args:
        sequences: Arrays or lists of token numbers, each of 1 to `length`; an iterator will do.
        folder: Where the rows go; it is made if need be.
        length, depth, strategy, window, key, padding: As of `pack`.

    Raises:
        TypeError, ValueError: as of `pack`; a folder that holds rows of other options or sequences, with what differs.
        OSError: the folder cannot be written.
    """
    expect_path("folder", folder)
    options = Options(length=length, depth=depth, strategy=strategy, window=window, padding=padding)
    own, place = as_key(key), Path(folder)
    asked = {"options": asdict(options), "key": own.value}
    found = _manifest(place) or {**asked, "windows": [], "finished": False}
    before = {"key": found["key"], **found["options"]}
    for name, value in {"key": own.value, **asdict(options)}.items():
        if before[name] != value:
            raise ValueError(f"{folder} holds rows packed with {name} {before[name]}, not {value}: take another folder")
    place.mkdir(parents=True, exist_ok=True)
    windows, source = found["windows"], iter(iterable("sequences", sequences))
    for number in itertools.count():
        given = list(itertools.islice(source, options.window))
        if not given:
            break
        said = _digest(given)
        if number < len(windows):
            if windows[number]["digest"] != said:
                raise ValueError(f"{folder} holds rows of other sequences (window {number}): take another folder")
            continue
        if found["finished"]:
            raise ValueError(f"{folder} holds rows of fewer sequences: take another folder")
        rows = packed_window(given, options, own.fold_in(number), number * options.window)
        windows.append({**_written(place, number, rows), "digest": said})
        _keep(place, found)
    if not windows:
        raise ValueError("there are no sequences to pack")
    if number < len(windows):
        raise ValueError(f"{folder} holds rows of more sequences than were given: take another folder")
    if not found["finished"]:
        _keep(place, {**found, "finished": True})
    return PackedFolder(place)


def _written(folder: Path, number: int, rows: PackedRows) -> dict[str, Any]:
    """Writes a window's files, and what is known of it."""
    joined = np.concatenate([rows.tokens, rows.positions, rows.segments, rows.starts], axis=1)
    for name, array in (("rows", joined), ("sources", rows.sources)):
        with replacing(_file(folder, name, number)) as draft, draft.open("wb") as file:
            np.save(file, array)
    return {"rows": len(rows), "sequences": rows.sequences, "tokens": int((rows.segments > 0).sum())}


def _digest(window: list[Any]) -> str:
    """Of the tokens of some sequences and of where each ends."""
    lengths = np.fromiter(map(len, window), np.int64, len(window))
    total = hashlib.blake2b(lengths.tobytes(), digest_size=16)
    total.update(np.concatenate([np.asarray(each, np.int64) for each in window]).tobytes())
    return total.hexdigest()


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05}.npy"


def _keep(folder: Path, manifest: dict[str, Any]) -> None:
    with replacing(folder / MANIFEST) as draft:
        draft.write_text(json.dumps(manifest, indent=1), "utf-8")


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder holds; None: nothing.

    Raises:
        ValueError: it cannot be read.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        Options(**found["options"])
        return {name: found[name] for name in ("options", "key", "windows", "finished")}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is damaged, or of another program: take another folder") from None
