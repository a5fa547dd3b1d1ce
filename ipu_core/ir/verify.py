"""The verifier of a Block: refuses, by kind, what no later pass should have to expect."""

from __future__ import annotations

from ipu_core.ir.block import ROLES, Block, Equation, Literal, Type, Var, format_name
from ipu_core.ir.ops import GATHERS, OPS, STRUCTURE, VIEWS, check, gives_integers


class InvalidBlock(ValueError):
    """A Block that breaks a rule; the message names the equation, the rule and what was found."""


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
    defined: set[Var] = set()
    for var in (*block.inputs, *block.constants, *(old for old, _ in block.totals)):
        _define(defined, var, "the inputs, constants and totals")
    for var, array in block.constants.items():
        if array.shape != var.type.shape:
            raise WrongType(f"constant {var} has type {var.type} but shape {array.shape}")
    numbers: set[int] = set()
    for equation in block.equations:
        where = f"equation {equation.number} ({equation.op})"
        if equation.number in numbers:
            raise DuplicateDefinition(f"{where}: another equation has the number {equation.number}")
        numbers.add(equation.number)
        for var in equation.operands:
            if var not in defined:
                raise UseBeforeDefinition(f"{where}: {var} is not defined before it is used")
        _check_equation(equation, where)
        _define(defined, equation.output, where)
    _check_rounds(block)
    _check_guard(block)
    for var in block.outputs:
        if var not in defined:
            raise UseBeforeDefinition(f"the output {var} is not defined")
    for old, new in zip(block.inputs[: block.carried], block.outputs, strict=False):
        if old.type != new.type:
            raise WrongType(f"the carried state {old} is {old.type} before the step and {new.type} after it")
    return block


def _check_rounds(block: Block) -> None:
    """Every total is made anew in the rounds, by an equation that computes, in the type it had."""
    made = {e.output for e in block.equations[: block.looped] if e.op not in VIEWS}
    for old, new in block.totals:
        if new not in made:
            raise UseBeforeDefinition(f"the total {old} becomes {new}, which no equation of the rounds computes")
        if old.type != new.type:
            raise WrongType(f"the total {old} is {old.type} before a round and {new.type} after it")
    if block.rounds and (other := set(block.rounds.fed) - set(block.inputs[block.carried :])):
        raise UseBeforeDefinition(f"rounds have parts of {', '.join(map(str, other))}, which are no inputs")


def _check_guard(block: Block) -> None:
    """The flag and what is no state are made in every step."""
    if block.guard is None:
        return
    later = {equation.output for equation in block.equations[block.unguarded :]}
    if block.unguarded < block.looped or {block.guard.flag, *block.outputs[block.carried :]} & later:
        raise UseBeforeDefinition("the flag of a guard, or an output that is no state, is made behind the guard")
    if block.guard.flag.type.shape:
        raise WrongType(f"the flag of a guard must be one number, not {block.guard.flag.type}")


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
    formats = {x.format for x in types if isinstance(x, Type)} if op.name in STRUCTURE and not op.integers else set()
    formats |= {types[0].format} if op.name in GATHERS and isinstance(types[0], Type) else set()
    if formats and formats != {found.format}:
        given = ", ".join(sorted(map(format_name, formats)))
        raise WrongType(f"{where}: it only moves elements, but the result is {found} and the operands are {given}")
    if op.name not in STRUCTURE and isinstance(found.format, str) != gives_integers(op.name, types):
        raise WrongType(f"{where}: the result is {found}, but int32 numbers are what is given, moved or chosen of such")
