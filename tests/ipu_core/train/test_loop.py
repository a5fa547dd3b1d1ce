"""The training loop: both engines, resumption, counted updates, and a run pinned bit for bit."""

import contextlib
import hashlib
import itertools
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.diagnose.measure import UpdateCounter
from ipu_core.errors import FloatingPointException, NotFinite, UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Lamb, Sgd
from ipu_core.train.step import initial_state, step_block
from lowprec import Accumulation, FloatFormat, float16
from lowprec.statistics import UpdateCount

SMALL = Target("gc200", tiles=24)
PRECISIONS = ["fp32.32", "fp16.32", "fp16.16/nearest", "fp16.16/stochastic"]


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    return nn.softmax_cross_entropy(nn.mlp(params, x), y)


def params(seed: int = 0, widths: tuple[int, ...] = (20, 24, 5)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {"weight": (rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32), "bias": np.zeros(n, np.float32)}
        for m, n in itertools.pairwise(widths)
    ]


def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.normal(size=(16, 20)).astype(np.float32)
    return x, (np.argmax(x[:, :5], axis=1)).astype(np.int32)


def loop(precision: str | Precision = "fp32.32", engine: str = "direct", **more: Any) -> TrainLoop:
    settings = {"optimizer": Sgd(0.1), "target": SMALL, "key": 7} | more
    return TrainLoop(loss, params(), batches(0), precision=precision, engine=engine, **settings)


def bits(made: TrainLoop) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in made.arrays().values())).hexdigest()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_learns(precision: str) -> None:
    losses = loop(precision).run(batches, 300)
    assert losses.shape == (300,)
    assert losses[-20:].mean() < 0.5 * losses[:20].mean()


def test_the_targets_adder_reaches_the_products_of_both_engines() -> None:
    precision = "fp16.32/output=float32"  # adders differ by an ulp of float32, which results in half would hide
    found = set()
    for adder in ("sequential", "dot4", "pairwise"):
        target = Target("gc200", tiles=24, adder=adder)
        runs = [loop(precision, engine, target=target) for engine in ("tiles", "direct")]
        for made in runs:
            made.run(batches, 4)
        orders = runs[0].sums().values()
        assert {order.adder for equation, order in orders if equation.op == "dot"} == {adder}
        assert bits(runs[0]) == bits(runs[1])
        found.add(bits(runs[0]))
    assert len(found) == 3


def test_an_aligned_adder_trains_on_the_direct_engine_only() -> None:
    """So do partial sums in a format of 22 bits; a tile has neither."""
    products = [e.number for e in loop("fp16.32").block.equations if e.op == "dot"]
    found = set()
    for bits_kept in (3, 13):
        order = Accumulation(group=4, adder="aligned", aligned_bits=bits_kept)
        accumulations = dict.fromkeys(products, order)
        made = loop("fp16.32", accumulations=accumulations)
        losses = made.run(batches, 100)
        assert losses[-20:].mean() < 0.7 * losses[:20].mean()
        assert {order.aligned_bits for equation, order in made.sums().values() if equation.op == "dot"} == {bits_kept}
        found.add(bits(made))
        with pytest.raises(UnsupportedByTarget, match="no aligned adder; orders with it run on the direct engine"):
            loop("fp16.32", "tiles", accumulations=accumulations)
    made = loop(Precision("fp16 into FP22", float16, float16, FloatFormat("e8m13", 8, 13)))
    made.run(batches, 100)
    assert len(found | {bits(made)}) == 3


def test_an_adder_that_takes_no_float32_says_so() -> None:
    with pytest.raises(ValueError, match="adder='dot4' takes significands of at most 11 bits"):
        loop("fp32.32", "tiles", target=Target("gc200", tiles=24, adder="dot4"))


@pytest.mark.parametrize("nanoo", [False, True])
def test_the_floating_point_control_reaches_both_engines(nanoo: bool) -> None:
    x, y = batches(0)
    huge = x * np.float32(1e4), y
    states = []
    for engine in ("tiles", "direct"):
        made = loop("fp16.16/stochastic", engine, optimizer=Sgd(1e4), control=FloatingPointControl(nanoo=nanoo))
        with pytest.warns(NotFinite) if nanoo else contextlib.nullcontext():
            made.run(lambda step: huge, 2)
        states.append(np.concatenate([array.ravel() for array in made.arrays().values()]))
    assert states[0].tobytes() == states[1].tobytes()
    assert np.isnan(states[0]).any() == nanoo
    assert nanoo or (np.abs(states[0]) == 65504).any()  # saturated


