"""The options of a training as values: what they refuse, how they print, what their digest is made of."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import typing
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipu_core
from ipu_core import (
    Adam,
    Execution,
    FloatingPointControl,
    LossScale,
    Precision,
    Predictor,
    Sgd,
    System,
    Target,
    Training,
    TrainLoop,
    nn,
)
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.errors import OtherOrders
from ipu_core.placement.orders import OrderRule
from ipu_core.train.keywords import ExecutionOptions, LoopOptions, SharedOptions, TrainingOptions
from ipu_core.train.options import foreign, options_of
from lowprec import Accumulation
from tests.examples import examples

SAID: dict[str, Any] = {"optimizer": Sgd(0.1), "precision": "fp32.32"}
OTHER: dict[str, tuple[Any, str]] = {
    "optimizer": (Adam(0.1), "Adam(lr=0.1) in fp32.32"),
    "precision": ("fp16.16/nearest", "in fp16.16/nearest"),
    "micro_batches": (2, "2 micro-batches"),
    "loss_scale": (1024, "loss scale 1024.0"),
    "random": ("hardware", "random bits of the tiles' workers"),
    "control": (FloatingPointControl(nanoo=True, oflo=True), "oflo, nanoo"),
    "accumulations": ({3: Accumulation(group=8)}, "given orders of sums (1)"),
    "stash": ("float16", "stashes in float16"),
    "replicas": (4, "4 replicas"),
    "family": ("mk1", "orders of sums of mk1"),
    "adder": ("pairwise", "pairwise adder"),
}
ELSEWHERE: dict[str, tuple[Any, str]] = {
    "engine": ("direct", "direct engine, for gc200"),
    "target": (Target("bow", tiles=4), "tiles of bow with tiles 4"),
    "system": (System("gc200"), "1 chips of gc200"),
    "sharded": ("optimizer.*", "in shards optimizer.*"),
    "streamed": ("params.*", "streamed params.*"),
    "overlap": (True, "transfers beside computation"),
    "reorder": (False, "equations as traced"),
    "parallel": (False, "sums of unlike sizes one after another"),
    "recompute": (0.5, "recomputation down to 0.5 of the peak"),
    "stages": (2, "2 stages"),
    "steps_per_call": (3, "3 steps a call"),
    "update_overhead": (0.18, "0.18 s of an update beside the account"),
}
OLDER = {"order", "collective"}  # of one there is one version yet, the other is for several replicas: test_replicas


def names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def test_every_keyword_is_a_field_of_exactly_one_of_the_two() -> None:
    training, execution = names(Training), names(Execution)
    assert not training & execution
    assert typing.get_type_hints(LoopOptions).keys() == training | execution
    assert typing.get_type_hints(TrainingOptions).keys() == training
    assert typing.get_type_hints(ExecutionOptions).keys() == execution
    assert typing.get_type_hints(SharedOptions).keys() == (training | execution) - {"precision"}


def test_every_field_of_training_changes_the_digest_and_its_words() -> None:
    plain = Training(**SAID)
    assert OTHER.keys() | OLDER == names(Training)
    assert str(plain) == "Sgd(lr=0.1) in fp32.32"
    digests = {plain.digest()}
    for name, (value, words) in OTHER.items():
        other = replace(plain, **{name: value})
        assert other != plain
        assert words in str(other)
        digests.add(other.digest(Execution()))
    assert len(digests) == len(OTHER) + 1
    assert plain.record().keys() == names(Training) - {
        "stash",
        "replicas",
        "collective",
    }  # which older records do not have


def test_no_field_of_execution_changes_a_digest_but_where_tiles_draw() -> None:
    training, plain = Training(**SAID), Execution()
    drawing = replace(training, random="hardware")
    assert ELSEWHERE.keys() | {"pipeline_schedule"} == names(Execution)  # of several stages: test_stages
    assert str(plain) == "tiles of gc200"
    digests = {drawing.digest(plain)}
    for name, (value, words) in ELSEWHERE.items():
        other = replace(plain, **{name: value})
        assert other != plain
        assert words in str(other)
        assert training.digest(other) == training.digest()
        digests.add(drawing.digest(other))
    assert len(digests) == len(ELSEWHERE) + 1
    with pytest.raises(ValueError, match="where it runs decides them"):
        drawing.digest()


SUM, HALF = Accumulation(), Accumulation(group=8)
EQUAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"loss_scale": 1024}, {"loss_scale": np.float64(1024)}),
    ({"loss_scale": "automatic"}, {"loss_scale": LossScale(init_scale=65536)}),
    ({"micro_batches": 2}, {"micro_batches": np.int64(2)}),
    ({"control": None}, {"control": FloatingPointControl(esr=True)}),
    ({"optimizer": Sgd(0.1)}, {"optimizer": Sgd(0.1, momentum=0)}),
    ({"precision": "fp16.16/stochastic"}, {"precision": Precision.parse("fp16.16/stochastic")}),
    ({"accumulations": {3: SUM, 1: HALF}}, {"accumulations": {1: HALF, 3: SUM}}),
    ({"random": HardwareRandom((1, 2))}, {"random": HardwareRandom([1, 2])}),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_values_have_equal_digests_and_hashes(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = Training(**{**SAID, **one}), Training(**{**SAID, **other})
    assert first == second == pickle.loads(pickle.dumps(first)) == replace(first)
    assert hash(first) == hash(second)
    assert first.digest(Execution()) == second.digest(Execution())
    assert str(first) == str(second)


def test_a_name_of_a_precision_is_none_of_its_bits() -> None:
    made = Training(**{**SAID, "precision": "fp16.16/nearest"})
    own = replace(made, precision=replace(made.precision, name="mine"))
    assert own != made
    assert own.digest() == made.digest()


def test_all_but_the_precision_is_common_to_the_precisions_of_a_study() -> None:
    records = [Training(**{**SAID, "precision": name}).record() for name in ("fp32.32", "fp16.16/stochastic")]
    assert records[0].pop("precision") != records[1].pop("precision")
    assert records[0] == records[1]


def test_functions_of_an_optimizer_count_by_their_code() -> None:
    def of(factor: float) -> Training:
        return Training(optimizer=Sgd(lambda step: factor / (step + 1)), precision="fp32.32")

    assert of(0.1).digest() == of(0.1).digest() != of(0.2).digest()


def test_digests_are_those_of_another_process() -> None:
    code = (
        "from ipu_core import *\n"
        "from ipu_core.train.optim import Group\n"
        "made = Training(optimizer=Adam(1e-3, groups=(Group('*.bias', lr=0.5),)), precision='fp16.16/stochastic',\n"
        "    loss_scale='automatic', accumulations={3: Accumulation(group=8)}, random='hardware')\n"
        "print(made.digest(Execution(streamed='params.*')))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        for seed in "12"
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 64


def test_esr_is_the_precisions_to_say() -> None:
    made = Training(**{**SAID, "precision": "fp16.16/stochastic"})
    assert made.control.esr
    assert not replace(made, precision="fp16.16/nearest").control.esr
    assert not Training(**SAID, control=FloatingPointControl(esr=True)).control.esr


def test_a_target_fills_both() -> None:
    training, execution = options_of(**SAID, target=Target("gc2", adder="dot4"))
    assert training.rule == OrderRule("mk1", "dot4")
    assert execution == Execution(target=Target("gc2", adder="dot4"))
    assert options_of(**SAID, target="bow")[0] == Training(**SAID)
    assert options_of(**SAID, target="gc2", family="mk2", adder="pairwise")[0].rule == OrderRule("mk2", "pairwise")
    # values say nothing of each other
    assert options_of(**SAID, execution=Execution(target="gc2"))[0] == Training(**SAID)
    assert options_of(Training(**SAID), target="gc2") == (Training(**SAID), Execution(target="gc2"))


def test_a_chip_of_another_family_is_said() -> None:
    training = Training(**SAID)
    for target in (Target("gc2"), Target("bow", adder="pairwise")):
        told = foreign(training, Execution(target=target))
        assert f"Training(family={target.family!r}, adder={target.adder!r})" in told
        assert not foreign(*options_of(**SAID, target=target))
        assert not foreign(replace(training, accumulations={}), Execution(target=target))
    assert not foreign(training, Execution(target=Target("c600", tiles=4)))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no optimizer": (lambda: Training(precision="fp32.32"), TypeError, "optimizer is missing"),
    "no precision": (lambda: options_of(optimizer=Sgd(0.1)), TypeError, "precision is missing"),
    "an unknown option": (
        lambda: options_of(**SAID, micro_batch=2), TypeError, "no option 'micro_batch'; there are precision, .*engine"),
    "a target of another kind": (
        lambda: options_of(**SAID, target=["bow"]), TypeError, r"target must be a Target or a System, .*not \['bow'\]"),  # type: ignore[arg-type]
    "an unknown field": (lambda: Execution(micro_batches=2), TypeError, "there are engine, target"),  # type: ignore[call-arg]
    "a field beside its value": (
        lambda: options_of(Training(**SAID), micro_batches=2), TypeError,
        r"micro_batches is a field of training.*replace\(training, micro_batches=\.\.\.\)"),
    "a chip beside its value": (
        lambda: options_of(execution=Execution(), target="gc2", **SAID), TypeError, "target is a field of execution"),
    "no Training": (
        lambda: options_of("fp32.32"), TypeError, r"training must be one such as Training\(\.\.\.\), not 'fp32.32'"),  # type: ignore[arg-type]
    "no Execution": (
        lambda: options_of(execution="direct", **SAID), TypeError, "execution must be one such as Execution"),
    "an optimizer's class": (lambda: Training(**{**SAID, "optimizer": Sgd}), TypeError, "such as Sgd"),
    "an unknown precision": (lambda: Training(**{**SAID, "precision": "fp3"}), ValueError, "fp3"),
    "no micro-batches": (lambda: Training(**SAID, micro_batches=0), ValueError, "micro_batches must be an integer"),
    "a scale below 0": (lambda: Training(**SAID, loss_scale=-1), ValueError, "loss_scale must be a positive float32"),
    "no generator": (lambda: Training(**SAID, random="mersenne"), ValueError, "unknown random 'mersenne'"),
    "no seed": (lambda: Training(**SAID, random=HardwareRandom((1, 2, 3))), ValueError, "two 32-bit words"),  # type: ignore[arg-type]
    "no control": (lambda: Training(**SAID, control=0), TypeError, "control must be one such as"),  # type: ignore[arg-type]
    "no order": (lambda: Training(**SAID, accumulations={3: 8}), TypeError, r"accumulations\[3\] must be"),  # type: ignore[dict-item]
    "no number": (lambda: Training(**SAID, accumulations={"3": Accumulation()}), TypeError, "an integer, not '3'"),  # type: ignore[dict-item]
    "no family": (lambda: Training(**SAID, family="gc2"), ValueError, "unknown family 'gc2'; there is 'mk1' or 'mk2'"),
    "no adder": (lambda: Training(**SAID, adder="aligned"), ValueError, "unknown adder 'aligned'"),
    "no version": (lambda: Training(**SAID, order="0"), ValueError, "unknown order, .* '0'; there is '1' or '2'"),
    "a version's number": (lambda: Training(**SAID, order=1), ValueError, "unknown order, .* 1; there is '1' or '2'"),  # type: ignore[arg-type]
    "no engine": (lambda: Execution(engine="cuda"), ValueError, "unknown engine 'cuda'"),
    "no chip": (lambda: Execution(target="gc3"), ValueError, "unknown target 'gc3'"),
    "no name": (lambda: Execution(streamed=[3]), TypeError, "streamed must be names"),  # type: ignore[list-item]
    "an empty name": (lambda: Execution(streamed=["params.*", ""]), ValueError, r"not ''; \(\) is nothing"),
    "an empty text": (lambda: Execution(streamed=""), ValueError, r"not ''; \(\) is nothing"),
    "no list": (lambda: Execution(streamed=3), TypeError, "streamed must be a list"),  # type: ignore[arg-type]
    "no truth": (lambda: Execution(overlap="no"), TypeError, "overlap must be True or False"),  # type: ignore[arg-type]
    "neither order": (lambda: Execution(reorder=1), TypeError, "reorder must be True or False"),  # type: ignore[arg-type]
    "no paths": (lambda: Execution(parallel="no"), TypeError, "parallel must be True or False"),  # type: ignore[arg-type]
    "no share": (lambda: Execution(recompute=1.5), ValueError, "recompute must be"),
    "less than none": (lambda: Execution(update_overhead=-1.0), ValueError, "seconds, 0 or more and finite, not -1.0"),
    "no time of all": (lambda: Execution(update_overhead="0.1"), TypeError, "update_overhead must be a number"),  # type: ignore[arg-type]
    "no steps": (lambda: Execution(steps_per_call=0), ValueError, "steps_per_call must be an integer of at least 1"),
    "tiles that draw without tiles": (
        lambda: options_of(**SAID, random="hardware", engine="direct"), ValueError, "engine 'direct' knows nothing"),
    "bits that are drawn again": (
        lambda: options_of(**SAID, random="hardware", recompute=True), ValueError, "recompute needs random='philox'"),
    "a scale that the host moves": (
        lambda: options_of(**SAID, loss_scale="automatic", steps_per_call=2), ValueError, "moved by the host"),
}  # fmt: skip


def test_names_to_stream_are_the_same_in_any_order() -> None:
    names = ["params.b", "params.a", "params.b"]
    assert Execution(streamed=names) == Execution(streamed=set(names)) == Execution(streamed=("params.a", "params.b"))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        call()


def test_signatures_are_whole() -> None:
    told = inspect.signature(ipu_core.TrainLoop).parameters
    assert list(told)[:5] == ["loss", "params", "batch", "training", "execution"]
    assert names(Training) | names(Execution) <= told.keys()
    assert "options" not in told
    assert repr(told["optimizer"].default) == "<required without training>"
    assert told["micro_batches"].default == 1
    own = inspect.signature(Training).parameters
    assert list(own)[:3] == ["precision", "optimizer", "control"]
    assert own.keys() == names(Training)
    assert own["optimizer"].default is inspect.Parameter.empty
    assert list(inspect.signature(Execution).parameters) == [field.name for field in fields(Execution)]


def test_values_are_frozen() -> None:
    for value in (Training(**SAID, accumulations={3: Accumulation()}), Execution()):
        with pytest.raises(AttributeError):
            value.family = value.engine = ""  # type: ignore[union-attr, misc]
    held = Training(**SAID, accumulations={3: Accumulation()}).accumulations
    assert held == {3: Accumulation()}
    assert not hasattr(held, "__setitem__")


def problem() -> tuple[Any, Any, Any]:
    """A loss, parameters and batches, small enough for many loops."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 8, 40)).astype(np.float32)
    params = {"a": rng.normal(size=(40, 6)).astype(np.float32) / 6, "b": rng.normal(size=(6, 1)).astype(np.float32)}

    def loss(params: Any, batch: Any) -> Any:
        return np.mean((nn.tanh(batch[0] @ params["a"]) @ params["b"] - batch[1]) ** 2)

    return loss, params, [(each, np.sin(each[:, :1])) for each in x]


