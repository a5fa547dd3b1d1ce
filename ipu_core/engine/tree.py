"""The program as a tree of step numbers, and how often each step runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ipu_core.graph.tensor import Variable


@dataclass(frozen=True, eq=False)
class Leaf:
    """One step."""

    step: int


@dataclass(frozen=True, eq=False)
class Series:
    """Parts in order."""

    parts: tuple["Tree", ...]


@dataclass(frozen=True, eq=False)
class Interleaved(Series):
    """Parts in the order in which what they move is needed, and as the program has them."""

    given: tuple["Tree", ...]


@dataclass(frozen=True, eq=False)
class Repeated:
    """A body that runs a fixed number of times."""

    count: int
    body: "Tree"


@dataclass(eq=False)
class While:
    """A body that runs while a predicate holds; `iterations` counts what the last run did (-1: not run yet)."""

    condition: "Tree"
    predicate: Variable
    body: "Tree"
    iterations: int = -1


@dataclass(eq=False)
class Choice:
    """One of several options; `taken` counts how often the last run took each."""

    predicate: Variable
    options: tuple["Tree", ...]
    taken: list[int] = field(default_factory=list)


Tree = Leaf | Series | Repeated | While | Choice


def is_dynamic(tree: Tree) -> bool:
    """Whether the number of steps depends on data."""
    match tree:
        case Leaf():
            return False
        case Series(parts):
            return any(is_dynamic(part) for part in parts)
        case Repeated(_, body):
            return is_dynamic(body)
        case _:
            return True


def reset(tree: Tree) -> None:
    """Sets the counters of data-dependent parts to a run that has done nothing."""
    match tree:
        case Series(parts):
            for part in parts:
                reset(part)
        case Repeated(_, body):
            reset(body)
        case While():
            tree.iterations = 0
            reset(tree.condition)
            reset(tree.body)
        case Choice():
            tree.taken = [0] * len(tree.options)
            for option in tree.options:
                reset(option)


def outline(tree: Tree, names: Sequence[str], depth: int = 0) -> list[tuple[int, str]]:
    """The program in lines: how deep each lies, and a step's name or what repeats or chooses what lies below."""
    match tree:
        case Leaf(step):
            return [(depth, names[step])]
        case Series(parts):
            return [line for part in parts for line in outline(part, names, depth)]
        case Repeated(count, body):
            return [(depth, f"repeat {count} times"), *outline(body, names, depth + 1)]
        case While():
            head = [(depth, f"repeat while {tree.predicate.name}"), *outline(tree.condition, names, depth + 1)]
            return [*head, *outline(tree.body, names, depth + 1)]
        case Choice():
            lines = [(depth, f"one of {len(tree.options)} by {tree.predicate.name}")]
            for number, option in enumerate(tree.options):
                lines += [(depth + 1, f"option {number}"), *outline(option, names, depth + 2)]
            return lines


def order_of(tree: Tree) -> list[int]:
    """The steps of a program, each once, in the order in which the program names them first."""
    match tree:
        case Leaf(step):
            return [step]
        case Interleaved(given=parts) | Series(parts):
            found = [step for part in parts for step in order_of(part)]
        case Repeated(_, body):
            return order_of(body)
        case While():
            found = [*order_of(tree.condition), *order_of(tree.body)]
        case Choice():
            found = [step for option in tree.options for step in order_of(option)]
    return list(dict.fromkeys(found))


def counts_of(tree: Tree, steps: int, holds: Mapping[Variable, bool]) -> list[int]:
    """How often each step runs in one run of the program.

    A branch whose predicate is in `holds` takes the first option where that is true, else the second. Other
    data-dependent parts count what the last run did; before any run, one iteration and the first option.
    """
    counts = [0] * steps
    _count(tree, 1, counts, holds)
    return counts


def _count(tree: Tree, times: int, counts: list[int], holds: Mapping[Variable, bool]) -> None:
    match tree:
        case Leaf(step):
            counts[step] += times
        case Series(parts):
            for part in parts:
                _count(part, times, counts, holds)
        case Repeated(count, body):
            _count(body, times * count, counts, holds)
        case While():
            iterations = times if tree.iterations < 0 else tree.iterations
            # The condition is asked once more for each time that the loop is entered: its last answer ends it.
            _count(tree.condition, times + iterations, counts, holds)
            _count(tree.body, iterations, counts, holds)
        case Choice():
            for option, often in zip(tree.options, _taken(tree, times, holds), strict=True):
                _count(option, often, counts, holds)


def _taken(branch: Choice, times: int, holds: Mapping[Variable, bool]) -> Sequence[int]:
    """How often a branch takes each of its options."""
    held = holds.get(branch.predicate)
    # What the caller says of a predicate comes before what the last run found.
    if held is None and branch.taken:
        return branch.taken
    chosen = 1 if held is False else 0
    return [times if number == chosen else 0 for number in range(len(branch.options))]


Begin = tuple[int, int]
"""The cycle in which a step begins first, and those until it does again in the loop that repeats it (0: none)."""


def begins_of(tree: Tree, cycles: Sequence[int], holds: Mapping[Variable, bool]) -> dict[int, Begin]:
    """When each step of a run begins; `holds` and what depends on data as of `counts_of`.

    Args:
        tree: of the program.
        cycles: of one execution of each step.
        holds: what the predicates of branches are.
    """
    found: dict[int, Begin] = {}
    _begin(tree, 0, cycles, holds, found)
    return found


def _begin(tree: Tree, now: int, cycles: Sequence[int], holds: Mapping[Variable, bool], found: dict[int, Begin]) -> int:
    """Notes when the steps of a part that begins now do; gives when it ends."""
    match tree:
        case Leaf(step):
            found.setdefault(step, (now, 0))
            return now + cycles[step]
        case Series(parts):
            for part in parts:
                now = _begin(part, now, cycles, holds, found)
            return now
        case Repeated(count, body):
            return now if not count else _rounds(now, count, [body], cycles, holds, found)
        case While():
            rounds = 1 if tree.iterations < 0 else tree.iterations
            asked = _begin(tree.condition, now, cycles, holds, found)
            if not rounds:
                return asked
            # Between two bodies the condition is asked again, and once behind the last.
            return _rounds(asked, rounds, [tree.body, tree.condition], cycles, holds, found)
        case Choice():
            end = now
            for option, often in zip(tree.options, _taken(tree, 1, holds), strict=True):
                if often:
                    end = max(end, _begin(option, now, cycles, holds, found))
            return end


def _rounds(
    now: int,
    count: int,
    parts: Sequence[Tree],
    cycles: Sequence[int],
    holds: Mapping[Variable, bool],
    found: dict[int, Begin],
) -> int:
    """The same of parts that run in turn so often."""
    inside: dict[int, Begin] = {}
    end = now
    for part in parts:
        end = _begin(part, end, cycles, holds, inside)
    for step, (begin, every) in inside.items():
        # The innermost loop is the one that repeats it next.
        found.setdefault(step, (begin, every or (end - now if count > 1 else 0)))
    return now + count * (end - now)
