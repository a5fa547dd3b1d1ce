"""Any format and any rounding, per role: a training step is lowprec.round after each operation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from ipu_core import Adam, ChangesNothing, NotFinite, Precision, Predictor, Sgd, TrainLoop, UnsupportedByTarget, nn
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.said_rounding import read_format, read_rounding, written
from ipu_core.ir.run.evaluate import evaluate_flat
from lowprec import Key, Rounding, as_format
from lowprec.values.rounding import FEW_BIT_MODES, INFINITE_INPUTS, MODES

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
PARAMS = {"w1": RNG.standard_normal((3, 4)).astype(np.float32), "w2": RNG.standard_normal((4, 2)).astype(np.float32)}
BATCH = RNG.standard_normal((5, 3)).astype(np.float32), RNG.standard_normal((5, 2)).astype(np.float32)
RATE = np.float32(0.25)

ROUNDINGS = st.sampled_from(
    ["nearest", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic", "stochastic(bits=5)",
     "nearest(flush)", "stochastic(bits=24,flush)", "stochastic_half(bits=3)", "stochastic_even(bits=4)", "down(flush)"]
)  # fmt: skip
SUMS = st.sampled_from(["nearest", "nearest_away", "toward_zero", "odd", "stochastic", "stochastic(bits=7)"])
WIDTHS = st.builds("e{}m{}ieee".format, st.integers(4, 8), st.integers(1, 22))
FIXED = st.builds("fixed{}_{}".format, st.integers(6, 19), st.integers(2, 12))


def loss(params: Any, batch: Any) -> Any:
    x, target = batch
    return ((nn.relu(x @ params["w1"]) @ params["w2"] - target) ** 2).mean()


class ByHand:
    """Two layers and plain descent in NumPy, with `lowprec.round` after each operation."""

    def __init__(self, precision: Precision, loop: TrainLoop, key: Key) -> None:
        self.precision, self.key, self.orders = precision, key, loop.accumulations
        # An equation's number keys its random bits and names its order: they are looked up, by what it is.
        self.numbers = {
            (e.op, e.role, e.parameter): e.number for e in equations_of(loop.block) if e.op != "multiply"
        }  # fmt: skip

    def rounded(self, value: Array, field: str, what: tuple[str, str, str | None], was: str | None = None) -> Array:
        """A result in the format of a role, as that is rounded."""
        fmt = getattr(self.precision, field)
        exact = was is not None and fmt.contains(as_format(was) if was == "float32" else getattr(self.precision, was))
        if exact or fmt.contains(lp.float32):
            return value
        how = self.precision.rounding_said(field) or self.precision.rounding
        key = self.key.fold_in(self.numbers[what]) if how.stochastic else None
        return np.asarray(lp.round(value, fmt, how, key=key))

    def product(self, a: Array, b: Array, role: str, name: str) -> Array:
        """Partial sums as the precision says, then the result as it says."""
        number, partials = self.numbers["dot", role, name], self.precision.partials
        how = self.precision.rounding_said("partials") or self.precision.rounding
        order = self.orders[number].with_types(partials, "float32")
        if partials.contains(lp.float32):
            how = Rounding()
        wide = lp.matmul(a, b, accumulation=order, rounding=how, key=self.key.fold_in(number))
        return self.rounded(wide, "output", ("dot", role, name))

    def step(self, params: dict[str, Array]) -> dict[str, Array]:
        x, target = BATCH
        x = self.rounded(x, "operands", ("convert", "forward", None), "float32")
        cast = {w: self.rounded(params[w], "operands", ("convert", "forward", w), "weights") for w in params}
        h = self.rounded(np.maximum(self.product(x, cast["w1"], "forward", "w1"), 0), "operands",
                         ("relu", "forward", None), "output")  # fmt: skip
        y = self.product(h, cast["w2"], "forward", "w2")
        dy = np.float32(0.2) * (y - target)
        dy = self.rounded(dy, "gradients", ("convert", "grad_input", None), "float32")
        dh = self.product(dy, cast["w2"].T, "grad_input", "w2")
        dz = self.rounded(np.where(h > 0, dh, np.float32(0)), "gradients", ("select", "grad_input", None))
        grads = {"w2": self.product(h.T, dy, "grad_weight", "w2"), "w1": self.product(x.T, dz, "grad_weight", "w1")}
        new = {w: params[w] + (-RATE * grads[w]) for w in params}
        return {w: self.rounded(new[w], "weights", ("scaled_add", "update", w)) for w in params}


def trained(precision: Precision, steps: int = 2) -> tuple[TrainLoop, list[dict[str, Array]]]:
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotFinite)  # narrow formats without saturation end so
        warnings.simplefilter("ignore", ChangesNothing)  # a general rounding beside formats that all have their own
        loop = TrainLoop(loss, PARAMS, BATCH, precision=precision, optimizer=Sgd(float(RATE)), engine="direct", key=7)
        for _ in range(steps):
            loop.run(lambda _: BATCH, 1)
            seen.append({name: np.asarray(x, np.float32) for name, x in loop.params.items()})
    return loop, seen


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({field: st.tuples(WIDTHS | FIXED, ROUNDINGS) for field in
                              ("operands", "gradients", "output", "weights")}),
       st.tuples(WIDTHS, SUMS), st.sampled_from([*MODES, "stochastic(bits=9)"]))  # fmt: skip
def test_a_step_is_lowprec_round_after_each_operation(
    said: dict[str, tuple[str, str]], partials: tuple[str, str], general: str
) -> None:
    words = [f"{field}={fmt}@{how}" for field, (fmt, how) in said.items()]
    precision = Precision.parse("/".join(["fp32.32", general, *words, "partials={}@{}".format(*partials)]))
    loop, seen = trained(precision)
    params = {name: np.asarray(lp.round(x, precision.weights)) for name, x in PARAMS.items()}
    with np.errstate(all="ignore"):
        for number, after in enumerate(seen):
            params = ByHand(precision, loop, Key(7).fold_in(number)).step(params)
            for name in params:
                np.testing.assert_array_equal(after[name], params[name])


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("widths, name", [("e5m10ieee", "float16"), ("e8m7ieee", "bfloat16"), ("e4m3", "float8_e4m3fn"),
                                          ("e5m2ieee", "float8_e5m2"), ("e8m10", "tfloat32")])  # fmt: skip
def test_a_named_format_said_by_its_widths_is_that(widths: str, name: str, mode: str) -> None:
    spec = "fp32.32/{1}/operands={0}/gradients={0}/output={0}/weights={0}"
    said, named = (trained(Precision.parse(spec.format(text, mode)))[1] for text in (widths, name))
    np.testing.assert_array_equal(said[-1]["w1"], named[-1]["w1"])


@pytest.mark.parametrize("spec", [
    "fp32.32/operands=e5m3/gradients=e6m4@stochastic(bits=5)/weights=e8m5/partials=e8m9@odd", "fp32.32/every=e6m7",
    "fp16.16/stochastic/weights=float16@toward_zero", "fp8/operands=e6m5", "fp16.16/stochastic(bits=4)",
])  # fmt: skip
def test_plain_evaluation_gives_the_bits_of_training(spec: str) -> None:
    loop, seen = trained(Precision.parse(spec), 1)
    start = TrainLoop(loss, PARAMS, BATCH, precision=spec, optimizer=Sgd(float(RATE)), engine="direct", key=7)
    leaves = [*(start.params[name] for name in ("w1", "w2")), *BATCH, RATE]
    plain = evaluate_flat(loop.block, leaves, "declared", key=Key(7).fold_in(0), accumulations=loop.accumulations)
    np.testing.assert_array_equal(np.asarray(plain[0], np.float32), seen[0]["w1"])


def test_every_puts_losses_and_the_optimizer_into_the_format() -> None:
    loop, _ = trained(Precision.parse("fp32.32/every=e6m7@toward_zero"))
    made = [e.output.type.format for e in equations_of(loop.block)]
    assert {fmt.name for fmt in made if not isinstance(fmt, str)} == {"e6m7"}
    assert {e.arithmetic.accumulate.name for e in equations_of(loop.block) if e.arithmetic.accumulate} == {"e6m7"}


@given(st.builds(Rounding, st.sampled_from([*MODES, *FEW_BIT_MODES]), st.integers(1, 16),
                 st.sampled_from([None, "saturate", "ieee", "ipu"]), st.sampled_from([None, *INFINITE_INPUTS]),
                 st.booleans()))  # fmt: skip
def test_a_rounding_is_read_as_it_is_written(rounding: Rounding) -> None:
    again = read_rounding(written(rounding))
    assert again.rule("e6m5") == rounding.rule("e6m5")
    assert written(again) == written(rounding)
    precision = Precision.parse(f"fp32.32/layers.0:weights=e6m5@{written(rounding)}/moments=e8m3@{written(rounding)}")
    assert Precision.parse(str(precision)) == precision
    assert dict(precision.roundings)["second_moment"] == again


@pytest.mark.parametrize("text, says", [
    ("e5m3@", "unknown rounding ''"), ("e5m3@upwards", "unknown rounding 'upwards'"),
    ("e5m3@stochastic(bits=five)", "unknown option 'bits=five'"), ("e5m3@nearest(bits=5)", "draws no random bits"),
    ("e5m3@stochastic(bits=99)", "random_bits must be an integer of 1 to 32"),
    ("e5m3@nearest(flush,flush)", "says flush twice"), ("e5m3@nearest(overflow=never)", "unknown overflow 'never'"),
    ("e5m3@nearest(flush", "unknown rounding"), ("e9m200@nearest", "at most 31"),
])  # fmt: skip
def test_what_says_no_format_or_rounding_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        read_format(text)
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        Precision.parse(f"fp32.32/weights={text}")


@pytest.mark.parametrize("spec, says", [
    ("fp32.32/weights=float32@odd", "weights are float32, in which results are not rounded"),
    ("fp16.16/stochastic_half(bits=3)", "partial sums .* take nearest_even"),
    ("fp32.32/operands=e5m3,fp16.32", "a list of them is"),
])  # fmt: skip
def test_what_would_do_nothing_or_cannot_be_done_is_refused(spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Precision.parse(spec)


@pytest.mark.parametrize("spec", ["fp16.32/operands=e5m3", "fp32.32/weights=e8m5", "fp16.32/toward_zero",
                                  "fp16.16/stochastic/weights=float16@stochastic(bits=4)"])  # fmt: skip
def test_no_tile_has_such_formats_and_roundings(spec: str) -> None:
    with pytest.raises(UnsupportedByTarget, match="has no unit; the direct engine"):
        TrainLoop(loss, PARAMS, BATCH, precision=spec, optimizer=Adam(0.1))


@pytest.mark.parametrize("spec, mode", [
    ("fp32.32/stochastic/operands=e5m3", "stochastic"), ("fp16.16/down", "down"),
    ("fp16.16/stochastic", "nearest_even"),
])  # fmt: skip
def test_plain_additions_round_as_all_does_but_in_the_machine_s_own_halves(spec: str, mode: str) -> None:
    def with_bias(params: Any, batch: Any) -> Any:
        return (nn.relu(nn.relu(batch[0] @ params["w1"]) + params["b"]) @ params["w2"]).sum()

    params = {**PARAMS, "b": np.ones(4, np.float32)}
    loop = TrainLoop(with_bias, params, BATCH, precision=spec, optimizer=Sgd(0.1), engine="direct")
    (added,) = (e for e in equations_of(loop.block) if (e.op, e.role) == ("add", "forward"))
    assert added.arithmetic.rounding.mode == mode


def test_a_format_that_is_said_again_is_rounded_as_all_is() -> None:
    assert not Precision.parse("fp32.32/weights=e5m3@odd/weights=e5m4").roundings
    assert not Precision.parse("fp32.32/weights=e5m3@odd").changed(weights=as_format("e5m4")).roundings
    assert Precision.parse("fp32.32/weights=e5m3@odd/moments=e8m3").roundings == (("weights", Rounding("odd")),)


def test_no_tile_holds_weights_in_such_a_format() -> None:
    with pytest.raises(UnsupportedByTarget, match=r"w1 is e8m5, for which gc200 has no unit"):
        Predictor(
            lambda params, x: x @ params["w1"], PARAMS, BATCH[0], precision="fp32.32/weights=e8m5", engine="tiles"
        )


@pytest.mark.parametrize("how", ["odd", "stochastic(bits=3)", "nearest(overflow=nan)"])
def test_results_of_scaled_products_are_rounded_as_is_said_of_them(how: str) -> None:
    loop, _ = trained(Precision.parse(f"fp8/output=float16@{how}/partials=e8m9@up"), 1)
    said = {e.arithmetic.rounding for e in equations_of(loop.block) if e.op == "multiply" and e.arithmetic.once}
    assert said == {read_rounding(how)}
    sums = [e.arithmetic for e in equations_of(loop.block) if e.op == "dot"]
    assert {each.rounding.mode for each in sums} == {"up"}  # of the partial sums
    assert not any(each.once or each.partials for each in sums)


def test_a_nan_that_a_format_lacks_is_refused_by_the_equation_s_name() -> None:
    batch = np.full((5, 3), np.nan, np.float32), BATCH[1]
    loop = TrainLoop(loss, PARAMS, BATCH, precision="fp32.32/operands=fixed16_8", optimizer=Sgd(0.1), engine="direct")
    with pytest.raises(ValueError, match=r"forward\.convert\.\d+: NaN cannot be represented in fixed16_8"):
        loop.train(batch)
