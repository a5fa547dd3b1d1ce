"""Every verdict of every reproduction turns with a fault that is planted in what it is of.

Where trainings are judged, measured.json holds what three seeds gave, or numbers of the mean and spread that they gave,
and the fault is that a row was trained as another one is; the cheap ones are measured here, with the fault in what is
measured, and the others are of figures as they came out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core.reproduce import (
    REPRODUCTIONS,
    accumulators,
    densities,
    few_bits,
    fixed_point,
    four_bits,
    fp8,
    graph_nets,
    packed,
    reversible,
    sampled,
    small_batches,
    stashed,
    sums,
    tensor_cores,
    unit_bert,
    weights,
)  # fmt: skip
from ipu_core.reproduce.finding import Finding
from ipu_core.sampling.chains import Chains

MEASURED: Mapping[str, Any] = json.loads((Path(__file__).parent / "measured.json").read_text("utf-8"))
Findings = Sequence[Finding]
T, F, N = True, False, None


class Planted(NamedTuple):
    """A fault: the numbers of the findings whose verdict it turns, what it is, and the findings with it."""

    turned: set[int]
    why: str
    findings: Callable[[], Findings]


class Study(NamedTuple):
    """A reproduction's verdicts as they came out, the findings without a fault, and the faults."""

    verdicts: list[bool | None]
    sound: Callable[[], Findings]
    faults: list[Planted]


def rows(
    name: str, judge: Callable[[Any], Findings], *faults: tuple[set[int], str, str]
) -> tuple[Callable[[], Findings], list[Planted]]:
    """A study of trainings by row; a fault is (numbers, a row, the row that it is trained as)."""
    found = MEASURED[name]

    def swapped(row: str, other: str) -> Callable[[], Findings]:
        return lambda: judge({**found, row: found[other]})

    made = [Planted(turned, f"{row} trained as {other}", swapped(row, other)) for turned, row, other in faults]
    return lambda: judge(found), made


def silent(words: str) -> None:
    pass


@functools.cache
def of_sums(fault: str = "") -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        sound = sums.partial_sums
        if fault == "nearest":
            patch.setattr(sums, "partial_sums", lambda fmt, terms, **rounding: sound(fmt, terms))
        if fault == "up":
            patch.setattr(
                sums, "partial_sums", lambda fmt, terms, **given: sound(fmt, terms, **(given or {"rounding": "up"}))
            )
        return sums.judged(sums.measure((0,), 0.5, silent), sums.REPEATS)


@functools.cache
def of_tensor_cores(places: int = tensor_cores.BITS, promoted: int = tensor_cores.PROMOTED, size: int = 32) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        sound = tensor_cores.order

        def order(asked: int, each: bool) -> Any:
            made = sound(asked + places - tensor_cores.BITS, each)
            return replace(made, splits=tensor_cores.TERMS // promoted) if each else made

        patch.setattr(tensor_cores, "order", order)
        return tensor_cores.judged(tensor_cores.measure((0,), silent, size))


@functools.cache
def retained() -> accumulators.RetainedVariance:
    return accumulators.measure((0,), 0.5, silent)


def of_accumulators(**changed: Any) -> Findings:
    return accumulators.judged(retained()._replace(**changed))


def of_sums_in_chunks(**changed: Any) -> Findings:
    found = retained()
    return accumulators.judged(found._replace(sums=[each._replace(**changed) for each in found.sums]))


def plain_for_stochastic() -> Findings:
    return of_sums_in_chunks(stochastic=retained().sums[0].plain / accumulators.TERMS)


def short_chunks() -> Findings:
    """One after another, which is chunks of one."""
    return of_sums_in_chunks(chunks=dict.fromkeys(accumulators.CHUNKS, retained().sums[0].plain / accumulators.TERMS))


def with_other(attribute: str, value: Any) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulators, attribute, value)
        return of_accumulators()


def of_fp8(found: Mapping[str, Any]) -> Findings:
    return fp8.judged({row: [fp8.Fp8Result(*each) for each in runs] for row, runs in found.items()})


def of_weights(found: Mapping[str, Any]) -> Findings:
    return weights.judged({row: [weights.WeightsResult(*each) for each in runs] for row, runs in found.items()})


KEPT = dict.fromkeys(stashed.STASHES, stashed.Kept(0.01, 0.0, 0.02))


SAME = packed.Equality(8.6e-16, 2.3e-3, 2.6e-3)
SPEEDS = dict(zip(packed.PUBLISHED, ((1.547, 1.543), (1.724, 1.716), (1.665, 1.658)), strict=True))
ADDED = graph_nets.Sums(
    {"float32": 0.0}, {"float32": 2e-4}, {"float32": 4096, "half after each": 2048, "half after every 16th": 4096}
)
FILLED = {"packed": 0.986, "padded": 0.455}


