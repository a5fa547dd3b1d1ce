"""A study's folder: append-only results.jsonl, the manifest they rest on, checkpoints of unfinished points."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import lowprec
from ipu_core.errors import OtherStudy, refusal_in_words
from ipu_core.study.files import CHECKPOINTS, OWN, checksum, file_name, write_text, writing
from ipu_core.study.manifest import ELSEWHERE, MANIFEST, difference, in_names_of, read_manifest, renamed
from ipu_core.study.summary import MACHINE
from ipu_core.train.checkpoint import sweep, sync
from ipu_core.train.digests import canonical, digest

RESULTS = "results.jsonl"
SEAL = b', "sha256": "'  # ends the text of a line that its checksum is of
Result = dict[str, Any]


class Store:
    """The folder of one study, locked while it is open.

    Each finished point is one line of results.jsonl, on the disk when `append` returns. It ends with its own checksum
    and names the study of the manifest, so that lines that were changed or are another study's are seen. The manifest
    has the checksum of every other file that a finished point wrote.

    Attributes:
        folder: Where it is.
        damaged: Names of files of finished points that are not what was written, as far as `inspect` has seen.
        executions: Where its points were trained, in words; that decides no bit.

    Args:
        folder: Created if it is not there.
        settings: What must be equal for results to belong together; JSON values.
        accumulations: The digest of the order of every sum, by name: these must be equal too.
        trainings: The digest of the `Training` of each precision: equal where the folder holds the precision.

    Raises:
        OtherStudy: the folder holds a study with other settings, orders or Trainings, of another version of lowprec,
            or damaged.
        ValueError: the folder cannot be written or is in use.
    """

    def __init__(
        self, folder: str | Path, settings: Mapping[str, Any], accumulations: Mapping[str, str] | None = None,
        trainings: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder = Path(folder)
        basis = {"lowprec": lowprec.__version__, "settings": settings, "accumulations": accumulations or {}}
        # As it will be read back: JSON turns tuples into lists and number keys into text.
        self._basis = json.loads(json.dumps(basis))
        self.digest = digest(self._basis)
        self._files: dict[str, str] = {}
        self._trainings, self.executions = dict(trainings or {}), tuple[str, ...]()
        self.damaged = set[str]()
        self._untouched = False
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.folder / RESULTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._lock()
            self._adopt()
            self._mend()
            sweep(self.folder, OWN)
            self._sweep_checkpoints()
        except BaseException:
            self._withdraw()
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._withdraw()
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Store holds its folder's lock and cannot be copied or pickled: open another one")

    def close(self) -> None:
        """Unlocks the folder; removes the checkpoint folder if it holds nothing but drafts of a killed process."""
        self._sweep_checkpoints()
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
        body = json.dumps({**_finite(dict(result)), "study": self.digest}, allow_nan=False).encode()
        line = _sealed(body) + b"\n"
        before = os.fstat(self._file).st_size
        try:
            # A full disk takes a part and raises nothing.
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / RESULTS))
            os.fsync(self._file)
        except OSError:
            # Half a line would make the next one unreadable.
            os.ftruncate(self._file, before)
            raise

    def write_all(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Writes texts by the names of their files; gives those that could not be written, with the reason."""
        unwritten = {}
        for name, text in texts.items():
            try:
                write_text(self.folder / name, text)
            except OSError as error:
                unwritten[name] = refusal_in_words(error)
        return unwritten

    def checkpoint(self, point: str) -> Path:
        """Where the unfinished state of a point is kept."""
        # The digest in the name: a checkpoint of other settings is never taken up.
        return self.folder / CHECKPOINTS / file_name(f"{point} {self.digest[:12]}")

    def sweep(self, finished: Iterable[str], wanted: Container[Path]) -> None:
        """Removes the checkpoints of finished points, which a kill may leave, except those that tasks go on from."""
        for path in map(self.checkpoint, finished):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def keep(self, files: Iterable[Path]) -> None:
        """Keeps the checksums of what a finished point wrote into the folder; before its result, so that it has them.

        Raises:
            OSError: the manifest cannot be written; what was made is taken for unfinished by the next store.
        """
        found = {path.name: known for path in files if (known := checksum(path)) is not None}
        if found:
            self._files |= found
            self.damaged -= found.keys()
            self._write_manifest()

    def trained_by(self, *executions: str) -> None:
        """Adds where points are trained, in words, to the manifest; from here on the folder holds a study."""
        self._untouched = False
        if new := [words for words in executions if words not in self.executions]:
            self.executions = (*self.executions, *new)
            with writing(self.folder):
                self._write_manifest()

    def inspect(self) -> None:
        """Looks for damaged files of finished points."""
        # A file that is gone is not damaged: it is just made again.
        self.damaged = {
            name for name, known in self._files.items() if checksum(self.folder / name) not in (known, None)
        }

    def whole(self, file: Path) -> bool:
        """Whether a file is there as a finished point has written it."""
        return file.name in self._files and file.name not in self.damaged and file.is_file()

    def set_aside(self, file: Path) -> None:
        """Gives a damaged file another name, so that it can be made again."""
        # Renamed, not removed: what is in it may be all that there is.
        file.replace(file.with_name(f"{file.name}.damaged"))
        self.damaged.discard(file.name)

    def forget(self, files: Iterable[Path]) -> None:
        """Drops the checksums of files that are about to be written: a kill leaves them unfinished, not damaged."""
        names = self._files.keys() & {file.name for file in files}
        if names:
            self._files = {name: known for name, known in self._files.items() if name not in names}
            self._write_manifest()

    def _withdraw(self) -> None:
        """Removes the manifest of a new folder whose study was refused before any training."""
        # Not where a point has a checkpoint: without the manifest that training could not go on.
        if self._untouched and not self._unfinished():
            (self.folder / MANIFEST).unlink(missing_ok=True)

    def _unfinished(self) -> bool:
        """Whether there are points that go on from a checkpoint."""
        # Drafts begin with a dot, and are nothing that can be gone on from.
        return any((self.folder / CHECKPOINTS).glob("[!.]*"))

    def _sweep_checkpoints(self) -> None:
        sweep(self.folder / CHECKPOINTS, re.compile(r".+\.npz"))

    def _write_manifest(self) -> None:
        beside = {"trainings": self._trainings, "executions": self.executions, "files": self._files}
        whole = {"study": self.digest, **self._basis, **beside}
        write_text(self.folder / MANIFEST, json.dumps(whole, indent=2) + "\n")

    def _lock(self) -> None:
        try:
            # Freed by the system when the process dies: a killed study never locks its folder for good.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"another study is running in {self.folder}: wait for it or choose another folder"
            ) from error

    def _adopt(self) -> None:
        """Takes over a folder of the same study, refuses one of another, and begins one where there is none yet."""
        finished = os.fstat(self._file).st_size > 0
        # Also without a finished point: a folder belongs to its study from the first moment.
        if finished or self._unfinished() or (self.folder / MANIFEST).exists():
            held = read_manifest(self.folder)
            found = in_names_of(held.basis, self._basis)
            # 1 and 1.0 are one setting.
            if canonical(found) != canonical(self._basis):
                begun = self._unfinished() or any(self.folder.glob("results-*.jsonl"))  # of fewer steps
                way = f", no point of it is finished: {'go on with it' if begun else 'remove it'}, "
                there = difference(found, self._basis)
                raise OtherStudy(f"{self.folder} holds {there}{': ' if finished else way}{ELSEWHERE}")
            for old, new in [*renamed(held.basis, self._basis).items()][:1]:
                words = f"{self.folder} keeps the names that an older lowprec gave sums: {old!r} is {new!r} now"
                warnings.warn(words, DeprecationWarning, stacklevel=2)
            self._basis, self.digest = held.basis, digest(held.basis)  # in which 1 may be written 1.0
            for name, own in self._trainings.items():
                if held.trainings.get(name, own) != own:
                    raise OtherStudy(f"{self.folder} holds a study with another Training in {name}: {ELSEWHERE}")
            self.results()
            self._files, self.executions = held.files, held.executions
            more = self._trainings.keys() - held.trainings.keys()
            self._trainings = {**held.trainings, **self._trainings}
            if more:
                with writing(self.folder):
                    self._write_manifest()
        else:
            with writing(self.folder):
                self._write_manifest()
                sync(self.folder)  # the empty results.jsonl is there after a power cut, like the manifest
            self._untouched = True
        with writing(self.folder):
            (self.folder / CHECKPOINTS).mkdir(exist_ok=True)

    def _mend(self) -> None:
        """Cuts off a last line that a kill left unfinished: its point is simply run again."""
        data = (self.folder / RESULTS).read_bytes()
        # Behind a torn line the next result would be a part of it.
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(self._file, whole)


