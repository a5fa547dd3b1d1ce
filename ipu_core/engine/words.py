"""A Profile in words: the printed table, and facts that every view of it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_core.engine.memory import MemoryAccount

if TYPE_CHECKING:
    from ipu_core.engine.profile import Profile

_STEP = "step, with figures of one run"
_LINES = 3  # of a step that are shown


def in_words(profile: Profile) -> str:
    """The account as a table: a line for each step, then memory, host and streaming."""
    steps = profile.steps
    shown = [i for i, step in enumerate(steps) if step.count and (step.cycles or step.account.hidden)]
    # Names are whole, however long: cut ones could not be told apart.
    width = max([len(_STEP), *(len(steps[i].name) for i in shown)])
    rows = [
        _heading(profile),
        *(f"{name}: {words}" for name, words in call_facts(profile).items()),
        _columns(width, bool(profile.works)),
        *(_line(profile, number, width) for number in shown),
        "",
        *_memory(profile.memory),
        *(f"{name}: {words}" for name, words in (host_facts(profile) | streaming_facts(profile)).items()),
    ]
    return "\n".join(rows)


def _heading(profile: Profile) -> str:
    target = profile.target
    runs = f", {profile.runs} runs" if profile.runs > 1 else ""
    runs = runs if profile.call is None else f", one of {profile.call.runs} runs in a call"
    return (
        f"program {profile.program} on {target.name}, {target.tiles} tiles{runs}: {profile.cycles:,} cycles = "
        f"{profile.microseconds:,.2f} us (compute {profile.compute_cycles:,}, exchange {profile.exchange_cycles:,}, "
        f"sync {profile.sync_cycles:,}), {profile.exchanged:,} bytes exchanged"
    )


def _columns(width: int, known: bool) -> str:
    columns = ("runs", 6), ("compute", 10), ("exchange", 10), ("sync", 6), ("bytes", 12), ("tiles", 6), ("balance", 7)
    named = " ".join(f"{name:>{width}}" for name, width in columns)
    return f"{_STEP:{width}} {'kind':8} {named}" + ("  of peak  line" if known else "")


def _line(profile: Profile, number: int, width: int) -> str:
    step = profile.steps[number]
    account = step.account
    known = f" {_share(profile, number):>8}  {lines_of(profile, number)}" if profile.works else ""
    return (
        f"{step.name:{width}} {step.kind:8} {step.count:6} {account.compute_cycles:10,} {account.exchange_cycles:10,} "
        f"{account.sync_cycles:6} {account.exchanged:12,} {step.active_tiles:6} {step.balance:7.2f}{known}"
    ).rstrip()


def lines_of(profile: Profile, number: int) -> str:
    """The lines that asked for a step, the first few of many."""
    lines = profile.sources(number)
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return ", ".join(lines[:_LINES]) + more


def _share(profile: Profile, number: int) -> str:
    """Of the peak of its formats; nothing where a step has no arithmetic, or the target no figure."""
    seconds, cycles = profile.peak_seconds(number), profile.steps[number].cycles
    return f"{seconds / profile.target.seconds(cycles):.1%}" if seconds and cycles else ""


def _memory(memory: MemoryAccount) -> list[str]:
    parts = ", ".join(f"{name} {size:,}" for name, size in memory.categories.items() if size)
    largest = ", ".join(f"{name} {size:,}" for name, size in memory.largest)
    always, gaps = int(memory.always_live[memory.tile]), int(memory.gaps[memory.tile])
    return [
        f"memory: fullest tile {memory.tile} needs {memory.peak_bytes:,} of {memory.available:,} bytes"
        + f", {memory.share:.0%} of a tile"
        + (f" at {memory.step!r}" if memory.step else ""),
        f"  always live {always:,}, not always {memory.peak_bytes - always:,}; gaps between variables {gaps:,}",
        f"  by category: {parts}",
        f"  largest variables: {largest}",
    ]


def energy_words(profile: Profile) -> str:
    """Joules of one run, and of what they are made."""
    (least, most), (low, high) = profile.joules, profile.target.power
    amount = f"{least:.3g} J" if low == high else f"{least:.3g} to {most:.3g} J"
    return f"{amount} at the {low:g}{'' if low == high else f' to {high:g}'} W of a chip's share of its machine"


def call_facts(profile: Profile, of: str = "runs") -> dict[str, str]:
    """What a call of several runs costs, in words by name; nothing where each run is made alone."""
    call = profile.call
    if call is None:
        return {}
    time = f"{call.cycles:,} cycles = {call.microseconds:,.2f} us, {call.exchanged:,} bytes exchanged"
    moved = f"{call.from_host:,} bytes from the host and {call.to_host:,} to it, at {call.target.host_rate}"
    return {f"a call of {call.runs} {of}": f"{time}; {moved}"}


def host_facts(profile: Profile) -> dict[str, str]:
    """What a run moves from and to the host, and what is given of it beside the account, in words by name."""
    facts = {}
    if profile.update_overhead:
        facts["update overhead"] = (
            f"{profile.update_overhead:g} s of an update, given and in no cycles: with it "
            f"{profile.seconds_per_update:,.4g} s"
        )
    steps = [step for step in profile.steps if step.kind == "stream" and step.count]
    if not steps:
        return facts
    time = profile.target.seconds(sum(step.cycles for step in steps)) * 1e6
    return facts | {
        "host": f"{profile.from_host:,} bytes from it and {profile.to_host:,} to it, {time:,.2f} us at "
        f"{profile.target.host_rate}, sync included"
    }


def streaming_facts(profile: Profile) -> dict[str, str]:
    """What streaming costs and saves, in words by name; nothing where nothing is streamed."""
    memory, target = profile.memory, profile.target
    if not memory.remote:
        return {}
    number = sum(step.count for step in profile.steps if step.kind == "remote")
    limit = f" of {memory.remote_available:,}" if memory.remote_available else ""
    beside = f", {profile.hidden_cycles:,} of {profile.streaming_cycles:,} cycles beside other steps"
    bound = {
        "beside each other": f"{profile.cycles:,} cycles for {profile.tiles_cycles:,} on the tiles and "
        f"{profile.streaming_cycles:,} of transfers, {profile.overlap_bound:,} or more where all that may does"
    }
    return {
        "streaming memory": f"{memory.remote:,}{limit} bytes",
        "transfers": f"{number}, {profile.loaded:,} bytes loaded and {profile.stored:,} stored",
        "their time": f"{target.seconds(profile.streaming_cycles) * 1e6:,.2f} us at "
        f"{target.streaming_rate}, {number * target.sync_cycles:,} cycles of sync included"
        + (beside if profile.hidden_cycles else ""),
        **(bound if profile.hidden_cycles else {}),
        "fullest tile without": f"{int(memory.unstreamed.max()):,} bytes if all of it lay on the tiles, "
        f"{memory.peak_bytes:,} as it is",
    }
