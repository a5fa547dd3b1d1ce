"""What was meant by a text that is no precision's name, for the message that refuses it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from lowprec import aliases, formats

SHORT: Mapping[str, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Formats by the names that begin those of precisions."""


def with_commas(spec: str, presets: Collection[str]) -> str:
    """What to write in place of a name with commas."""
    first, *others = (word.strip() for word in spec.split(","))
    if any(word.split("/")[0] in presets for word in others):
        return f"{spec!r} is several precisions where one is wanted; a list of them is {[first, *others]}"
    return f"settings of a precision are joined by '/', not ',': write {'/'.join([first, *others])!r}"


def meant(name: str, presets: Collection[str]) -> str:
    """A question, for a name that is a format's or nearly a precision's."""
    known = "float8_e4m3fn" if name.lower() in ("fp8", "float8") else name.lower()
    fmt = formats.get(known) or aliases.get(known)
    short = name.lower() if fmt is None else SHORT.get(fmt.name, "fp8")
    near = [preset for preset in presets if preset.startswith(short)] or difflib.get_close_matches(name, presets, 2)
    if fmt is None:
        return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    one = near or [f"fp16.32/operands={fmt.name}"]
    return f": that is a format; a precision says what is multiplied and what is summed in, such as {', '.join(one)}"
