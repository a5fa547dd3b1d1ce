"""Blame is right about what `faults.toml` plants in four models, and says what diverged and which setting is wrong."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ipu_core.diagnose.defaults import BUDGET
from tests.ipu_core.diagnose.blame.fault_table import NOTHING, Fault, Verdict, faults, is_right, judged, seeds, table

FAULTS = {fault.name: fault for fault in faults()}
QUICK = (
    "activations of the first layer saturate E4M3",
    "gradients behind the head in E4M3, of a small loss",
    "weights in half, smaller updates",
    "E4M3 adds up the gradient of a weight",
    "second moments in E5M2",
    "a loss scale of 2^30",
    "gradients clipped to 1e-5 each",
    "a rate of 10",
    "a rate of 1e-7",
    "a batch with NaN",
    "NaN in a weight from the beginning",
    "NaN in a bias from the beginning, under a loss scale that skips every step",
    "gradients in E4M3, and second moments in half",
    "bfloat16, of a recurrent net",
    "half, of a recurrent net, clipped hard by a norm that Adam does not see",
    "twelve steps",
)
"""One of each kind, of the smaller models."""


@cache
def verdict(name: str, seed: int) -> Verdict:
    return judged(FAULTS[name], seed)


def check(one: Verdict) -> None:
    assert one.right, str(one.found)
    assert one.called == one.diverged
    assert one.found.spent <= BUDGET


@pytest.mark.parametrize("name", QUICK)
def test_one_of_each_kind_is_named(name: str) -> None:
    check(verdict(name, seeds()[0]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in QUICK])
def test_every_fault_is_named_in_every_seed(name: str, seed: int) -> None:
    check(verdict(name, seed))


def test_every_kind_and_model_is_there() -> None:
    kinds = {"saturation", "underflow of one role", "lost updates", "accumulator width", "second moment", "loss scale",
             "clipping", "rate", "NaN batch", "NaN state", "two causes", NOTHING}  # fmt: skip
    assert kinds <= {fault.kind for fault in FAULTS.values()}
    assert {fault.model for fault in FAULTS.values()} == {"convolutional", "attention", "recurrent", "residual"}
    assert len(FAULTS) == len(faults())
    assert {FAULTS[name].kind for name in QUICK} >= kinds


def test_a_wrong_word_is_judged_wrong() -> None:
    """The judge itself: the same finding under an entry that expects something else."""
    fault, found = FAULTS["second moments in E5M2"], verdict("second moments in E5M2", seeds()[0]).found
    assert is_right(fault, found)
    for wrong in ({"causes": ("weights",)}, {"equations": ("*.update.*",)}, {"kind": NOTHING}, {"parts": ("head",)},
                  {"causes": ("second_moment", "weights")}, {"kind": "saturation"}):  # fmt: skip
        assert not is_right(replace(fault, **wrong), found)
    assert not is_right(fault, verdict("twelve steps", seeds()[0]).found)


def test_the_table_counts_what_was_judged() -> None:
    text = table([verdict(name, seeds()[0]) for name in ("a batch with NaN", "twelve steps")])
    assert "| NaN batch | 1 | 1 | 1 of 1 |" in text
    assert "| none | 1 | 1 |  |" in text


def test_a_run_that_diverged_is_called_so_and_no_cap_is_its_loss() -> None:
    found = verdict("a batch with NaN", seeds()[0]).found
    text = " ".join(str(found).split())
    assert found.diverged is not None
    assert (found.diverged.step, found.diverged.where) == (40, "infinities or NaN are in its batch")
    assert "diverged, the loss is nan in step 40" in text
    assert found.loss != found.loss  # NaN
    assert not found.healthy


def test_a_setting_has_a_cure_of_its_own() -> None:
    found = verdict("a loss scale of 2^30", seeds()[0]).found
    text = " ".join(str(found).split())
    assert found.cure is None
    assert "200 of 200 steps skipped, from step 0 at a scale of 2^30: gradients overflow" in text
    assert "loss_scale=LossScale(" in text
    assert len(found.culprits[0].seeds) == 2
    assert min(found.culprits[0].seeds) > 0.9
    clipped = verdict("gradients clipped to 1e-5 each", seeds()[0]).found
    assert "with gradients that are not clipped" in " ".join(str(clipped).split())


def test_faults_are_read_as_they_are_written() -> None:
    fault = FAULTS["a batch with NaN"]
    assert isinstance(fault, Fault)
    assert fault.bad == (40,)
    _, batch = fault.training(1)
    assert np.isnan(batch(40)[0]).sum() == 1
    assert np.isfinite(batch(39)[0]).all()


def test_the_page_s_table_is_of_these_faults() -> None:
    """Made by a run of all of them: the numbers of trainings show whether faults or seeds were added since."""
    page = (Path(__file__).parents[4] / "notebooks/docs/pages/how-to/blame.md").read_text("utf-8")
    rows = {kind: int(count) for kind, count in re.findall(r"^\| ([\w ,]+?) \| (\d+) \| \d+ \|", page, re.MULTILINE)}
    kinds = Counter(fault.kind for fault in faults())
    assert rows == {kind: count * len(seeds()) for kind, count in kinds.items()}
