"""The account's view of state that replicas share out: each keeps a shard, updates it, and all gather what is new.

Replicated tensor sharding [Rajbhandari et al. 2020 call it ZeRO]: the gradient of a parameter is reduced and scattered,
so that each replica has its shard of the sum; the optimizer works on shards; new weights are gathered. No bit depends
on it (`ir.passes.shards` has sums over parameters made shard by shard), so the numbers are made of whole arrays, and
this Block is only planned, lowered and accounted.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NoReturn

from ipu_core.ir.block import Atom, Block, Equation, Params, Type, Var
from ipu_core.ir.bodies import closed, equations_of, fresh, replicas_of, with_body
from ipu_core.ir.ops import ELEMENTWISE, OPS
from ipu_core.ir.pytree import paths
from ipu_core.ir.regions import Branch
from lowprec.integers import ceil_div

NEAR = 8  # names that a refusal offers
OPTIMIZER = ("optimizer", "update")


def sharded(block: Block, patterns: Sequence[str]) -> Block:
    """The step of one replica that keeps a shard of the state of these names.

    Args:
        block: typed, of several replicas.
        patterns: names of state with * for anything: "optimizer.*", "params.*", "optimizer.second_moment.*.weight".
            With a part of a parameter's state in shards its update is made on shards. Single numbers, and what is
            smaller than there are replicas, stay whole.

    Raises:
        ValueError: a name that nothing has that could be shared out; one replica; an update that is not made element by
            element but for sums and maxima of all of them.
    """
    if not patterns:
        return block
    if replicas_of(block) == 1:
        raise ValueError("sharded= is for the state of several replicas: replicas=2 or more")
    names = paths(block.arguments[0])
    found = dict[int, str]()
    for pattern in patterns:
        here = {i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern) and _large(block, i)}
        if not here:
            there = [name for i, name in enumerate(names) if _large(block, i)]
            if pattern.startswith("optimizer.") and not any(name.startswith("optimizer.") for name in names):
                raise ValueError(
                    f"sharded={pattern!r}: this optimizer keeps no state that replicas could share out; 'params.*' are"
                )
            nearest = ", ".join(get_close_matches(pattern, there, NEAR, cutoff=0))
            raise ValueError(f"no part of the state that can be in shards is called {pattern!r}; nearest are {nearest}")
        found |= {i: names[i] for i in here}
    for parameter in _parameters(block):
        own = {i for i, name in found.items() if _of(name, parameter)}
        if own:
            block = _Shards(block, parameter, frozenset(own)).applied()
    return block


def _large(block: Block, position: int) -> bool:
    return block.inputs[position].type.size >= replicas_of(block)


def _parameters(block: Block) -> list[str]:
    found = (e.parameter for e in equations_of(block) if e.op == "all_reduce" and e.parameter is not None)
    return list(dict.fromkeys(found))


def _of(name: str, parameter: str) -> bool:
    """Whether a leaf of the state, such as "optimizer.first_moment.0.weight", is a parameter's."""
    return name == parameter or name.endswith(f".{parameter}")


