"""The verifier of a Block: refuses, by kind, what no later pass should have to expect."""

from __future__ import annotations

from collections.abc import Iterable

from ipu_core.ir.block import ROLES, Block, Equation, Literal, Region, Type, Var, format_name
from ipu_core.ir.bodies import flat, regions_of
from ipu_core.ir.ops import CUSTOM, GATHERS, INT32, OPS, SET_ROW, STRUCTURE, VIEWS, check, gives_integers
from ipu_core.ir.regions import Branch, Loop, Scan


class InvalidBlock(ValueError):
    """A Block that breaks a rule; the message names the equation, the rule and what was found."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class UnknownOperation(InvalidBlock):
    """An equation's operation or role is not in the tables."""


class UseBeforeDefinition(InvalidBlock):
    """An equation or output reads a value that no input, constant or earlier equation gives."""


class DuplicateDefinition(InvalidBlock):
    """A value is given twice, or two equations have one number."""


class WrongType(InvalidBlock):
    """The type of a result or of a carried state is not what its operation gives."""


def verify(block: Block) -> Block:
    """The Block itself, if it keeps the rules.

    Raises:
        UnknownOperation, UseBeforeDefinition, DuplicateDefinition, WrongType: all `InvalidBlock`, a ValueError.
    """
    verifier = _Verifier()
    verifier.begin(block, "the inputs and constants")
    for var, array in block.constants.items():
        if array.shape != var.type.shape:
            raise WrongType(f"constant {var} has type {var.type} but shape {array.shape}")
    defined = {*block.inputs, *block.constants}
    verifier.equations(block.equations, defined)
    for loop, _ in regions_of(block, Loop):
        _check_parts(block, loop)
    for branch, _ in regions_of(block, Branch):
        _check_choice(block, branch)
    _check_outputs(block.outputs, defined, "the output")
    for old, new in zip(block.inputs[: block.carried], block.outputs, strict=False):
        if old.type != new.type:
            raise WrongType(f"the carried state {old} is {old.type} before the step and {new.type} after it")
    return block


class _Verifier:
    """What is known so far of a Block and the bodies in it.

    Attributes:
        known: all values: none is defined twice, wherever.
        numbers: of all equations.
    """

    def __init__(self) -> None:
        self.known: set[Var] = set()
        self.numbers: set[int] = set()

    def begin(self, block: Block, where: str) -> None:
        """Takes up what is there before the first equation."""
        for var in (*block.inputs, *block.constants):
            _define(self.known, var, where)

    def equations(self, equations: Iterable[Equation], defined: set[Var]) -> None:
        """Checks equations in order; adds their results to what is defined where they are."""
        for equation in equations:
            where = equation.name
            if equation.number in self.numbers:
                raise DuplicateDefinition(f"{where}: another equation has the number {equation.number}")
            self.numbers.add(equation.number)
            for var in (*equation.operands, *filter(None, (equation.waits,))):
                if var not in defined:
                    raise UseBeforeDefinition(f"{where}: {var} is not defined before it is used")
            if equation.region is not None:
                self._region(equation, equation.region, where)
                # A value is the same Var inside and outside of a body, where it was defined.
                inside = set(equation.region.body.outputs)
                fresh = [var for var in equation.outputs if var not in inside]
            else:
                _check_equation(equation, where)
                fresh = list(equation.outputs)
            for var in fresh:
                _define(self.known, var, where)
            for var in equation.outputs:
                _define(defined, var, where)

    def _region(self, equation: Equation, region: Region, where: str) -> None:
        """A body reads what is given to its region and gives what is read of it, and draws no number of another's."""
        body, own = region.body, set(region.own)
        if not equation.outputs:
            raise WrongType(f"{where}: a region without results")
        if equation.number >= 0:
            raise DuplicateDefinition(f"{where}: the number of a region is negative, those from 0 are for random bits")
        for var in region.own:
            _define(self.known, var, where)
        for var in (*region.operands, *(var for var in body.inputs if var not in own)):
            if var not in equation.operands:
                raise UseBeforeDefinition(f"{where}: its body reads {var}, which is no input of it")
        inside = {*body.inputs, *own}
        self.equations(body.equations, inside)
        _check_outputs(body.outputs, inside, f"{where}: the body's output")
        given = {*body.outputs, *region.results}
        missing = [*(set(region.ends) - set(body.outputs)), *(set(equation.outputs) - given)]
        if missing:
            raise UseBeforeDefinition(f"{where}: {', '.join(map(str, missing))} is no output of the body")
        if isinstance(region, Loop):
            _check_carries(region)
        if isinstance(region, Scan):
            _check_scan(region, where)


