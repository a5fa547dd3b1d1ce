"""Names of values in profiles and refusals."""

from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import carries_of, equations_of, inputs_of


def state_names(block: Block) -> dict[Var, str]:
    """The names of the carried inputs: of parameters, where they are some."""
    names = {var: f"state.{var.name.removeprefix('state.')}" for var in block.inputs[: block.carried]}
    called = {name: var for var, name in names.items()}
    # Backwards, so that the first update of a state names it.
    for equation in reversed(equations_of(block)):
        if equation.role == "update" and equation.parameter:
            read = [var for var in equation.operands if var in names]
            # a shard of it may be what is updated
            whole = called.get(f"state.params.{equation.parameter}")
            names |= dict.fromkeys(read or ([] if whole is None else [whole]), equation.parameter)
    return names


def value_names(block: Block) -> dict[Var, str]:
    """The names of all values."""
    names = state_names(block)
    names |= {var: f"input.{var.name}" for var in inputs_of(block)[block.carried :]}
    names |= {var: f"constant.{var.name}" for var in block.constants} | {old: old.name for old, _ in carries_of(block)}
    return names | {equation.output: equation.name for equation in equations_of(block)}