class _Shards:
    """The rewriting for one parameter: values of its shape have a shard beside them, by which the update goes."""

    def __init__(self, block: Block, parameter: str, kept: frozenset[int]) -> None:
        self.block, self.parameter, self.kept = block, parameter, kept
        reduced = next(e for e in block.equations if e.op == "all_reduce" and e.parameter == parameter)
        self.replicas, self.shape = replicas_of(block), reduced.output.type.shape
        self.length = ceil_div(reduced.output.type.size, self.replicas)
        self.number = fresh(block.equations)
        self.made = list[Equation]()
        self.shards: dict[Var, Var] = {}  # of values of that shape, or of views of one
        self.largest: dict[Var, Var] = {}  # by a maximum over some axes, that over a shard
        for position in kept:
            old = block.inputs[position]
            self.shards[old] = Var(old.name, Type((self.length,), old.type.format))

    def applied(self) -> Block:
        """The Block in which the update is made on shards.

        Raises:
            ValueError: it cannot be.
        """
        block = self.block
        equations = self._all(block.equations)
        inputs = [self.shards[var] if i in self.kept else var for i, var in enumerate(block.inputs)]
        outputs = [self.shards[var] if i in self.kept else var for i, var in enumerate(block.outputs)]
        made = closed(replace(block, inputs=tuple(inputs), outputs=tuple(outputs), equations=tuple(equations)))
        for position in sorted(self.kept):
            made = self._gathered_first(made, block.inputs[position])
        return made

    def _gathered_first(self, block: Block, whole: Var) -> Block:
        """With all of what is kept in shards gathered before the first equation that reads it, if one does."""
        at = next((i for i, e in enumerate(block.equations) if whole in e.operands), None)
        if at is None:
            return block
        shape = whole.type.shape
        gather = self._equation(
            "all_gather", (self.shards[whole],), whole, role="forward", replicas=self.replicas, shape=shape
        )
        return replace(block, equations=(*block.equations[:at], gather, *block.equations[at:]))

    def _all(self, equations: Sequence[Equation]) -> list[Equation]:
        result = list[Equation]()
        for equation in equations:
            if isinstance(branch := equation.region, Branch):
                body = self._all(branch.body.equations)
                chosen = tuple(self._chosen(*each) for each in branch.chosen)
                result.append(with_body(replace(equation, region=replace(branch, chosen=chosen)), body))
            elif equation.region is not None:
                result.append(equation)
            else:
                self.made = []
                self._one(equation)
                result += self.made
        return result

    def _chosen(self, result: Var, new: Var, old: Var) -> tuple[Var, Var, Var]:
        if old not in self.shards or self.block.inputs.index(old) not in self.kept:
            return result, new, old
        self.shards[result] = Var(result.name, self.shards[old].type)
        return self.shards[result], self.shards[new], self.shards[old]

    def _one(self, equation: Equation) -> None:
        """Appends what stands for an equation."""
        of_shards = [var for var in equation.operands if var in self.shards]
        if equation.op == "all_reduce" and equation.parameter == self.parameter:
            self._on_shard(replace(equation, op="reduce_scatter"), equation.inputs)
        elif equation.role not in OPTIMIZER or not {*of_shards, *(self.largest.keys() & {*equation.operands})}:
            self.made.append(equation)
        elif equation.op in ("reshape", "pad"):
            known = self.shards if of_shards else self.largest
            known[equation.output] = known[equation.operands[0]]
        elif equation.params.get("shards") == "rows":
            self._sum(equation, self.shards[of_shards[0]])
        elif equation.op == "reduce_max":
            (x,) = equation.operands
            self._maximum(equation, self.largest[x] if x in self.largest else self.shards[x])
        elif equation.op in ELEMENTWISE and equation.output.type.shape == self.shape:
            self._on_shard(equation, [self._shard(x, equation) if isinstance(x, Var) else x for x in equation.inputs])
            if equation.output in self._whole_news():
                shard = self.shards[equation.output]
                self._append("all_gather", (shard,), equation.output, replicas=self.replicas, shape=self.shape)
        else:
            self._refuse(equation)

    def _refuse(self, equation: Equation) -> NoReturn:
        raise ValueError(
            f"sharded: the update of {self.parameter} is more than one of its elements each: {equation.name} needs all "
            f"of it, which no shard has; name the state of other parameters"
        )

    def _on_shard(self, equation: Equation, inputs: Sequence[Atom]) -> None:
        out = Var(f"{equation.output.name}.shard", Type((self.length,), equation.output.type.format))
        self.made.append(replace(equation, inputs=tuple(inputs), outputs=(out,)))
        self.shards[equation.output] = out

    def _sum(self, equation: Equation, shard: Var) -> None:
        """The sums of all shards, each made where its shard is."""
        own = Var(f"{equation.output.name}.own", Type((1,), equation.output.type.format))
        params = Params({"axis": (0,), "keepdims": True, "shards": "rows"})
        self.made.append(replace(equation, inputs=(shard,), outputs=(own,), params=params))
        self._append("all_gather", (own,), equation.output, replicas=self.replicas, shape=(self.replicas,))

    def _maximum(self, equation: Equation, x: Var) -> None:
        """The largest of a shard; where one number is asked for, of all shards."""
        if x.type.shape:
            own = Var(f"{equation.output.name}.own", Type((), equation.output.type.format))
            self._append("reduce_max", (x,), own, family=equation.family, axis=(0,), keepdims=False)
            x = own
        if equation.output.type.shape:
            self.largest[equation.output] = x
        else:
            self._append("all_reduce_max", (x,), equation.output, family=equation.family, replicas=self.replicas)

    def _shard(self, x: Var, reader: Equation) -> Var:
        """An operand's shard: of what every replica has whole, its part."""
        if x.type.shape == ():
            return x
        if x not in self.shards:
            if x.type.shape != self.shape:
                self._refuse(reader)
            flat = Var(f"{x.name}.flat", Type((x.type.size,), x.type.format))
            part = Var(f"{x.name}.shard", Type((self.length,), x.type.format))
            self._append("reshape", (x,), flat, shape=(x.type.size,))
            self._append("slice", (flat,), part, start=(0,), stop=(self.length,), step=(1,))
            self.shards[x] = part
        return self.shards[x]

    def _whole_news(self) -> set[Var]:
        """New values of state that is not kept in shards."""
        branches = [e.region for e in self.block.equations if isinstance(e.region, Branch)]
        chosen = {result: new for branch in branches for result, new, _ in branch.chosen}
        carried = enumerate(self.block.outputs[: self.block.carried])
        return {chosen.get(var, var) for i, var in carried if i not in self.kept}

    def _append(self, op: str, inputs: tuple[Atom, ...], out: Var, *, family: str | None = None, **params: Any) -> None:
        self.made.append(self._equation(op, inputs, out, family=family, **params))

    def _equation(
        self, op: str, inputs: tuple[Atom, ...], out: Var, *, family: str | None = None, role: str = "optimizer",
        **params: Any,
    ) -> Equation:  # fmt: skip
        number, self.number = self.number, self.number + 1
        kind = OPS[op].family if family is None else family
        return Equation(number, op, inputs, (out,), Params(params), role, kind, self.parameter)
