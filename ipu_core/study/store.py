"""A study's folder: append-only results.jsonl, manifest of the arguments, checkpoints of unfinished points."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ipu_core.train.checkpoint import replacing

RESULTS = "results.jsonl"
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
LONGEST = 160  # characters of a file's name; most file systems take 255 bytes, and a draft's name is longer
Result = dict[str, Any]


def digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings in canonical JSON: equal settings, equal digest."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Store:
    """The folder of one study, locked while it is open.

    Each finished point is one line of results.jsonl, on the disk when `append` returns.

    Args:
        folder: Created if it is not there.
        settings: What must be equal for results to belong together; JSON values.
        unsaid: What settings mean where a manifest leaves them out, for the message that names a difference.

    Raises:
        ValueError: the folder cannot be written, holds a study with other settings, or is in use.
    """

    def __init__(
        self, folder: str | Path, settings: Mapping[str, Any], unsaid: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = Path(folder)
        self._unsaid = unsaid or {}
        self.settings = json.loads(json.dumps(settings))
        self.digest = digest(self.settings)
        try:
            (self.folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.folder / RESULTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ValueError(f"cannot write to the output folder {self.folder}: {error.strerror}") from error
        try:
            self._lock()
            self._adopt()
            self._mend()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the folder free; removes the checkpoint folder if nothing is left in it but drafts of a kill."""
        for draft in (self.folder / CHECKPOINTS).glob(".*"):
            draft.unlink(missing_ok=True)
        os.close(self._file)
        with contextlib.suppress(OSError):
            (self.folder / CHECKPOINTS).rmdir()

    def results(self) -> list[Result]:
        """The finished points, in the order in which they finished."""
        return read_results(self.folder)

    def append(self, result: Mapping[str, Any]) -> None:
        """Adds one finished point: one write, then fsync, so a kill leaves whole lines or a torn last one.

        Raises:
            OSError: it cannot be written, as on a full disk; nothing of it stays.
        """
        line = json.dumps({**_finite(dict(result)), "study": self.digest}, allow_nan=False).encode() + b"\n"
        before = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / RESULTS))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def write_text(self, name: str, text: str) -> Path:
        """Writes a small text file beside the results, replacing it whole."""
        path = self.folder / name
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
        return path

    def checkpoint(self, point: str) -> Path:
        """Where the unfinished state of a point is kept."""
        return self.folder / CHECKPOINTS / file_name(f"{point} {self.digest[:12]}")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"another study is running in {self.folder}: wait for it or choose another folder"
            ) from error

    def _adopt(self) -> None:
        """Takes over a folder of the same study; refuses one with other settings, naming them."""
        path = self.folder / MANIFEST
        begun = os.fstat(self._file).st_size > 0
        if begun and not path.exists():
            raise ValueError(f"{self.folder} holds a {RESULTS} without a {MANIFEST}: choose another folder")
        if begun and (held := _manifest_settings(path)) != self.settings:
            there, here = ({**self._unsaid, **settings} for settings in (held, self.settings))
            names = sorted(k for k in {*there, *here} if there.get(k) != here.get(k))
            changes = ", ".join(f"{k} {_brief(there.get(k))} there, {_brief(here.get(k))} here" for k in names)
            raise ValueError(
                f"{self.folder} holds a study with other settings ({changes}): choose another folder or remove that one"
            )
        if begun:
            return
        text = json.dumps({"study": self.digest, "settings": self.settings}, indent=2) + "\n"
        try:
            self.write_text(MANIFEST, text)
        except OSError as error:
            raise ValueError(f"cannot write to the output folder {self.folder}: {error.strerror}") from error

    def _mend(self) -> None:
        """Cuts off a last line that a kill left unfinished: its point is simply run again."""
        data = (self.folder / RESULTS).read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(self._file, whole)


def file_name(words: str) -> str:
    """The name of an .npz after some words; many words are cut, and told apart by their hash."""
    name = words.replace("/", "-").replace(" ", "-")
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    return f"{name}.npz"


def read_results(folder: str | Path) -> list[Result]:
    """Reads the finished points of a study's folder, each once; null losses come back as NaN.

    Raises:
        ValueError: there is no such file, it is no text, or one of its whole lines is not a point's result.
    """
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"no results: {path} does not exist")
    results: dict[tuple[str, int], Result] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            result = json.loads(line)
            result["losses"] = [math.nan if loss is None else float(loss) for loss in result["losses"]]
            results.setdefault((str(result["precision"]), int(result["seed"])), result)
            result["losses"][0]
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{path}, line {number}, is not a result: remove the line or the folder") from error
    return list(results.values())


def agree(one: Result, other: Result) -> bool:
    """Whether two results of a point say the same in all that both of them say, but for the time they took."""
    names = (one.keys() & other.keys()) - {"seconds", "study"}
    first, second = ({name: _finite(result[name]) for name in names} for result in (one, other))
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _manifest_settings(path: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["settings"]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a study's manifest: choose another folder or remove it") from error
    return settings


def _brief(value: object) -> str:
    text = "not said" if value is None else json.dumps(value)
    return text if len(text) <= 24 else text[:21] + "..."


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