def bits_of(training: Training, execution: Execution, **more: Any) -> tuple[bytes, list[bytes]]:
    """Losses and the state after a run."""
    loss, params, batches = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OtherOrders)
        loop = TrainLoop(loss, params, batches[0], training=training, execution=execution, key=5, **more)
    losses = loop.run(batches, len(batches))
    return losses.tobytes(), [array.tobytes() for array in loop.arrays().values()]


TRAININGS = st.builds(
    Training,
    optimizer=st.sampled_from([Sgd(0.1), Sgd(0.1, momentum=0.9), Adam(0.01)]),
    precision=st.sampled_from(["fp32.32", "fp16.32/stochastic", "fp16.16/stochastic", "fp16.16/nearest"]),
    micro_batches=st.sampled_from([1, 2]),
    loss_scale=st.sampled_from([None, 256.0]),
    family=st.sampled_from(["mk1", "mk2"]),
    adder=st.sampled_from(["sequential", "pairwise"]),
)
EXECUTIONS = st.builds(
    Execution,
    engine=st.sampled_from(["tiles", "direct"]),
    target=st.builds(
        Target, st.sampled_from(["gc2", "gc200", "bow"]), tiles=st.sampled_from([3, 8]),
        workers=st.sampled_from([1, 6]), adder=st.sampled_from(["sequential", "dot4"]),
    ),
    streamed=st.sampled_from(["", "params.*", "params.a"]).map(lambda name: (name,) if name else ()),
    overlap=st.booleans(),
    reorder=st.booleans(),
    parallel=st.booleans(),
    recompute=st.sampled_from([False, True, 0.75]),
    steps_per_call=st.sampled_from([1, 2]),
)  # fmt: skip


