"""A pass that makes parts of the forward pass again for their gradients, sums too, and keeps what they read.

Chen et al. 2016, arXiv 1604.06174. An equation says which part it belongs to (`Equation.checkpoint`), a forward one and
the gradients of such. Just before the first gradient of a part that reads a value of it, what makes that value is
copied; a copy draws the random bits of the first and has its order of a sum. It waits for the gradient that enters the
part, so that no order of the equations makes it where it would have to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ipu_core.ir.block import Block, Equation, Params, RecomputedPart, Type, Var
from ipu_core.ir.bodies import (
    carries_of,
    closed,
    equations_of,
    flat,
    fresh,
    mapped,
    mapped_inside,
    outputs_of,
    per_body,
    reads_of,
)
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import OPS, STRUCTURE
from ipu_core.ir.passes.guard import BACKWARD
from ipu_core.ir.passes.scan_checkpoints import with_scan_checkpoints
from ipu_core.ir.passes.schedule import dead_code
from lowprec import FloatFormat

Choice = Callable[[RecomputedPart], bool]
"""Whether a part is made again."""


def checkpoints_of(block: Block) -> tuple[RecomputedPart, ...]:
    """The parts that forward equations of a Block belong to, in order."""
    found = (equation.checkpoint for equation in equations_of(block) if equation.role not in BACKWARD)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def with_checkpoints(block: Block, chosen: Choice) -> Block:
    """The Block whose gradients read parts of the forward pass that are made again.

    All outputs have the same bits, but where a part has a stash: that decides some.

    Args:
        block: typed; every format must have a storage dtype.
        chosen: the parts.
    """
    if not any(map(chosen, checkpoints_of(block))):
        return block
    block = with_scan_checkpoints(block, chosen)
    copying = _Copying(block, chosen)
    equations = per_body(block.equations, copying.run)
    return dead_code(closed(replace(block, equations=tuple(equations))))


def with_stash(block: Block, fmt: FloatFormat) -> Block:
    """The Block whose parts without a stash have one in a format.

    Raises:
        ValueError: it has no parts.
    """
    parts = checkpoints_of(block)
    if not parts:
        raise ValueError(f"stash={fmt.name!r} is for parts that nn.checkpoint marks, of which this model has none")
    new = {part: part if part.stash else RecomputedPart(part.name, fmt) for part in parts}
    return mapped(block, lambda e: replace(e, checkpoint=new[e.checkpoint]) if e.checkpoint else e)


def read_anew(block: Block) -> frozenset[RecomputedPart]:
    """The parts of which a Block has copies."""
    made = (equation.checkpoint for equation in equations_of(block) if equation.drawn is not None)
    return frozenset(each for each in made if each is not None)


class _Copying:
    """What has been copied.

    Attributes:
        equations: so far of those that stand together.
        again: by part and value, the copy.
    """

    def __init__(self, block: Block, chosen: Choice) -> None:
        self._chosen = chosen
        self._fresh = fresh(block.equations)
        self._views = lifetimes(block).views
        self._made = {equation.output: equation for equation in equations_of(block)}
        self._place = {equation.output: place for place, equation in enumerate(equations_of(block))}
        kept = (*outputs_of(block), *block.offloaded, *(new for _, new in carries_of(block)))
        self._kept = {self._views[var].root for var in kept}
        self._stashes: dict[tuple[RecomputedPart, Var], Var] = {}
        self._waits: dict[RecomputedPart, Var | None] = {}
        self._part: dict[Var, RecomputedPart] = {}
        self.equations: list[Equation] = []
        self.again: dict[tuple[RecomputedPart, Var], Var] = {}
        self._there: set[Var] = set()
        self._here: set[Var] = set()

    def run(self, equations: Sequence[Equation]) -> Sequence[Equation]:
        """New equations for those of a body."""
        self._part, self.equations = self._parts(equations), []
        self._here = {var for e in equations if e.region is None for var in e.outputs}
        self._waits = self._entering(equations)
        for equation in equations:
            if equation.region is not None:
                self.equations.append(self._region(equation))
                self._there.update(equation.region.results)
                continue
            part = self._part.get(equation.output)
            if part is not None and part.stash is not None:
                equation = self._from_stashes(equation, part, part.stash)
            elif equation.role in BACKWARD and (of := equation.checkpoint) is not None and self._chosen(of):
                equation = self._of_copies(equation, of)
            self.equations.append(equation)
            self._there.add(equation.output)
        return self.equations

    def _parts(self, equations: Sequence[Equation]) -> dict[Var, RecomputedPart]:
        """By value of the forward pass, the part that it is of. Casts of parameters are of the part that reads them."""
        forward = [e for e in equations if e.region is None and e.role not in BACKWARD and e.drawn is None]
        part = {e.output: e.checkpoint for e in forward if e.checkpoint is not None and self._chosen(e.checkpoint)}
        readers: dict[Var, set[RecomputedPart | None]] = {}
        for region in equations:
            for var in reads_of(region) if region.region is not None else ():
                readers.setdefault(var, set()).add(None)  # it is cast once for all places
        for equation in reversed(forward):
            own = part.get(equation.output)
            found = readers.get(equation.output, {None})
            if own is None and len(found) == 1 and self._is_cast_of_input(equation):
                (own,) = found
            if own is not None:
                part[equation.output] = own
            for var in equation.operands:
                readers.setdefault(var, set()).add(own)
        return part

    def _is_cast_of_input(self, equation: Equation) -> bool:
        """Whether it converts or moves what is there all the time."""
        simple = equation.op == "convert" or equation.op in STRUCTURE
        while simple and (maker := self._made.get(equation.operands[0])) is not None:
            equation = maker
            simple = (equation.op == "convert" or equation.op in STRUCTURE) and len(equation.operands) == 1
        return simple

    def _entering(self, equations: Sequence[Equation]) -> dict[RecomputedPart, Var | None]:
        """By part the first gradient of what is behind it that one of its own reads."""
        found: dict[RecomputedPart, Var | None] = {}
        for equation in (each for one in equations for each in ([one] if one.region is None else flat([one]))):
            part = equation.checkpoint
            if part is None or equation.role not in BACKWARD or part in found:
                continue
            for var in equation.operands:
                # What a body's own copies have made is no matter of the part's beginning.
                maker = self._made.get(self._views[var].root) if var in self._views else None
                enters = maker is not None and maker.role in BACKWARD and maker.checkpoint is not part
                if maker is not None and enters and maker.output in self._here:
                    found[part] = maker.output
                    break
        return found

    def _region(self, equation: Equation) -> Equation:
        """A region whose gradients read copies, which are made before it."""

        def reading(inner: Equation) -> Equation:
            part = inner.checkpoint
            if inner.role not in BACKWARD or part is None or not self._chosen(part):
                return inner
            outside = [var for var in inner.operands if var in self._here]
            self._copy(outside, part)
            new = {var: self._read(var, part) for var in outside}
            return replace(inner, inputs=tuple(new.get(x, x) if isinstance(x, Var) else x for x in inner.inputs))

        return mapped_inside(equation, reading)

    def _of_copies(self, equation: Equation, part: RecomputedPart) -> Equation:
        """A gradient that reads copies; what they are made of is copied first."""
        self._copy(equation.operands, part)
        return self._rewired(equation, part)

    def _rewired(self, equation: Equation, part: RecomputedPart) -> Equation:
        inputs = tuple(self._read(x, part) if isinstance(x, Var) else x for x in equation.inputs)
        return equation if inputs == equation.inputs else replace(equation, inputs=inputs)

    def _read(self, var: Var, part: RecomputedPart) -> Var:
        """What gradients and copies of a part read for a value."""
        if (part, var) not in self.again and (stash := self._stashes.get((part, var))) is not None:
            self._restore(var, stash, part)
        return self.again.get((part, var), var)

    def _is_anew(self, var: Var, part: RecomputedPart) -> bool:
        """Whether a value is one of a part, or a view of one, that is not kept anyway."""
        root = self._views[var].root
        if root in self._kept or var not in self._here or self._made[var].role in BACKWARD:
            return False
        return part in (self._part.get(var), self._part.get(root))

    def _copy(self, wanted: Iterable[Var], part: RecomputedPart) -> None:
        """Copies what makes values, in the order of the first."""
        pending, found = list(wanted), set[Var]()
        while pending:
            var = pending.pop()
            if var not in found and (part, var) not in self.again and self._is_anew(var, part):
                found.add(var)
                pending += self._made[var].operands
        for var in sorted(found, key=self._place.__getitem__):
            equation = self._rewired(self._made[var], part)
            self._append(replace(equation, drawn=equation.keyed), var, f"{var.name}.again", part)

    def _append(self, equation: Equation, var: Var, name: str, part: RecomputedPart) -> None:
        """Appends a copy, with a number of its own, once the gradient is there that enters the part."""
        waits = self._waits.get(part)
        if waits not in self._there:
            waits = None  # it is made later, as of a part with several results may be
        output = self.again[part, var] = Var(name, var.type)
        self.equations.append(replace(equation, number=self._next(), outputs=(output,), waits=waits, checkpoint=part))

    def _next(self) -> int:
        number = self._fresh
        self._fresh += 1
        return number

    def _from_stashes(self, equation: Equation, part: RecomputedPart, fmt: FloatFormat) -> Equation:
        """A forward equation before which what it reads of outside is kept in few bits."""
        read = dict[Var, Var]()
        for var in dict.fromkeys(equation.operands):
            if self._is_stashed(var, part, fmt):
                stash = self._stashes.get((part, var)) or self._keep(var, part, fmt)
                read[var] = stash
        if not part.goes_on or not read:
            return equation
        wide = {var: self._widened(var, stash, part) for var, stash in read.items()}
        return replace(equation, inputs=tuple(wide.get(x, x) if isinstance(x, Var) else x for x in equation.inputs))

    def _is_stashed(self, var: Var, part: RecomputedPart, fmt: FloatFormat) -> bool:
        """Whether it is an activation from outside a part, with more bits than its stash."""
        maker = self._made.get(self._views[var].root)
        outside = maker is not None and maker.role not in BACKWARD and self._part.get(var) is not part
        return outside and isinstance(var.type.format, FloatFormat) and not fmt.contains(var.type.format)

    def _keep(self, var: Var, part: RecomputedPart, fmt: FloatFormat) -> Var:
        """Rounds a value to nearest into its stash."""
        stash = self._stashes[part, var] = Var(f"{var.name}.stash", Type(var.type.shape, fmt))
        self.equations.append(_convert(self._next(), var, stash, part))
        return stash

    def _widened(self, var: Var, stash: Var, part: RecomputedPart) -> Var:
        """A stash in the format of what it is kept of, from which the forward pass goes on."""
        wide = next((e.output for e in self.equations if e.operands == (stash,) and e.drawn is None), None)
        if wide is None:
            wide = Var(f"{var.name}.kept", var.type)
            self.equations.append(_convert(self._next(), stash, wide, part))
        return wide

    def _restore(self, var: Var, stash: Var, part: RecomputedPart) -> None:
        """A stash in the format of what it is kept of, for what is made again."""
        first = next(e.number for e in self.equations if e.output is stash)
        self._append(replace(_convert(0, stash, var, part), drawn=first), var, f"{var.name}.restored", part)


def _convert(number: int, var: Var, output: Var, part: RecomputedPart) -> Equation:
    """A rounding to nearest, which draws nothing."""
    family = OPS["convert"].family
    return Equation(number, "convert", (var,), (output,), Params({}), family=family, layer=part.name, checkpoint=part)