def test_an_exception_that_is_enabled_ends_the_step() -> None:
    x, y = batches(0)
    for engine in ("tiles", "direct"):
        made = loop("fp16.16/nearest", engine, control=FloatingPointControl(oflo=True))
        made.train((x, y))
        where = r"(forward\.convert|0\.weight\.forward\.dot)\.\d+"
        with pytest.raises(FloatingPointException, match=rf"step 1: .*overflow.*, in {where}"):
            made.train((x * np.float32(6e4), y))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", [Sgd(0.1), Sgd(0.1, momentum=0.9), Lamb(0.01)], ids=["sgd", "momentum", "lamb"])
def test_tiles_and_direct_give_the_same_bits(precision: str, optimizer: Any) -> None:
    tiled, direct = (loop(precision, engine, optimizer=optimizer) for engine in ("tiles", "direct"))
    assert tiled.run(batches, 12).tobytes() == direct.run(batches, 12).tobytes()
    assert bits(tiled) == bits(direct)


def test_200_steps_are_equal_on_three_placements_and_without_tiles() -> None:
    direct = loop("fp16.16/stochastic")
    losses = direct.run(batches, 200)
    cycles = set()
    for tiles in (2, 7, 40):
        placed = loop(
            "fp16.16/stochastic",
            "tiles",
            target=Target("gc200", tiles=tiles),
            accumulations=direct.accumulations,
        )
        assert placed.run(batches, 200).tobytes() == losses.tobytes()
        assert bits(placed) == bits(direct)
        assert placed.profile is not None
        cycles.add(placed.profile.cycles)
    assert len(cycles) == 3


def test_float32_follows_ideal_arithmetic() -> None:
    block = step_block(loss, Sgd(0.1), params(), batches(0))
    state = initial_state(params(), Sgd(0.1))
    ideal = []
    for step in range(50):
        state, value = evaluate(block, state, batches(step), np.float32(0.1))
        ideal.append(float(value))
    assert np.allclose(loop().run(batches, 50), ideal, rtol=1e-4, atol=0)


@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_a_restored_run_continues_bit_for_bit(engine: str) -> None:
    whole = loop("fp16.16/stochastic", engine, optimizer=Sgd(0.1, momentum=0.9))
    whole.run(batches, 4)
    kept, step = whole.arrays(), whole.step
    rest = whole.run(batches, 4)
    again = loop("fp16.16/stochastic", engine, optimizer=Sgd(0.1, momentum=0.9))
    again.restore(kept, step)
    assert again.run(batches, 4).tobytes() == rest.tobytes()
    assert bits(again) == bits(whole)


def test_a_foreign_state_is_refused() -> None:
    made = loop("fp16.16/nearest")
    with pytest.raises(ValueError, match="not those of this training step"):
        made.restore(loop("fp32.32").arrays(), 3)
    with pytest.raises(ValueError, match="step must be an integer of at least 0, not -1"):
        made.restore(made.arrays(), -1)
    for step in (1.5, "3"):
        with pytest.raises(TypeError, match="step must be an integer, not"):
            made.restore(made.arrays(), step)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no masked elements"):
        made.restore({name: np.ma.masked_less(array, 0) for name, array in made.arrays().items()}, 0)
    assert made.step == 0


@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_the_state_is_the_loops_own(engine: str) -> None:
    made = loop(engine=engine)
    before = bits(made)
    for array in (*made.arrays().values(), made.params[0]["weight"]):
        array.fill(9)
    assert bits(made) == before
    mine = made.arrays()
    made.restore(mine, 0)
    for array in mine.values():
        array.fill(9)
    assert bits(made) == before


def test_parameters_without_an_order_are_refused() -> None:
    with pytest.raises(TypeError, match=r"the keys of a dict must have an order.*\[0, 'a'\]"):
        TrainLoop(loss, {0: params(), "a": params()}, batches(0), precision="fp32.32", optimizer=Sgd(0.1))


def test_keys_matter_only_to_stochastic_rounding() -> None:
    for precision, same in (("fp16.16/stochastic", False), ("fp16.16/nearest", True)):
        first, second = (loop(precision, key=key).run(batches, 5).tobytes() for key in (1, 2))
        assert (first == second) is same


