"""The manifest of a study's folder: version, settings and orders of sums, and how two manifests differ."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lowprec
from ipu_core.errors import OtherStudy
from ipu_core.ir.spelling import OLDER, OWN
from ipu_core.train.digests import digest

MANIFEST = "manifest.json"
ELSEWHERE = "choose another folder, or begin a new one beside it (--force; save(force=True))"


class Manifest(NamedTuple):
    """The contents of a manifest.

    Attributes:
        basis: What the results rest on: "lowprec" (the version), "settings", "accumulations".
        files: The checksums of files by name.
        trainings, executions: As a `Store` keeps them.
    """

    basis: dict[str, Any]
    files: dict[str, str]
    trainings: dict[str, str]
    executions: tuple[str, ...]


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a folder, of older lowprecs too.

    Raises:
        OtherStudy: there is no manifest, or it is damaged, or of a lowprec that kept no version.
        ValueError: it cannot be read.
    """
    path = Path(folder) / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise OtherStudy(f"{folder} holds results without a {MANIFEST}: {ELSEWHERE}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        basis = json.loads(text)
        # The digest is of what the results rest on alone: files and places come and go with every point.
        study = basis.pop("study")
        files = {str(name): str(known) for name, known in basis.pop("files", {}).items()}
        trainings = {str(name): str(known) for name, known in basis.pop("trainings", {}).items()}
        executions = tuple(map(str, basis.pop("executions", ())))
        # Such a folder is whole: it is not to be called damaged.
        if "lowprec" not in basis and study == digest(basis["settings"]):
            raise OtherStudy(
                f"{folder} holds a study of an older lowprec, which kept no version, and this is lowprec "
                f"{lowprec.__version__}: {ELSEWHERE}"
            )
        if study != digest(basis) or basis.keys() != {"lowprec", "settings", "accumulations"}:
            raise KeyError("study")
    except OtherStudy:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OtherStudy(f"{path} is damaged, or no study's manifest: {ELSEWHERE}") from error
    return Manifest(dict(basis), files, trainings, executions)


def renamed(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """Names of sums of an older lowprec, such as "17 grad_weight dot w1", each with the one that it has here.

    Args:
        there, here: what two studies rest on, or two results of one: "accumulations" by name.
    """
    now = {name.rpartition(".")[2]: name for name in here["accumulations"]}
    pairs = ((old, now.get(old.partition(" ")[0], "")) for old in there["accumulations"])
    return {old: new for old, new in pairs if _was(old, new)}


def in_names_of(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """`there` with its sums renamed as `here` names them."""
    names = renamed(there, here)
    return {**there, "accumulations": {names.get(name, name): one for name, one in there["accumulations"].items()}}


def _was(old: str, new: str) -> bool:
    """Whether `old` is an older lowprec's name, without the layer, of the sum that is called `new` now."""
    number, role, op, parameter = (*old.split(" ", 3), "", "", "")[:4]
    tail = f"{role.replace(OLDER, OWN)}.{op}.{number}"
    # The number alone would match a sum of another parameter.
    return new == f"{parameter}.{tail}" if parameter else new == tail or new.endswith(f".{tail}")


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In words, the first difference for which results of two manifests cannot stand in one folder."""
    if there["lowprec"] != here["lowprec"]:
        return f"a study of lowprec {there['lowprec']}, and this is lowprec {here['lowprec']}"
    # Said in one sentence: every setting has moved, and the list of changes would name them all.
    if "training" in here["settings"] and "training" not in there["settings"]:
        return "a study of an older lowprec, which kept what was asked for and not the Training that it meant"
    changes = list(_changes(there["settings"], here["settings"]))
    if changes:
        return f"a study with other settings ({', '.join(changes)})"
    # Digests of orders say nothing to a reader, so sums are named.
    names = sorted({name for name, _ in there["accumulations"].items() ^ here["accumulations"].items()})
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"a study with another order of sums ({names[0]}{more})"


def _changes(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """The values that differ, each with its path."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            yield from _changes(there.get(name), here.get(name), f"{path}.{name}" if path else name)
    elif there != here:
        yield f"{path} {_brief(there)} there, {_brief(here)} here"


def _brief(value: object) -> str:
    text = "not said" if value is None else json.dumps(value)
    return text if len(text) <= 24 else text[:21] + "..."
