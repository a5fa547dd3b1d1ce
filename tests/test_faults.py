"""The list of faults fits the tree, some are planted for real, and one that no test sees is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import Fault, Tree, chosen, faults, run

SEEN = Fault(
    "ipu_core/chip/integers.py", "values[1:] > values[:-1]", "values[1:] >= values[:-1]",
    "tests/ipu_core/chip/test_integers.py", "Values that repeat are taken for values that ascend.",
)  # fmt: skip


def test_every_fault_can_be_planted() -> None:
    wrong = {fault.why: problems for fault in faults() if (problems := fault.problems())}
    assert not wrong


def test_no_fault_is_listed_twice() -> None:
    listed = [(fault.file, fault.before, fault.after) for fault in faults()]
    assert len(set(listed)) == len(listed)


def test_what_cannot_be_planted_is_named() -> None:
    assert replace(SEEN, file="ipu_core/integer.py").problems() == ["there is no file ipu_core/integer.py"]
    assert replace(SEEN, before="values[", after="array[").problems()[0] == "`before` occurs 2 times, not once"
    assert replace(SEEN, after=SEEN.before).problems() == ["`after` is `before`"]
    assert replace(SEEN, after="values[1:] >").problems()[0].startswith("it is not Python")
    assert replace(SEEN, tests="tests/test_nothing.py").problems() == ["there is no test tests/test_nothing.py"]
    name = f"{SEEN.tests}::test_nothing"
    assert replace(SEEN, tests=name).problems() == [f"there is no test {name}"]
    assert replace(SEEN, tests="").problems() == ["it names no tests"]


def test_parts_make_the_whole() -> None:
    listed = [replace(SEEN, why=str(number)) for number in range(10)]
    parts = [fault for part in ("1/3", "2/3", "3/3") for fault in chosen(listed, part=part)]
    assert sorted(fault.why for fault in parts) == sorted(fault.why for fault in listed)
    assert [fault.why for fault in chosen(listed, "7")] == ["7"]
    with pytest.raises(ValueError, match="a part is given as 2/4"):
        chosen(listed, part="4/3")


def test_faults_are_planted_and_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is seen, one that the named test does not see, one that no longer fits, and one that raises."""
    unseen = replace(SEEN, tests=f"{SEEN.tests}::test_distinct_numbers_are_numpys[values4]")
    broken = replace(SEEN, after="values[1:] > values[:-1] + unknown()", why="It ends with a NameError.")
    tree = Tree(tmp_path)
    text = (tmp_path / SEEN.file).read_bytes()
    outcomes = run([SEEN, unseen, replace(SEEN, before="values[2:]"), broken], tree)
    assert [outcome.verdict for outcome in outcomes] == ["caught", "SURVIVED", "could not be planted", "caught"]
    assert outcomes[0].words.startswith(f"by {SEEN.tests}::")
    assert (tmp_path / SEEN.file).read_bytes() == text
    assert capsys.readouterr().out.count(SEEN.file) == 4