@examples(quick=16, slow=300)
@given(TRAININGS, EXECUTIONS, EXECUTIONS)
@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_two_executions_of_one_training_give_the_same_bits(
    training: Training, one: Execution, other: Execution
) -> None:
    assert training.digest(one) == training.digest(other)
    assert bits_of(training, one) == bits_of(training, other)


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_the_tiles_generators_are_the_exception() -> None:
    training = Training(optimizer=Sgd(0.1), precision="fp16.16/stochastic", random="hardware")
    one, other = (Execution(target=Target("gc200", tiles=tiles)) for tiles in (3, 8))
    assert training.digest(one) != training.digest(other)
    assert bits_of(training, one) != bits_of(training, other)
    assert bits_of(training, one) == bits_of(training, one)


def test_a_chip_of_another_family_runs_the_trainings_orders_and_says_so() -> None:
    loss, params, batches = problem()
    training = Training(**SAID, family="mk1", adder="pairwise")
    with pytest.warns(OtherOrders, match=r"orders of mk1 chips with a pairwise adder.*gc200 has those") as caught:
        loop = TrainLoop(loss, params, batches[0], training=training, execution=Execution(target="gc200"))
    assert [each.filename for each in caught] == [__file__]
    assert "of mk1 chips with a pairwise adder" in str(loop)
    own = TrainLoop(loss, params, batches[0], **SAID, target=Target("gc2", adder="pairwise"))
    assert loop.accumulations == own.accumulations
    assert "pairwise adder" not in str(own)
    assert own.training == training
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherOrders)
        assert np.array_equal(loop.predict(forward, batches[0][0]), own.predict(forward, batches[0][0]))


