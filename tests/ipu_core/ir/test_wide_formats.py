"""Formats with values that float32 lacks: a step is an operation of float64, then `lowprec.round`, each time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from ipu_core import Adam, Precision, Predictor, Sgd, TrainLoop, UnsupportedByTarget, nn, sweep, trace, value_and_grad
from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import ChangesNothing, NotFinite
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from lowprec import Accumulation, Key, Rounding
from tests.examples import examples
from tests.ipu_core.ir.test_any_format import BATCH, PARAMS, RATE, ROUNDINGS, SUMS, WIDTHS, Array, ByHand, loss

EXPONENTS = st.builds("e{}m{}ieee".format, st.integers(9, 11), st.integers(1, 19))
DIGITS = st.integers(4, 6).flatmap(lambda e: st.builds(f"e{e}m{{}}ieee".format, st.integers(24, 30 - e)))
WIDE = st.tuples(EXPONENTS | DIGITS, ROUNDINGS.filter(lambda how: "_" not in how.split("(")[0] or how == "toward_zero"))
NARROW = st.tuples(WIDTHS, ROUNDINGS)
FLOAT64 = st.just(("float64", ""))


def is_wide(fmt: lp.FloatFormat) -> bool:
    return not lp.float32.contains(fmt)


class WideByHand(ByHand):
    """`ByHand` in float64 wherever something is read or made that float32 lacks."""

    def rounded(self, value: Array, field: str, what: tuple[str, str, str | None], was: str | None = None) -> Array:
        fmt = getattr(self.precision, field)
        if value.dtype == np.float32 and not is_wide(fmt):
            return super().rounded(value, field, what, was)
        if fmt in (lp.float32, lp.float64):
            return value.astype(fmt.dtype)
        exact = was is not None and was != "float32" and fmt.contains(getattr(self.precision, was))
        how = Rounding() if exact else self.precision.rounding_said(field) or self.precision.rounding
        key = self.key.fold_in(self.numbers[what]) if how.stochastic else None
        made = np.asarray(lp.round(value.astype(np.float64), fmt, how, key=key))
        return made if is_wide(fmt) else made.astype(np.float32)

    def product(self, a: Array, b: Array, role: str, name: str) -> Array:
        number, partials = self.numbers["dot", role, name], self.precision.partials
        if not is_wide(partials):
            return super().product(a, b, role, name)
        how = self.precision.rounding_said("partials") or self.precision.rounding
        key = self.key.fold_in(number)

        def kept(total: Array, place: int) -> Array:
            if partials == lp.float64:
                return total
            own = key.fold_in(place) if how.stochastic else None
            return np.asarray(lp.round(total, partials, how, key=own))

        order, parts = self.orders[number], []
        for start, stop in order.parts(a.shape[1]):
            total = np.zeros((len(a), b.shape[1]))
            for k in range(start, stop):
                total = total + a[:, k, None].astype(np.float64) * b[k].astype(np.float64)
                if k + 1 == stop or (k + 1) % order.group_of(a.shape[1]) == 0:
                    total = kept(total, 2 + k // order.group_of(a.shape[1]))
            parts.append(total)
        (*between, last), made = order.stage_runs(len(parts)), 0
        for runs in between:
            parts = [kept(sum(parts[i + 1 : j], parts[i]), 2**32 + made + n) for n, (i, j) in enumerate(runs)]
            made += len(parts)
        assert last == ((0, len(parts)),)
        return self.rounded(sum(parts[1:], parts[0]), "output", ("dot", role, name))

    def step(self, params: dict[str, Array]) -> dict[str, Array]:
        x, target = BATCH
        x = self.rounded(x, "operands", ("convert", "forward", None), "float32")
        cast = {w: self.rounded(params[w], "operands", ("convert", "forward", w), "weights") for w in params}
        z = self.product(x, cast["w1"], "forward", "w1")
        h = self.rounded(np.where(z <= 0, z.dtype.type(0), z), "operands", ("relu", "forward", None), "output")
        y = self.product(h, cast["w2"], "forward", "w2")
        dy = np.float32(0.2) * (y - target).astype(np.float32)  # the loss is float32, whatever it reads
        dy = self.rounded(dy, "gradients", ("convert", "grad_input", None), "float32")
        dh = self.product(dy, cast["w2"].T, "grad_input", "w2")
        was = "output" if self.precision.gradients.contains(self.precision.operands) else None  # the condition counts
        dz = self.rounded(np.where(h > 0, dh, dh.dtype.type(0)), "gradients", ("select", "grad_input", None), was)
        grads = {"w2": self.product(h.T, dy, "grad_weight", "w2"), "w1": self.product(x.T, dz, "grad_weight", "w1")}
        kind = {w: np.result_type(params[w], grads[w]) for w in params}
        new = {w: params[w] + -RATE * grads[w].astype(kind[w]) for w in params}
        return {w: self.rounded(new[w], "weights", ("scaled_add", "update", w)) for w in params}


def trained(precision: Precision, **options: Any) -> tuple[TrainLoop, list[dict[str, Array]]]:
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotFinite)
        warnings.simplefilter("ignore", ChangesNothing)
        how: dict[str, Any] = {"optimizer": Sgd(float(RATE)), "engine": "direct", "key": 7, **options}
        loop = TrainLoop(loss, PARAMS, BATCH, precision=precision, **how)
        for _ in range(2):
            loop.run(lambda _: BATCH, 1)
            seen.append({name: np.array(x) for name, x in loop.params.items()})
    return loop, seen


@st.composite
def precisions(draw: st.DrawFn) -> str:
    """Sums in float64 with all else in any format, or in float32 with operands that this holds."""
    any_format, widely = WIDE | FLOAT64 | NARROW, draw(st.booleans())
    said = {field: draw(any_format if widely else NARROW) for field in ("operands", "gradients")}
    said |= {field: draw(any_format) for field in ("output", "weights")}
    partials = st.tuples(EXPONENTS | DIGITS, SUMS) | FLOAT64 if widely else st.tuples(WIDTHS, SUMS)
    said["partials"] = draw(partials)
    words = [f"{field}={fmt}" + (f"@{how}" if how else "") for field, (fmt, how) in said.items()]
    order = draw(st.sampled_from(["group=2", "splits=3/group=1", "splits=2/group=2", "group=16"]))
    return "/".join(["fp32.32", draw(st.sampled_from(["nearest", "stochastic", "up"])), *words, order])


@examples(quick=100, slow=1000)
@given(precisions())
def test_a_step_is_float64_and_lowprec_round_after_each_operation(spec: str) -> None:
    precision = Precision.parse(spec)
    loop, seen = trained(precision)
    weights = precision.weights
    params = {name: np.asarray(lp.round(x.astype(np.float64), weights)) for name, x in PARAMS.items()}
    params = {name: x if is_wide(weights) else x.astype(np.float32) for name, x in params.items()}
    with np.errstate(all="ignore"):
        for number, after in enumerate(seen):
            params = WideByHand(precision, loop, Key(7).fold_in(number)).step(params)
            for name in params:
                assert (after[name].dtype == np.float64) == is_wide(weights)
                np.testing.assert_array_equal(after[name].astype(params[name].dtype), params[name])


def everything(params: Any, batch: Any) -> Any:
    """Most operations that a loss has: convolutions, look-ups, norms, attention, maxima, segments, dropout, a scan."""
    images, tokens, labels = batch
    x = nn.max_pool2d(nn.gelu(nn.conv2d(images, params["kernel"], stride=(2, 1), padding=1, groups=2)), 2)
    h = nn.flatten(x) @ params["dense"]
    e = nn.layer_norm(nn.embedding(params["table"], tokens), params["scale"], params["bias"])
    e = nn.attention(e, e, e) + nn.dropout(nn.silu(e), 0.25)
    state, _ = nn.scan(lambda c, row: (nn.tanh(c + row), nn.sigmoid(c)), h, np.transpose(e, (1, 0, 2)))
    state = state + nn.segment_sum(nn.erf(h), np.array([1, 0, 1], np.int32), 3)
    top, _ = nn.topk(state, 2)
    logits = nn.concatenate([state @ params["out"], nn.exp(-nn.square(top)) / (1 + nn.log(1 + nn.square(top)))], 1)
    return nn.cross_entropy(logits, labels) + 0.01 * nn.mean(nn.maximum(nn.sin(state), nn.rsqrt(2 + nn.cos(state))))


def given_arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    sizes = {"kernel": (3, 2, 2, 4), "dense": (16, 4), "table": (9, 4), "scale": (4,), "bias": (4,), "out": (4, 3)}
    params = {name: (rng.standard_normal(size) / 2).astype(np.float32) for name, size in sizes.items()}
    images = rng.standard_normal((3, 6, 8, 4)).astype(np.float32)
    return params, (images, rng.integers(0, 9, (3, 5)).astype(np.int32), np.array([0, 2, 4], np.int32))


def typed(spec: str) -> tuple[Block, list[Any]]:
    params, batch = given_arrays()
    block = Precision.parse(spec).apply(trace(value_and_grad(everything), params, batch))
    return block, flatten((params, batch))[0]


@pytest.mark.parametrize(
    "spec", ["float64", "fp32.32/every=e10m9@stochastic/group=8/splits=3", "fp32.32/every=e5m25@odd"]
)
def test_plain_evaluation_gives_the_bits_of_prepared_calls(spec: str) -> None:
    block, leaves = typed(spec)
    made = Executable(block).run(leaves, Key(3))
    for one, other in zip(made, evaluate_flat(block, leaves, "declared", key=3), strict=True):
        assert one.dtype == other.dtype == np.float64
        np.testing.assert_array_equal(one, other)


def test_float64_is_near_to_ideal_arithmetic() -> None:
    """Which is NumPy's, in orders and with functions of its own."""
    block, leaves = typed("float64")
    computed = (e for e in equations_of(block) if e.op != "gather")  # of a weight as it was given
    assert {e.output.type.format for e in computed} <= {lp.float64, "int32"}
    for one, other in zip(Executable(block).run(leaves, 3), evaluate_flat(block, leaves, key=3), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def options(**others: Any) -> dict[str, Any]:
    return {"optimizer": Adam(0.01), "engine": "direct", "key": 7, **others}


def test_weights_and_moments_begin_go_on_and_are_kept_as_they_are(tmp_path: Path) -> None:
    exact = {name: x.astype(np.float64) * (1 + 2.0**-40) for name, x in PARAMS.items()}
    loop = TrainLoop(loss, exact, BATCH, precision="float64", **options())
    np.testing.assert_array_equal(loop.params["w1"], exact["w1"])
    losses = loop.run([BATCH] * 2, 2)
    assert losses.dtype == np.float64
    assert losses[1] != losses[1].astype(np.float32)
    for name in ("state.npz", "state.safetensors"):
        loop.save(tmp_path / name)
        other = TrainLoop(loss, PARAMS, BATCH, precision="float64", **options())
        other.load(tmp_path / name)
        assert (
            other.run([BATCH] * 3, 1)
            == TrainLoop(loss, exact, BATCH, precision="float64", **options()).run([BATCH] * 3, 3)[2]
        )


def test_replicas_and_micro_batches_add_float64_in_float64() -> None:
    batch = tuple(np.concatenate([x, -x, x + 1, x])[:16] for x in BATCH)
    ways: list[dict[str, Any]] = [{}, {"micro_batches": 4}, {"replicas": 4}, {"replicas": 4, "sharded": "*"}]
    ends = [TrainLoop(loss, PARAMS, batch, precision="float64", **options(**way)) for way in ways]
    for loop in ends:
        loop.run([batch] * 2, 2)
        np.testing.assert_allclose(loop.params["w1"], ends[0].params["w1"], rtol=1e-13)
    parts = [tuple(x[4 * n : 4 * n + 4] for x in batch) for n in range(4)]
    each = [TrainLoop(loss, PARAMS, part, precision="float64", **options()).train(part) for part in parts]
    whole = TrainLoop(loss, PARAMS, batch, precision="float64", **options(replicas=4))
    np.testing.assert_allclose(whole.train(batch), np.mean(each), rtol=1e-14)


def test_predictions_are_in_float64() -> None:
    made = Predictor(lambda p, x: x @ p["w1"], PARAMS, BATCH[0], precision="float64", engine="direct")(BATCH[0])
    assert made.dtype == np.float64
    np.testing.assert_allclose(made, BATCH[0].astype(np.float64) @ PARAMS["w1"], rtol=1e-14)


def test_a_watch_counts_wide_values() -> None:
    """Products beyond float32, and updates that are lost: less than half of the last place."""

    def far(params: Any, batch: Any) -> Any:
        return (batch * params["w"]).sum() * 2.0**-100

    batch = np.full(8, 2.0**100, np.float32)
    loop = TrainLoop(far, {"w": np.full(8, 2.0**127, np.float32)}, batch, precision="fp32.32/every=e9m5",
                     optimizer=Sgd(0.25), engine="direct", watch=1)  # fmt: skip
    assert loop.run([batch], 1)[0] == 2.0**130
    record = loop.watched
    assert record is not None
    seen = {str(value["kind"]): row for value, row in zip(record.values, record.rows[0], strict=True)}
    assert seen["weight"]["largest"] == 2.0**127
    assert seen["weight"]["histogram"].tolist() == [0] * 95 + [8]
    assert (seen["update"]["wanted"], seen["update"]["lost"], seen["update"]["largest"]) == (8, 8, 0.25)
    product = record.rows[0][[str(value["op"]) for value in record.values].index("multiply")]
    assert (product["rms"], product["infinite"]) == (2.0**227, 0)


SUM = Accumulation(group=4, splits=2)


@pytest.mark.parametrize("spec, options, says", [
    ("fp32.32/operands=e9m5", {}, r"w1\.forward\.dot\.0 adds up e9m5, .* in partials of float32: say partials=float64"),
    ("fp16.16/nearest/w2:gradients=float64", {}, "adds up float64, .* in partials of float16"),
    ("fp8/forward=e9m5", {}, "forward cannot be e9m5: operands are cast from float32"),
    ("float64/promote=2", {}, r"w1\.forward\.dot\.\d+ is summed in float64, .* without promotion"),
    ("fp32.32/partials=e9m5/adder=pairwise", {}, "one addition after another, without adder pairwise"),
    ("float64", {"control": FloatingPointControl(inv=True)}, "where a tile raises no exceptions"),
    ("fp32.32/weights=float64@odd", {}, "weights are float64, in which results are not rounded"),
    ("fp32.32/stash=e9m5", {}, "unknown field 'stash'"),
    ("fp32.32/partials=float8_e8m0fnu", {}, "no negative numbers or no zero"),
])  # fmt: skip
def test_what_there_is_not_is_refused(spec: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainLoop(loss, PARAMS, BATCH, precision=spec, optimizer=Sgd(0.1), engine="direct", **options)


@pytest.mark.parametrize(
    "spec", ["float64", "fp32.32/weights=float64", "fp32.32/partials=float64", "fp32.32/moments=e9m5"]
)
def test_no_tile_has_wide_formats(spec: str) -> None:
    with pytest.raises(UnsupportedByTarget, match="direct engine"):
        TrainLoop(loss, PARAMS, BATCH, precision=spec, optimizer=Adam(0.1))


def test_a_part_of_a_loss_in_a_wide_format() -> None:
    def far(x: Any) -> Any:
        big = nn.convert(x, "e9m12") * 2.0**60  # wider than a half, which the precision has
        return (big * big) @ (big * big), nn.round(x, "e10m3", "up"), nn.quantize(nn.convert(x, "float64"), "e9m2")

    x = np.float32([1.2345, 2.5, -3.75])
    block = Precision.parse("fp16.32").apply(trace(far, x))
    made = Executable(block).run([x], 0)
    big = lp.round(x.astype(np.float64), "e9m12") * 2.0**60
    square = lp.round(big * big, "e9m12")
    total = (square[0] * square[0] + square[1] * square[1]) + square[2] * square[2]
    assert np.isfinite(total)
    assert made[0] == lp.round(total, "e9m12")
    np.testing.assert_array_equal(made[1], lp.round(x.astype(np.float64), "e10m3", "up"))
    np.testing.assert_array_equal(made[2], lp.round(x.astype(np.float64), "e9m2"))


def test_arrays_are_rounded_to_wide_formats_in_float64() -> None:
    x = np.float32([1.2345, 1e-40])
    wanted = lp.round(x.astype(np.float64), "e9m5")
    for made in (nn.convert(x, "e9m5"), nn.round(x, "e9m5"), nn.quantize(x, "e9m5")):
        assert made.dtype == np.float64
        np.testing.assert_array_equal(made, wanted)
    assert nn.convert(np.float64([1.2345]), "e5m3").dtype == np.float32
    own = nn.OwnRounding(lambda values: lp.round(values, "e9m5", "up"))
    np.testing.assert_array_equal(nn.round(x, "e9m5", own), lp.round(x.astype(np.float64), "e9m5", "up"))


def test_no_terms_are_a_zero_and_the_largest_zero_is_the_positive_one() -> None:
    def some(x: Any, empty: Any) -> Any:
        return x.max(axis=0), x.sum(axis=0), empty @ empty.T, np.maximum(x[0], x[1]), np.maximum(x[1], x[0])

    x = np.array([[-0.0, 0.0, -0.0], [0.0, -0.0, -0.0]], np.float32)
    block = Precision.parse("float64").apply(trace(some, x, np.zeros((2, 0), np.float32)))
    made = Executable(block).run([x, np.zeros((2, 0), np.float32)], 0)
    signs = [np.signbit(each).tolist() for each in made]
    assert signs == [[False, False, True], [False] * 3, [[False] * 2] * 2, [True, False, True], [False, True, True]]
    assert not any(each.any() for each in made)


def test_an_order_of_rows_is_refused_beside_wide_ones() -> None:
    index, order = np.array([0, 0, 1], np.int32), Accumulation(1, accumulate="float16")
    block = Precision.parse("fp32.32/every=float64").apply(
        trace(lambda x: nn.segment_sum(x, index, 2, accumulation=order), np.ones((3, 2), np.float32))
    )
    with pytest.raises(ValueError, match="adds in float64, where no accumulation= rounds"):
        Executable(block)


@pytest.mark.parametrize("fmt", ["float8_e4m3fnuz", "float16", "bfloat16", "e5m3"])
def test_wide_values_come_into_narrow_formats_by_the_rules_of_a_cast_from_float32(fmt: str) -> None:
    """Halves saturate, 8 bits come by way of half, and odd formats keep their own rule; but from all of float64."""
    x = np.float32([1e6, -3e4, 1.0625, 17.0, 1.19, np.inf])
    near = 1 + 2.0**-40  # beyond a tie for float64 alone

    def cast(x: Any) -> Any:
        return nn.convert(nn.convert(x, "float64") * near, fmt)

    (made,) = Executable(trace(cast, x)).run([x], 0)
    given = x.astype(np.float64) * near
    control, wanted = FloatingPointControl(), lp.as_format(fmt)
    if wanted.bits == 8:
        given = lp.astype(given, "float16", control.rounding(Rounding(), "float16"))
    expected = lp.round(given, wanted, control.rounding(Rounding(), wanted))
    np.testing.assert_array_equal(made.astype(np.float64), expected.astype(np.float64))


def test_replicas_add_up_wide_gradients_and_round_them_by_their_own_rule() -> None:
    batch = tuple(np.concatenate([x, -x, x + 1, x])[:16] for x in BATCH)
    precision = "fp32.32/every=e9m9@stochastic"
    loop = TrainLoop(loss, PARAMS, batch, precision=precision, **options(replicas=4))
    loop.run([batch], 1)
    assert loop.params["w1"].dtype == np.float64
    np.testing.assert_array_equal(loop.params["w1"], lp.round(loop.params["w1"], "e9m9"))


def test_moments_that_are_wide_are_watched() -> None:
    loop = TrainLoop(loss, PARAMS, BATCH, precision="fp32.32/moments=e9m1", **options(watch=1))
    loop.run([BATCH] * 20, 20)
    assert loop.watched is not None
    rows = loop.watched.rows[:, loop.watched.values["kind"] == "moment"]
    assert rows["wanted"].all()
    assert rows["lost"].sum(axis=0).all()  # all go on by less than half of what they are, sooner or later
    assert (rows["lost"] < rows["wanted"]).any()


@pytest.mark.parametrize("terms, splits, rows", [(40, 20, 3), (5, 1, 300)])
def test_stages_and_panels_draw_random_bits_of_their_own(terms: int, splits: int, rows: int) -> None:
    """20 parts are summed in two stages, and of 300 rows of 100 no panel has all."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(size).astype(np.float32) for size in ((rows, terms), (terms, 100)))
    spec = f"fp32.32/partials=e9m3@stochastic/group=1/splits={splits}"
    block = Precision.parse(spec).apply(trace(lambda a, b: a @ b, a, b))
    (equation,) = equations_of(block)
    order, key, parts = Accumulation(1, splits), Key(11).fold_in(equation.number), []

    def kept(total: Array, place: int) -> Array:
        return np.asarray(lp.round(total, "e9m3", "stochastic", key=key.fold_in(place)))

    for start, stop in order.parts(terms):
        total = np.zeros((rows, 100))
        for k in range(start, stop):
            total = kept(total + a[:, k, None].astype(np.float64) * b[k], 2 + k)
        parts.append(total)
    *between, _ = order.stage_runs(len(parts))
    assert len(between) == (splits > 15)
    for runs in between:
        parts = [kept(sum(parts[i + 1 : j], parts[i]), 2**32 + n) for n, (i, j) in enumerate(runs)]
    (made,) = Executable(block).run([a, b], 11)
    np.testing.assert_array_equal(made, sum(parts[1:], parts[0]).astype(np.float32))


def test_exponents_beyond_float32_change_nothing_where_none_is_met() -> None:
    """In float32 the one, in float64 the other: each result has bits to spare before it is rounded."""
    spec = "fp32.32/operands={0}/gradients={0}/output={0}/weights={0}/partials=float64"
    (_, one), (_, other) = (trained(Precision.parse(spec.format(fmt))) for fmt in ("e8m6", "e11m6"))
    for name in PARAMS:
        np.testing.assert_array_equal(one[-1][name], other[-1][name])


def test_a_sweep_goes_over_the_border_and_a_study_takes_its_base_in_float64() -> None:
    made = sweep(loss, PARAMS, [BATCH] * 2, {"weights": "e9m3 ... e8m3"}, base="float64", optimizer=Sgd(0.25), seeds=1,
                 steps=2)  # fmt: skip
    assert not made.failures
    base, wide, narrow = (row["final_loss"] for row in made.rows())
    assert wide == narrow != base


def test_convolutions_add_their_products_in_the_stated_order() -> None:
    """By kernel position and channel (of the gradient: output); of a weight by image and place; kept in four digits."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 5, 4, 3)).astype(np.float32), rng.standard_normal((2, 3, 3, 4)).astype(np.float32)
    dy = rng.standard_normal((2, 3, 3, 4)).astype(np.float32)  # stride (2, 1), padding (1, 0) and (1, 0)
    images, weight, gradient = (each.astype(np.float64) for each in (x, w, dy))
    padded = np.pad(images, ((0, 0), (1, 0), (1, 0), (0, 0)))

    def chain(terms: list[float | None]) -> float:
        """In parts of whole groups of 2, of which there are at most 3; None: nothing of this term comes here."""
        order, parts = Accumulation(2, 3), []
        for start, stop in order.parts(len(terms)):
            total = 0.0
            for begin in range(start, stop, 2):
                total = sum((each for each in terms[begin : min(stop, begin + 2)] if each is not None), total)
                total = float(lp.round(total, "e9m3"))
            parts.append(total)
        return sum(parts[1:], parts[0])

    how: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 0))}

    def f(both: Any, dy: Any) -> Any:
        return (nn.conv2d(*both, **how) * dy).sum()

    def run(function: Any, *arguments: Any) -> list[Array]:
        block = Precision.parse("fp32.32/partials=e9m3/group=2/splits=3").apply(trace(function, *arguments))
        return Executable(block).run(flatten(arguments)[0], 0)

    (forward,), (_, back, weights) = run(lambda x, w: nn.conv2d(x, w, **how), x, w), run(value_and_grad(f), (x, w), dy)
    for n, r, s, o in np.ndindex(forward.shape):
        window = padded[n, 2 * r : 2 * r + 2, s : s + 3]
        assert forward[n, r, s, o] == np.float32(chain((window * weight[..., o]).ravel().tolist()))
    for n, r, s, c in np.ndindex(back.shape):
        terms: list[float | None] = []
        for i, j, o in np.ndindex(2, 3, 4):
            (row, odd), column = divmod(r + 1 - i, 2), s + 1 - j
            hit = not odd and 0 <= row < 3 and 0 <= column < 3
            terms.append(gradient[n, row, column, o] * weight[i, j, c, o] if hit else None)
        assert back[n, r, s, c] == np.float32(chain(terms))
    for i, j, c, o in np.ndindex(weights.shape):
        seen = padded[:, i : i + 5 : 2, j : j + gradient.shape[2], c]
        assert weights[i, j, c, o] == np.float32(chain((seen * gradient[..., o]).ravel().tolist()))
