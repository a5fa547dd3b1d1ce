"""The time of transfers that pass beside computation: when each begins and ends, what waits for it, what it hides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.engine.account import StepAccount
from ipu_core.engine.tree import Interleaved, Tree, counts_of


@dataclass
class _Part:
    """A transfer, or a program beside which transfers pass.

    Attributes:
        steps: the numbers of its steps.
        begin, end: its time, in cycles.
        exposed: cycles of a transfer in which the tiles wait.
    """

    tree: Tree
    steps: tuple[int, ...]
    begin: int
    end: int
    exposed: int = 0


def account_overlap(steps: list[StepAccount], trees: Sequence[Tree], moves: Sequence[bool]) -> Tree:
    """Accounts transfers that pass beside programs: what of their time is hidden, and their memory meanwhile.

    Args:
        steps: all accounts, by number; those concerned are replaced.
        trees: the programs in order.
        moves: which of them are transfers, which share one channel.

    Returns:
        The tree of all, with a load just before what runs when it begins and a store after what runs when it ends.
    """
    programs, transfers = _timeline(steps, trees, moves)
    _buffers(steps, programs, transfers)
    for transfer in transfers:
        (number,) = transfer.steps
        account, left = steps[number], transfer.exposed
        exchange = min(left, account.exchange_cycles)
        steps[number] = replace(
            account, exchange_cycles=exchange, sync_cycles=left - exchange, hidden=account.cycles - left
        )
    return Interleaved(tuple(part.tree for part in _placed(steps, programs, transfers)), tuple(trees))


def _timeline(
    steps: Sequence[StepAccount], trees: Sequence[Tree], moves: Sequence[bool]
) -> tuple[list[_Part], list[_Part]]:
    """When programs and transfers begin and end."""
    programs, transfers, flying = list[_Part](), list[_Part](), list[_Part]()
    now = free = 0

    def wait(until: int) -> int:
        """Lets the tiles wait; the channel is busy all the while."""
        for one in flying:
            one.exposed += max(0, min(until, one.end) - max(now, one.begin))
        return max(now, until)

    for tree, moved in zip(trees, moves, strict=True):
        counts = counts_of(tree, len(steps), {})
        own = tuple(number for number, count in enumerate(counts) if count)
        cycles = sum(counts[number] * steps[number].cycles for number in own)
        if moved:
            begin = max(now, free)
            free = begin + cycles
            transfers.append(_Part(tree, own, begin, free))
            flying.append(transfers[-1])
        else:
            flying = [one for one in flying if one.end > now]
            now = wait(max((one.end for one in flying if _meet(steps, own, one)), default=now))
            programs.append(_Part(tree, own, now, now + cycles))
            now += cycles
    wait(max(now, free))
    return programs, transfers


def _meet(steps: Sequence[StepAccount], own: Sequence[int], transfer: _Part) -> bool:
    """Whether a program has to wait for a transfer: for its tensor, or for the channel."""
    moved = steps[transfer.steps[0]]
    return any(
        steps[number].kind == "remote"
        or (steps[number].writes & (moved.reads | moved.writes))
        or (steps[number].reads & moved.writes)
        for number in own
    )


def _buffers(steps: list[StepAccount], programs: Sequence[_Part], transfers: Sequence[_Part]) -> None:
    """Adds to the memory of what runs beside transfers the exchange buffers of these."""
    held: dict[int, Ints] = {}
    for program in programs:
        beside = [one for one in transfers if one.begin < program.end and program.begin < one.end]
        if beside:
            buffers = np.sum([steps[one.steps[0]].memory["exchange buffers"] for one in beside], axis=0)
            for number in program.steps:
                held[number] = np.maximum(held.get(number, 0), buffers)
    for number, buffers in held.items():
        steps[number] = replace(steps[number], memory={**steps[number].memory, "transfers": buffers})


def _placed(steps: Sequence[StepAccount], programs: Sequence[_Part], transfers: Sequence[_Part]) -> list[_Part]:
    """All parts in the order in which the tensors live."""
    ends, begins = ([getattr(part, name) for part in programs] for name in ("end", "begin"))
    places: list[tuple[int, int, int]] = []
    for number, one in enumerate(transfers):
        account = steps[one.steps[0]]
        same = [places[i][0] for i in range(number) if steps[transfers[i].steps[0]].reads & account.writes]
        if not account.writes:
            places.append((int(np.searchsorted(begins, one.end, side="left")) - 1, 2, number))
        elif (begin := int(np.searchsorted(ends, one.begin, side="right"))) > max(same, default=-1):
            places.append((begin, 0, number))
        else:
            places.append((max(same), 2, number))  # after the store of what lay there before
    places += [(place, 1, place) for place in range(len(programs))]
    return [programs[number] if kind == 1 else transfers[number] for _, kind, number in sorted(places)]