def test_one_field_of_an_accumulation_changes_bits() -> None:
    plain = loop("fp16.16/nearest")
    orders = dict(plain.accumulations)
    number = next(e.number for e, _ in plain.sums().values() if e.op == "dot" and e.operands[0].type.shape[1] > 16)
    orders[number] = Accumulation(group=4)
    changed = loop("fp16.16/nearest", accumulations=orders)
    assert plain.run(batches, 3).tobytes() != changed.run(batches, 3).tobytes()


def test_weights_are_kept_in_the_precision_and_start_rounded_to_nearest() -> None:
    made = loop("fp16.16/stochastic")
    weight = made.params[0]["weight"]
    assert weight.dtype == np.float16
    assert np.array_equal(weight, lowprec.astype(params()[0]["weight"], "float16"))


def test_update_counts_by_hand() -> None:
    weight = np.array([1.0, 1.0, 1.0, 1.0], np.float16)
    direction = np.array([0.0, 1e-5, 2.0**-9, 2.0**-4], np.float32)
    updated = np.array([1.0, 1.0, 1.0, 1.0 - 2.0**-5], np.float16)
    count = UpdateCount.of(weight, -0.5 * direction.astype(np.float64), updated)
    assert (count.wanted, count.lost) == (3, 2)
    assert np.isclose(count.squared, 0.25e-10 + 2.0**-20 + 2.0**-10)
    assert count.arrived == 2.0**-10
    assert count.plus(count).wanted == 6


def test_updates_of_a_run_that_diverged_are_counted_without_a_warning() -> None:
    infinite = np.array([np.inf, 1.0], np.float32)
    counter = UpdateCounter()
    equation = next(e for e in loop("fp32.32").block.equations if e.role == "update")
    counter(equation, (infinite, np.zeros(2, np.float32), np.float32(np.inf)), infinite)
    assert counter.total == UpdateCount()


def test_counting_updates_changes_nothing_and_agrees_with_the_step() -> None:
    made = loop("fp16.16/stochastic", "tiles", optimizer=Sgd(0.001))
    made.run(batches, 3)
    before = made.arrays()
    count = made.count_updates(batches(3))
    assert all(np.array_equal(a, b) for a, b in zip(before.values(), made.arrays().values(), strict=True))
    made.train(batches(3))
    changed = sum(int((a != b).sum()) for a, b in zip(before.values(), made.arrays().values(), strict=True))
    assert count.wanted - count.lost == changed


def test_nearest_loses_small_updates_that_stochastic_keeps_on_average() -> None:
    kept = {}
    for precision in ("fp32.32", "fp16.16/nearest", "fp16.16/stochastic"):
        made = loop(precision, optimizer=Sgd(0.0003))
        count = UpdateCount(0, 0, 0.0, 0.0)
        for step in range(30):
            count = count.plus(made.count_updates(batches(step)))
            made.train(batches(step))
        kept[precision] = count.arrived / count.squared
    assert abs(kept["fp32.32"] - 1) < 0.01
    assert abs(kept["fp16.16/stochastic"] - 1) < 0.1
    assert kept["fp16.16/nearest"] < 0.8


def test_sums_are_named_and_hashed_with_their_types() -> None:
    sums = loop("fp16.16/nearest").sums()
    dots = {name: order for name, (equation, order) in sums.items() if equation.op == "dot"}
    assert len(dots) == 5
    assert {fmt.name for order in dots.values() for fmt in (order.accumulate, order.out)} == {"float16"}


@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_words_name_every_product(engine: str) -> None:
    made = loop("fp16.16/stochastic", engine)
    words = made.words()
    assert words.startswith("  fp16.16/stochastic: operands float16")
    assert all(f"  {name}: " in words for name in made.sums())


def test_unknown_engines_and_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown engine 'steam': choose tiles or direct"):
        loop(engine="steam")
    with pytest.raises(ValueError, match="unknown precision 'fp12'"):
        loop("fp12")


def test_batches_of_another_shape_are_refused() -> None:
    made = loop()
    x, y = batches(0)
    with pytest.raises(ValueError, match="shape"):
        made.train((x[:8], y[:8]))


