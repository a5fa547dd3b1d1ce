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
from ipu_core import Adam, Lamb, Precision, Predictor, Sgd, TrainLoop, UnsupportedByTarget, nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import ChangesNothing, NotFinite
from ipu_core.ir.bodies import equations_of
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


@examples(quick=40, slow=1000)
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
