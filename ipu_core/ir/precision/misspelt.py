"""What was meant by a text that is no precision's name, for the message that refuses it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from lowprec import FloatFormat, aliases, formats

SHORT: Mapping[str, str] = {"float64": "float64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Formats by the names that begin those of precisions."""


def with_commas(spec: str, presets: Collection[str]) -> str:
    """What to write in place of a name with commas."""
    first, *others = (word.strip() for word in spec.split(","))
    if any(word.split("/")[0] in presets for word in others):
        return f"{spec!r} is several precisions where one is wanted; a list of them is {[first, *others]}"
    return f"settings of a precision are joined by '/', not ',': write {'/'.join([first, *others])!r}"


def _nearest(name: str, presets: Collection[str]) -> list[str]:
    """The presets with what goes before the dot of a name, or that begin with it, or else are most like it."""
    heads: dict[str, list[str]] = {}
    for preset in presets:
        heads.setdefault(preset.partition(".")[0], []).append(preset)
    head, dot, _ = name.partition(".")
    if head in heads:
        return heads[head]
    if dot:
        return difflib.get_close_matches(name, presets, 2)
    if longer := [preset for preset in presets if name and preset.startswith(name)]:
        return longer
    return [preset for near in difflib.get_close_matches(name, heads, 2) for preset in heads[near]]


def _of_format(fmt: FloatFormat, presets: Collection[str]) -> list[str]:
    """The presets that multiply in a format, or in others of as few bits; none for what no preset is for."""
    short = SHORT.get(fmt.name, f"fp{fmt.bits}")
    return [preset for preset in presets if preset.partition(".")[0].endswith(short) and "unit" not in preset]


def meant(name: str, presets: Collection[str]) -> str:
    """What may have been meant by an unknown precision: presets with names like it, or those that multiply in a format.

    It goes on an error message; "" where nothing comes near.
    """
    known = "float8_e4m3fn" if name.lower() in ("fp8", "float8") else name.lower()
    fmt = formats.get(known) or aliases.get(known)
    if fmt is None:
        near = _nearest(name.lower(), presets)
        return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    one = _of_format(fmt, presets) or [f"fp16.32/operands={fmt.name}"]
    return f": that is a format; a precision says what is multiplied and what is summed in, such as {', '.join(one)}"