def of_packing(same: Any = SAME, speeds: Any = SPEEDS) -> Findings:
    return packed.judged(same, MEASURED["packing"], speeds)


def of_graphs(added: Any = ADDED, equality: float = 1.4e-15, filled: Any = FILLED, exchanged: bool = False) -> Findings:
    found = MEASURED["graphs"]
    if exchanged:
        found = found | {"float32": found["whole graph"], "whole graph": found["float32"]}
    return graph_nets.judged(found, added, equality, filled)


def of_reversible(memory: str = "reversible", apart: str = "float32", right: str = "float32") -> Findings:
    """Of live bytes, gradients and shares right as they came out, or of another layer's or precision's."""
    live = {"stored": (4_708_304, 11_098_064), "reversible": (3_777_532, 3_826_684)}
    off = {"float32": 1.1e-5, "bfloat16": 0.15}
    shares = {"float32": (0.964, 0.966, 0.961), "a constant": (0.1, 0.1, 0.1)}
    of = {"stored": live["stored"], "reversible": live[memory]}
    found = reversible.ReversibleFigures({}, {}, {}, {})
    for layer, (few, many) in of.items():
        found.memory[layer, 4], found.memory[layer, 16] = (few, 9_418), (many, 10_570)
    for name in reversible.PRECISIONS:
        error = off[apart] if name == "float32" else 0.05
        found.again[name, 64] = [1e-4] * 3
        found.gradients[name, 64] = [reversible.GradientErrors(0.0, error, error)] * 3
        for layer in reversible.LAYERS:
            ends = shares[right if layer == "reversible" else "float32"]
            found.trained[name, layer] = [reversible.ReversibleTraining([0.5], each) for each in ends]
    return reversible.judged(found)


def chains(centres: Any, deviations: Any, accept: float) -> list[Chains]:
    """Independent draws of three seeds from normal densities, trajectories of so much acceptance."""
    made = []
    for seed in range(3):
        generator = np.random.Generator(np.random.Philox(seed))
        draws = generator.normal(centres, deviations, (400, 4, len(centres))).astype(np.float32)
        accepted = accept + 0.1 * (generator.random((400, 4)) - 0.5)
        made.append(Chains(draws, accepted, accepted, accepted, 0.1, 1.0, 8, "fp32.32"))
    return made


ANSWER = functools.cache(densities.logistic_answer)