def test_numpys_default_dtypes_are_rounded_to_what_the_step_takes() -> None:
    wide = lambda step: tuple(a.astype(w) for a, w in zip(batches(step), (np.float64, np.int64), strict=True))  # noqa: E731
    made = TrainLoop(loss, params(), wide(0), precision="fp32.32", optimizer=Sgd(0.1), engine="direct", key=7)
    np.testing.assert_array_equal(made.run(wide, 5), loop().run(batches, 5))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((batches(0)[0],), "the batch holds 1 arrays; the step was traced with 2"),
        ((batches(0)[0][:4], batches(0)[1]), r"array 0 of the batch: it has shape \(4, 20\).*float32\[16,20\]"),
        (
            (np.full((16, 20), 1e300), batches(0)[1]),
            r"array 0 of the batch: 1e\+300 is beyond float32's largest number",
        ),
        ((batches(0)[0], np.full(16, 2**40)), "array 1 of the batch holds numbers that are no 32-bit integers"),
        ({"x": batches(0)[0], "y": batches(0)[1]}, "the batch holds x, y; the step was traced with 0, 1"),
        (
            (batches(0)[0], batches(0)[1] + 1),
            "array 1 of the batch holds labels from 1 to 5; the loss has the classes 0 to 4",
        ),
        ((batches(0)[0], batches(0)[1] - 1), "array 1 of the batch holds labels from -1 to 3"),
        ((batches(0)[0], np.full(16, np.nan)), "array 1 of the batch holds numbers that are no 32-bit integers"),
    ],
)
def test_batches_unlike_the_traced_one_are_refused(batch: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        loop().train(batch)


def test_masked_parameters_and_batches_are_refused() -> None:
    x, y = batches(0)
    with pytest.raises(TypeError, match=r"array 0 of the batch: no masked elements"):
        loop().train((np.ma.masked_greater(x, 1), y))
    masked = [{name: np.ma.masked_less(array, 0) for name, array in layer.items()} for layer in params()]
    with pytest.raises(TypeError, match="no masked elements"):
        TrainLoop(loss, masked, batches(0), precision="fp32.32", optimizer=Sgd(0.1))


def test_constants_beyond_float32_are_refused_and_labels_of_ones_own_are_not() -> None:
    def huge(params: Any, batch: Any) -> Any:
        return nn.mean(params["w"] * np.full(3, 1e300)) + nn.mean(batch)

    def hot(params: Any, batch: Any) -> Any:
        return nn.mean(params["w"] * nn.one_hot(batch, 3))

    weights = {"w": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match=r"1e\+300 is beyond float32's largest number"):
        TrainLoop(huge, weights, np.ones(3), precision="fp32.32", optimizer=Sgd(0.1))
    made = TrainLoop(hot, weights, np.arange(3), precision="fp32.32", optimizer=Sgd(0.1), engine="direct")
    assert made.train(np.array([-1, 3, 9])) == 0  # one_hot gives zeros there


def test_infinities_in_a_batch_and_numbers_that_saturate_are_taken() -> None:
    x, y = batches(0)
    with pytest.warns(NotFinite, match="the loss of step 0 is nan"):
        assert np.isnan(loop().train((np.full(x.shape, np.inf), y)))
    assert np.isfinite(loop("fp16.16/nearest").train((np.full(x.shape, 1e30), y)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "sgd"}, r"optimizer must be one such as Sgd\(0.1\)"),
        ({"optimizer": Sgd}, r"optimizer must be one such as Sgd\(0.1\).*, not <class"),
        ({"control": "nanoo"}, r"control must be one such as FloatingPointControl\(nanoo=True\), not 'nanoo'"),
        ({"precision": 16}, "a precision is a name such as 'fp16.16/stochastic', or a Precision, not 16"),
        ({"accumulations": {0: 3}}, r"accumulations\[0\] must be one such as Accumulation\(...\), not 3"),
        ({"accumulations": 3}, "accumulations must be a dict from equation numbers to Accumulations, not 3"),
    ],
)
def test_arguments_of_another_kind_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        loop(**change)
    with pytest.raises(TypeError, match="loss must be a function"):
        TrainLoop("loss", params(), batches(0), precision="fp32.32", optimizer=Sgd(0.1))  # type: ignore[arg-type]


def test_a_run_needs_batches_and_a_number_of_steps() -> None:
    with pytest.raises(ValueError, match="steps must be an integer of at least 0, not -1"):
        loop().run(batches, -1)
    for steps in (1.5, True):
        with pytest.raises(TypeError, match="steps must be an integer, not"):
            loop().run(batches, steps)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="batches must be a function of the step's number, or batches in order"):
        loop().run(3, 3)  # type: ignore[arg-type]
    assert loop().run(iter([batches(0)]), 3).shape == (1,)
    made = loop()
    with pytest.raises(ValueError, match=r"3 steps take 3 batches, and there are 1: give Epochs\(batches\)"):
        made.run([batches(0)], 3)
    assert made.step == 0
