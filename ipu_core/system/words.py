"""An update on a system in words: what it is spent on, what passes the links, what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipu_core.system.account import SystemProfile


def in_words(whole: SystemProfile) -> str:
    """The account of an update, a line for each matter."""
    name = max(len(part) for part, _ in whole.parts())
    lines = [
        f"An update on {whole.system.name}: {copies(whole)}, {whole.chips:,} chip{'s' * (whole.chips > 1)}, "
        f"{1e3 * whole.seconds_per_update:,.4f} ms, {whole.samples_per_second:,.1f} rows a second",
        *(
            f"  {part:<{name}}  {1e3 * seconds:>12,.4f} ms  {100 * seconds / whole.seconds_of_chips:5.1f} %"
            for part, seconds in whole.parts()
            if seconds or part in ("forward and backward", "update")
        ),
    ]
    if whole.stages > 1:
        lines.append(f"  {whole.schedule.name} schedule: {pipeline(whole)}")
    lines += [f"  stage {number}: {each}" for number, each in enumerate(stages(whole), 1)]
    if whole.replicas > 1:
        lines.append(f"  {whole.collective.words()}")
    if whole.chips > 1:
        lines.append(f"  bytes a chip sends in an update: {sent(whole)}")
    return "\n".join([*lines, f"  {bound(whole)}"])


def copies(whole: SystemProfile) -> str:
    """Replicas and stages."""
    one = "" if whole.replicas == 1 else "s"
    return f"{whole.replicas:,} replica{one} of {whole.stages} stage{'' if whole.stages == 1 else 's'}"


def pipeline(whole: SystemProfile) -> str:
    """Cycles, bubble and stashes of a pipeline."""
    kept = ", ".join(map(str, whole.schedule.stashes))
    return f"{whole.schedule.cycles:,} pipeline cycles, bubble {100 * whole.bubble:.1f} %, stashes by stage {kept}"


def stages(whole: SystemProfile) -> list[str]:
    """Of each stage that was planned, its time with a micro-batch and its fullest tile."""
    if whole.stages == 1:
        return []
    times = zip(whole.schedule.forward, whole.schedule.backward, whole.profiles, strict=False)
    return [
        f"{1e6 * forward:,.2f} us forward, {1e6 * backward:,.2f} backward; fullest tile "
        f"{profile.memory.peak_bytes:,} of {profile.memory.available:,} bytes"
        for forward, backward, profile in times
    ]


def sent(whole: SystemProfile) -> str:
    """Bytes by what they are of."""
    return ", ".join(f"{name.replace('_', '-')} {size:,.0f}" for name, size in whole.bytes_per_chip.items())


def bound(whole: SystemProfile) -> str:
    """Whether the hosts or the chips decide how long an update takes."""
    if whole.input_bound:
        return f"input-bound: the hosts take {1e3 * whole.input_seconds:,.3f} ms to feed an update"
    known = whole.system.host_samples_per_second
    prepared = f"they prepare {known:,.0f} samples a second" if known else "what they can prepare is not said"
    return f"bound by the chips: the hosts feed an update in less; {prepared}"
