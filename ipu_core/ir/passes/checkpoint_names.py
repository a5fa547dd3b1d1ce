"""Parts of a step that are made again, called by the names of layers and parameters: "blocks.*", "layers".

A pattern is as in rules of a precision. A part is the shortest beginning of a name, up to a dot, that it fits:
"blocks.*" makes "blocks.0", "blocks.1", ... The word "layers" alone makes a part of every layer, `layer_names`; a
module that is called so is "layers.*". Where names say nothing of an equation, it is of the part of the latest value
that it reads, unless it is of the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from ipu_core.ir.block import Block, Equation, RecomputedPart, Var
from ipu_core.ir.bodies import equations_of, mapped
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.passes.guard import BACKWARD
from ipu_core.ir.precision.loss_tail import LOSS
from ipu_core.ir.precision.rules import LAYERS, names_of

NEAR = 5  # names that a refusal offers
OF_GRADIENTS = (*BACKWARD, "forward")


def checkpointed(block: Block, patterns: Sequence[str]) -> Block:
    """The Block whose equations say of which part they are, with those of patterns beside those it has.

    Of a part in another the outer one is meant; one with a stash stays, for that decides bits.

    Raises:
        ValueError: a pattern that fits no name, with names that are near.
    """
    if not patterns:
        return block
    names = _Names(block, patterns)
    parts: dict[str, RecomputedPart] = {}
    found: dict[int, RecomputedPart] = {}
    latest: dict[Var, tuple[int, RecomputedPart]] = {}
    for place, equation in enumerate(equations_of(block)):
        part: RecomputedPart | None = None
        if equation.role in OF_GRADIENTS and (name := names.part(equation)) is not None:
            part = parts.setdefault(name, RecomputedPart(name))
        elif equation.role in OF_GRADIENTS and _is_nameless(equation):
            _, part = max((latest[var] for var in equation.operands if var in latest), default=(0, None), key=_place)
        if part is not None:
            found[equation.number] = part
            if equation.role == "forward":
                latest[equation.output] = place, part
    return _with_parts(block, found)


def _place(one: tuple[int, RecomputedPart | None]) -> int:
    return one[0]


def _is_nameless(equation: Equation) -> bool:
    return not (equation.layer or equation.parameter) and equation.family != LOSS


def _with_parts(block: Block, found: Mapping[int, RecomputedPart]) -> Block:
    """The Block with parts by number of an equation, beside those that are marked in it."""
    marked: dict[RecomputedPart, set[RecomputedPart | None]] = {}
    around: dict[RecomputedPart, set[RecomputedPart | None]] = {}
    for equation in equations_of(block):
        if equation.role in BACKWARD:
            continue
        own, other = equation.checkpoint, found.get(equation.number)
        if own is not None:
            marked.setdefault(own, set()).add(other)
        if other is not None:
            around.setdefault(other, set()).add(own)
    inner: dict[RecomputedPart, RecomputedPart] = {}
    for own, others in marked.items():
        (outer, *more) = others
        # Wholly within one outer part, that has more than it: else the two are one part under two names, and the marked
        # one stays.
        if not more and outer is not None and own.stash is None and around[outer] != {own}:
            inner[own] = outer

    def part(equation: Equation) -> RecomputedPart | None:
        own = equation.checkpoint
        return found.get(equation.number) if own is None else inner.get(own, own)

    return mapped(block, lambda equation: replace(equation, checkpoint=part(equation)))


class _Names:
    """What parts are called."""

    def __init__(self, block: Block, patterns: Sequence[str]) -> None:
        forward = [e for e in equations_of(block) if e.role == "forward" and e.op not in STRUCTURE]
        self._layers = layer_names(block) if LAYERS in patterns else frozenset()
        self._patterns = [pattern for pattern in patterns if pattern != LAYERS]
        names = dict.fromkeys(name for equation in forward for name in names_of(equation))
        for pattern in self._patterns:
            if all(beginning(name, pattern) is None for name in names):
                near = near_words(pattern, names)
                raise ValueError(f"recompute={pattern!r} is the name of nothing in this model; {near}")
        if LAYERS in patterns and not self._layers:
            raise ValueError("recompute='layers': no layer of this model has parameters")

    def part(self, equation: Equation) -> str | None:
        """What the part of an equation is called; None: there is none of its name."""
        names = [*names_of(equation)]
        found = [one for name in names for pattern in self._patterns if (one := beginning(name, pattern)) is not None]
        found += [max(own, key=len) for name in names if (own := self._layers.intersection(_beginnings(name)))]
        return min(found, key=lambda one: one.count("."), default=None)


def _beginnings(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def beginning(name: str, pattern: str) -> str | None:
    """The shortest beginning of a name that a pattern fits."""
    return next((one for one in _beginnings(name) if one == pattern or fnmatchcase(one, pattern)), None)


def near_words(pattern: str, names: Iterable[str]) -> str:
    """Names like a pattern, in words."""
    parts = dict.fromkeys(part for name in names for part in _beginnings(name))
    meant = pattern.replace("*", "").strip(".")
    near = get_close_matches(meant, list(parts), NEAR, 0.5) or list(parts)[:NEAR]
    return f"names are {', '.join(near)}{' ...' if len(parts) > NEAR else ''}"


def layer_names(block: Block) -> frozenset[str]:
    """The layers of a model, by the names of its parameters.

    A layer is the innermost numbered part that holds several layers with parameters of their own, such as a block of a
    Transformer or of a residual net; of "layers.0.weight" it is "layers.0". What has no number (an embedding, a head)
    is in none, unless nothing has: then every parameter's own layer is one.
    """
    equations = equations_of(block)
    names = dict.fromkeys(e.parameter for e in equations if e.role not in BACKWARD and e.parameter)
    inside: dict[str, set[str]] = {}
    for name in names:
        for part in _beginnings(_own(name)):
            inside.setdefault(part, set()).add(_own(name))

    def layer(name: str) -> str | None:
        numbered = [part for part in _beginnings(_own(name)) if part.rpartition(".")[2].isdecimal()]
        whole = [part for part in numbered if len(inside[part]) > 1]
        return next(reversed(whole or numbered), None)

    found = {each for name in names if (each := layer(name)) is not None}
    return frozenset(found or map(_own, names))


def _own(name: str) -> str:
    """The layer that a parameter is of."""
    return name.rpartition(".")[0] or name