def _check_outputs(outputs: Iterable[Var], defined: set[Var], what: str) -> None:
    for var in outputs:
        if var not in defined:
            raise UseBeforeDefinition(f"{what} {var} is not defined")


def _check_carries(loop: Loop) -> None:
    """Every total is computed anew in the body, in the type it had."""
    made = {e.output for e in flat(loop.body.equations) if e.op not in VIEWS}
    for old, new in loop.carries:
        if new not in made:
            raise UseBeforeDefinition(f"the total {old} becomes {new}, which no equation of the iterations computes")
        if old.type != new.type:
            raise WrongType(f"the total {old} is {old.type} before an iteration and {new.type} after it")


def _check_scan(scan: Scan, where: str) -> None:
    """Carries begin with what has their type, each place with its number."""
    if scan.fed or scan.count < 1 or scan.place.type != Type((1,), INT32) or len(scan.starts) != len(scan.carries):
        raise WrongType(f"{where}: a scan has a place, one int32 in an array, and a start for each carry, nothing fed")
    for start, (old, _) in zip(scan.starts, scan.carries, strict=True):
        if isinstance(start, Var) and start.type != old.type:
            raise WrongType(f"{where}: {old}, which is {old.type}, begins with {start}, which is {start.type}")


def _check_parts(block: Block, loop: Loop) -> None:
    """What is fed is given by whoever runs the Block, and holds a part for each iteration."""
    for whole, part in loop.fed:
        if whole not in block.inputs[block.carried :]:
            raise UseBeforeDefinition(f"iterations have parts of {whole}, which is no input")
        rows, *shape = part.type.shape or (0,)
        if whole.type != Type((loop.count * rows, *shape), part.type.format):
            raise WrongType(f"{loop.count} rounds with parts {part.type} of {whole}, which is {whole.type}")


def _check_choice(block: Block, branch: Branch) -> None:
    """A branch chooses all of the carried state, and nothing else; what is no state is made in every step."""
    if branch.flag.type.shape:
        raise WrongType(f"the flag of a branch must be one number, not {branch.flag.type}")
    state = tuple(zip(block.outputs[: block.carried], block.inputs, strict=False))
    if tuple((result, old) for result, _, old in branch.chosen) != state:
        raise UseBeforeDefinition("a branch must choose between the new and the old carried state, all of it")
    for result, new, old in branch.chosen:
        if not result.type == new.type == old.type:
            raise WrongType(f"{result}, which is {result.type}, is chosen of {new.type} and {old.type}")
    inside = {equation.output for equation in flat(branch.body.equations)}
    read = {var for equation in block.equations for var in equation.operands}
    if {*block.outputs[block.carried :], *read} & {*inside, *branch.results}:
        raise UseBeforeDefinition("what a branch makes is read outside, in which it may not have run")


def _define(defined: set[Var], var: Var, where: str) -> None:
    if var in defined:
        raise DuplicateDefinition(f"{where}: {var} is defined twice")
    defined.add(var)


def _check_equation(equation: Equation, where: str) -> None:
    if equation.op not in OPS:
        raise UnknownOperation(f"{where}: unknown operation; there are {', '.join(sorted(OPS))}")
    if equation.role not in ROLES:
        raise UnknownOperation(f"{where}: unknown role {equation.role!r}; there are {', '.join(ROLES)}")
    types = tuple(x if isinstance(x, Literal) else x.type for x in equation.inputs)
    try:
        shape = check(equation.op, types, equation.params)
    except (ValueError, TypeError) as error:
        raise WrongType(f"{where}: {error}") from None
    op, found = OPS[equation.op], equation.output.type
    if found.shape != shape:
        raise WrongType(f"{where}: the result is {found}, the operands give the shape {shape}")
    moved = types[:1] if op.name == CUSTOM else types
    formats = {x.format for x in moved if isinstance(x, Type)} if op.name in STRUCTURE and not op.integers else set()
    formats |= {types[0].format} if op.name in GATHERS and isinstance(types[0], Type) else set()
    formats |= {x.format for x in types[::2] if isinstance(x, Type)} if op.name == SET_ROW else set()
    if formats and formats != {found.format}:
        given = ", ".join(sorted(map(format_name, formats)))
        raise WrongType(f"{where}: it only moves elements, but the result is {found} and the operands are {given}")
    if op.name not in STRUCTURE and isinstance(found.format, str) != gives_integers(op.name, types):
        raise WrongType(f"{where}: the result is {found}, but int32 numbers are what is given, moved or chosen of such")