def open_store(
    folder: str | Path, settings: Mapping[str, Any], accumulations: Mapping[str, str],
    trainings: Mapping[str, str] | None = None, *, force: bool = False,
) -> Store:  # fmt: skip
    """The store of a study in a folder; see `Store`.

    Args:
        folder, settings, accumulations, trainings: As of a `Store`.
        force: Where the folder holds another study, take the first beside it (NAME-2, NAME-3, ...) that holds none or
            this one. What is there stays as it is.
    """
    # '.' and '..' have no name that a number can be put behind.
    first = Path(folder) if Path(folder).name.strip(".") else Path(folder).resolve()
    place, number = Path(folder), 1
    while True:
        try:
            return Store(place, settings, accumulations, trainings)
        except OtherStudy:
            if not force:
                raise
        number += 1
        place = first.with_name(f"{first.name}-{number}")


def read_results(folder: str | Path) -> list[Result]:
    """Reads the finished points of a study's folder, each once; null losses come back as NaN.

    A last line without its end, which is being written or was when its process was killed, does not count.

    Raises:
        ValueError: there is no such file, or the manifest or one of the lines is damaged or another study's.
    """
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"no results: {path} does not exist")
    # The last piece is empty, or a line that is still being written.
    *lines, _ = path.read_bytes().split(b"\n")
    study = digest(read_manifest(folder).basis) if lines else ""
    results: dict[tuple[str, int], Result] = {}
    for number, line in enumerate(lines, 1):
        body = line.rpartition(SEAL)[0] + b"}"
        # Sealed again and compared, not parsed: what follows may then trust the JSON.
        if _sealed(body) != line:
            raise OtherStudy(f"{path}, line {number}, is damaged: remove the line, or {ELSEWHERE}")
        result = json.loads(body)
        if result["study"] != study:
            raise OtherStudy(f"{path}, line {number}, is of another study: remove the line, or {ELSEWHERE}")
        result["losses"] = [math.nan if loss is None else float(loss) for loss in result["losses"]]
        results.setdefault((str(result["precision"]), int(result["seed"])), result)
    return list(results.values())


def agree(one: Result, other: Result) -> bool:
    """Whether two results of a point are equal in the fields that both have, but for time, study and machine."""
    # Of older results some fields are missing, and figures of a machine decide no bit.
    names = (one.keys() & other.keys()) - {"seconds", "study", *MACHINE}
    other = in_names_of(other, one) if "accumulations" in names else other
    first, second = ({name: _finite(result[name]) for name in names} for result in (one, other))
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _sealed(body: bytes) -> bytes:
    """A JSON object with the checksum of its text as the last of its fields."""
    return body[:-1] + SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}'


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