def of_hmc(**changed: Any) -> Findings:
    answer = ANSWER()
    deviations = np.sqrt(answer.variance)
    rest = {p: 2.0 for p in sampled.PRECISIONS} | {"float64": 0.0, "fp32.32": 0.001, "fp16.16/nearest": 0.6}
    rest |= changed.get("energies", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(densities, "logistic_answer", lambda: answer)  # which takes a second
        return sampled.judged(_sampled(answer, deviations, rest, changed))


def _sampled(answer: Any, deviations: Any, rest: Mapping[str, float], changed: Mapping[str, Any]) -> sampled.Measured:
    return sampled.Measured(
        {p: chains(densities.CENTRES, changed.get("wide", 1) * densities.DEVIATIONS, 0.9) for p in sampled.PRECISIONS},
        {p: chains(answer.mean + changed.get("off", 0), deviations, 0.9) for p in sampled.PRECISIONS},
        {p: chains([0.0], 1.0, changed.get("accept", 0.93) if p == "fp32.32" else 0.93) for p in sampled.PRECISIONS},
        {p: [off, 1.1 * off, 0.9 * off] for p, off in rest.items()},
        (changed.get("unrolled", 291), 291),
    )


def of_batches(rates: int = 2, best: int = 4, floor: float = 20.0) -> Findings:
    """As published: the rates below `rates` over the batch train, `best` is best, updates stop falling at `floor`."""
    found = {
        batch: {
            rate: [
                small_batches.Trained(
                    0.95 + 0.01 * (batch == best) + 0.001 * seed if rate * batch ** (rates > 0) < 2 else 0.1, 10.0
                )
                for seed in range(3)
            ]
            for rate in small_batches.RATES
        }
        for batch in small_batches.BATCHES
    }
    made = {m: [max(1000 / m, floor) + seed for seed in range(3)] for m in small_batches.BATCHES}
    if not floor:
        made = {m: [1000 / m] * 3 for m in small_batches.BATCHES}
    return small_batches.judged(found, dict.fromkeys(small_batches.PRECISIONS, made))


def trained(name: str, judge: Callable[[Any], Findings], verdicts: list[bool | None], *faults: Any) -> Study:
    return Study(verdicts, *rows(name, judge, *faults))


STUDIES: Mapping[str, Study] = {
    "sums": Study(
        [T, T, T, T, T], of_sums,
        [
            Planted({0, 1}, "rounded up, not to nearest", lambda: of_sums("up")),
            Planted({2, 3, 4}, "rounded to nearest, not stochastically", lambda: of_sums("nearest")),
        ],
    ),
    "tensor-cores": Study(
        [T, T, N], of_tensor_cores,
        [
            Planted({0}, "a place fewer", lambda: of_tensor_cores(places=12)),
            Planted({0}, "a place more", lambda: of_tensor_cores(places=14)),
            Planted({1}, "added up every 2,048 products", lambda: of_tensor_cores(promoted=2048)),
        ],
    ),
    "accumulators": Study(
        [T, T, T, T, T, T, T, T, F], of_accumulators,
        [
            Planted({0}, "a mantissa bit more", lambda: of_sums_in_chunks(plain=8192.0)),
            Planted({1}, "chunks of one", short_chunks),
            Planted({2}, "rounded to nearest, not stochastically", plain_for_stochastic),
            Planted({3}, "sums of fewer bits", lambda: of_accumulators(
                plain={case: 0.9 * kept for case, kept in retained().plain.items()})),
            Planted({4}, "a rule of other bits", lambda: with_other("PLAIN_BITS", (9, 10, 10, 11))),
            Planted({5}, "bits that do not count", lambda: of_accumulators(
                plain={(m, n): retained().plain[3, n] for m, n in retained().plain})),
            Planted({6}, "chunks of one", lambda: of_accumulators(chunks=retained().plain)),
            Planted({7}, "sums that stop where they first may", lambda: of_accumulators(drawn=retained().stopped)),
            Planted({8}, "sums that stop as the formula supposes", lambda: of_accumulators(plain=retained().drawn)),
        ],
    ),
    "fixed-point": trained(
        "fixed-point", fixed_point.judged, [T, T], ({0}, "stochastic", "nearest"), ({1}, "nearest", "stochastic"),
    ),
    "few-bits": trained(
        "few-bits", few_bits.judged, [N, F, T, T],
        ({0}, "16 bits", "float32"), ({0}, "16 bits", "SRC, 3 bits"), ({2}, "SRFF, 3 bits", "SRC, 3 bits"),
        ({2}, "SRC, 3 bits", "SRFF, 3 bits"), ({3}, "nearest", "SRFF, 3 bits"), ({1}, "16 bits", "SRFF, 3 bits"),
    ),
    "weights": trained(
        "weights", of_weights, [T, T, N], ({0}, "weights, nearest", "nothing"),
        ({0}, "weights, nearest", "weights, stochastic"), ({1}, "weights, stochastic", "weights, nearest"),
        ({1}, "weights, Kahan", "weights, nearest"),
    ),
    "fp8": trained(
        "fp8", of_fp8, [T, T, T, T, T], ({0}, "unscaled", "loss scale"), ({1}, "E4M3 cotangents", "unscaled"),
        ({2}, "loss scale", "unscaled"), ({3}, "current", "unscaled"), ({3}, "delayed", "unscaled"),
        ({4}, "unit-scaled", "unscaled"),
    ),
    "four-bits": trained(
        "four-bits", four_bits.judged, [T, T, T, N, N, T, T, N, N, N],
        ({0}, "backward nearest", "float32"), ({1}, "backward stochastic", "backward nearest"),
        ({1}, "backward rotated", "backward nearest"), ({2, 3}, "backward both", "backward nearest"),
        ({4}, "forward NVFP4", "all"), ({5}, "all NVFP4", "all"), ({6}, "NVIDIA's recipe", "all NVFP4"),
        ({7}, "all, inputs' exact", "float32"), ({8}, "all, weights' fixed rotation", "all"),
        ({9}, "all, weights' fixed rotation", "all"),
    ),
    "reversible": Study(
        [T, T, T, N, N, N, N], of_reversible,
        [
            Planted({0}, "activations stored", lambda: of_reversible(memory="stored")),
            Planted({1}, "gradients in bfloat16", lambda: of_reversible(apart="bfloat16")),
            Planted({2}, "nothing learnt", lambda: of_reversible(right="a constant")),
        ],
    ),
    "packing": Study(
        [T, T, N, T], of_packing,
        [
            Planted({0}, "no mask over sequences", lambda: of_packing(replace(SAME, packed=SAME.unmasked))),
            Planted({1}, "a mask in what has none", lambda: of_packing(replace(SAME, unmasked=SAME.packed))),
            Planted({3}, "packs that cost a tenth", lambda: of_packing(
                speeds={plan: (held, 0.9 * held) for plan, (held, _) in SPEEDS.items()})),
            *rows("packing", lambda found: packed.judged(SAME, found, SPEEDS),
                  ({2}, "packed, beta^p", "unpacked"), ({2}, "packed, beta", "unpacked"))[1],
        ],
    ),
    "unit-bert": trained(
        "unit-bert", unit_bert.judged, [T, T, T, F, N],
        ({0}, "unit-fp16", "FP8, no loss scale"), ({1}, "unit-fp8", "FP8, no loss scale"),
        ({2}, "unit FP8 on a C600", "FP8, no loss scale"), ({3}, "unit float32", "float32"),
    ),
    "stash": trained(
        "stash", lambda found: stashed.judged(found, KEPT), [N, N, N, N],
        ({0}, "stash143", "beta2 .885"), ({1}, "all three", "beta2 .885"),
    ),
    "graphs": Study(
        [T, T, T, N, T, T], of_graphs,
        [
            Planted({0}, "clusters trained as the whole graph, and that as they", lambda: of_graphs(exchanged=True)),
            Planted({1}, "a row for each graph", lambda: of_graphs(filled={"packed": 0.455, "padded": 0.455})),
            Planted({2}, "links between graphs", lambda: of_graphs(equality=1e-3)),
            Planted({5}, "in groups of 16 both", lambda: of_graphs(
                replace(ADDED, hub={**ADDED.hub, "half after each": 4096}))),
            *rows("graphs", lambda found: graph_nets.judged(found, ADDED, 1.4e-15, FILLED),
                  ({4}, "e4m3 after each", "whole graph"))[1],
        ],
    ),
    "hmc": Study(
        [T, T, T, T, T], of_hmc,
        [
            Planted({0}, "a Gaussian 1.2 times as wide", lambda: of_hmc(wide=1.2)),
            Planted({1}, "coefficients off by a tenth", lambda: of_hmc(off=0.1)),
            Planted({2}, "FP16.16's acceptance", lambda: of_hmc(accept=0.857)),
            Planted({3}, "FP16.32's energy", lambda: of_hmc(energies={"fp32.32": 0.219})),
            Planted({3}, "FP32.32 for FP16.16", lambda: of_hmc(energies={"fp16.16/nearest": 0.001})),
            Planted({4}, "unrolled", lambda: of_hmc(unrolled=40_000)),
        ],
    ),
    "small-batches": Study(
        [T, T, T, N], of_batches,
        [
            Planted({0}, "as many rates whatever the batch is", lambda: of_batches(rates=0)),
            Planted({1}, "best of 256", lambda: of_batches(best=256)),
            Planted({2}, "updates in proportion", lambda: of_batches(floor=0)),
        ],
    ),
}  # fmt: skip


def test_every_reproduction_is_here_and_every_verdict_has_a_fault_that_turns_it() -> None:
    assert STUDIES.keys() == REPRODUCTIONS.keys()
    for name, study in STUDIES.items():
        decided = {
            number for number, each in enumerate(study.sound()) if each.holds is not None or each.seeds is not None
        }
        assert set().union(*(fault.turned for fault in study.faults)) == decided, name


@pytest.mark.parametrize("name", STUDIES)
def test_without_a_fault_the_verdicts_are_as_they_came_out(name: str) -> None:
    assert [each.holds for each in STUDIES[name].sound()] == STUDIES[name].verdicts


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, study in STUDIES.items() for fault in study.faults],
    ids=lambda value: value if isinstance(value, str) else value.why,
)
def test_a_planted_fault_turns_its_verdict(name: str, fault: Planted) -> None:
    sound, found = STUDIES[name].verdicts, [each.holds for each in fault.findings()]
    assert all(found[number] is not sound[number] for number in fault.turned), found


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("places", [12, 13, 14])
def test_what_a_tensor_core_is_said_to_err_does_not_depend_on_how_many_numbers_are_drawn(
    size: int, places: int
) -> None:
    assert of_tensor_cores(places, size=size)[0].holds is (places == tensor_cores.BITS)


def test_one_seed_decides_nothing_that_seeds_decide() -> None:
    for name, judge in (("few-bits", few_bits.judged), ("fp8", of_fp8), ("four-bits", four_bits.judged)):
        findings = judge({row: runs[:1] for row, runs in MEASURED[name].items()})
        assert {each.holds for each in findings} == {None}, name
        assert {each.verdict for each in findings} == {"one seed is not enough"}, name