def forward(params: Any, x: Any) -> Any:
    return x @ params["a"] @ params["b"]


def test_predictions_take_the_orders_of_a_training() -> None:
    _, params, batches = problem()
    x = batches[0][0]
    training = Training(**SAID, adder="pairwise")
    told = Predictor(forward, params, x, training=training)(x)
    assert np.array_equal(told, Predictor(forward, params, x, precision="fp32.32", adder="pairwise")(x))
    assert not np.array_equal(told, Predictor(forward, params, x, precision="fp32.32")(x))
    tiled = Execution(target=Target("gc200", tiles=3))
    with pytest.warns(OtherOrders, match="pairwise"):
        assert np.array_equal(told, Predictor(forward, params, x, training=training, execution=tiled)(x))
    for more, words in (
        ({"precision": "fp16.32"}, "precision is a field of training"),
        ({"micro_batches": 2}, "no option 'micro_batches'; there are precision"),
        ({"overlap": True}, "no option 'overlap'; there are .*order, engine, target$"),
    ):
        given: dict[str, Any] = more
        with pytest.raises(TypeError, match=words):
            Predictor(forward, params, x, training=training, **given)
    told = inspect.signature(Predictor).parameters
    assert (repr(told["precision"].default), told["engine"].default) == ("<required without training>", "direct")


def test_a_loop_says_what_it_was_made_of() -> None:
    loss, params, batches = problem()
    loop = TrainLoop(loss, params, batches[0], **SAID, micro_batches=2, target="bow", recompute=True)
    assert (loop.training, loop.execution) == options_of(**SAID, micro_batches=2, target="bow", recompute=True)
    other = loop.in_precision("fp16.16/stochastic")
    assert other.training == replace(loop.training, precision="fp16.16/stochastic")
    assert other.execution == replace(loop.execution, engine="direct")
    assert other.control.esr


def test_a_loop_on_the_direct_engine_says_what_no_account_reads() -> None:
    def made(**options: Any) -> str:
        weight, rows = np.ones((4, 4), np.float32), np.ones((2, 4), np.float32)
        return str(
            TrainLoop(lambda p, x: nn.mean(x @ p), weight, rows, optimizer=Sgd(0.1), precision="fp32.32", **options)
        )

    said = "the direct engine has no account, which alone reads streamed, overlap, update_overhead"
    some: dict[str, Any] = {"update_overhead": 0.1, "streamed": "params", "overlap": True}
    assert said in made(engine="direct", **some)
    assert "the direct engine has no account" not in made(engine="tiles", **some)
    assert "no account" not in made(engine="direct")
