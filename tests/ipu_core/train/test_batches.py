"""Where batches come from, and runs that go on from a checkpoint in the middle of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.train.callbacks import Checkpoint
from ipu_core.train.data.batches import Epochs, Feed
from tests.ipu_core.train.test_loop import batches, bits, loop

LIST = [batches(i) for i in range(7)]


class Again:
    """Can be iterated over again and again, and counts how often it was."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return iter(LIST)


def passes(epoch: int) -> Iterator[Any]:
    """A generator function: the batches of each pass in another order."""
    for i in np.random.default_rng(epoch).permutation(len(LIST)):
        yield LIST[i]


SOURCES: dict[str, Callable[[], Any]] = {
    "function": lambda: batches,
    "list": lambda: LIST * 3,
    "iterable": Again,
    "epochs of a list": lambda: Epochs(LIST),
    "epochs of an iterable": lambda: Epochs(Again()),
    "epochs of generators": lambda: Epochs(passes),
}


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_run_goes_on_in_the_middle_of_its_batches(kind: str, every: int, tmp_path: Path) -> None:
    """Killed after 17 steps, with the checkpoint of the last multiple of `every`, and again in the run after that."""
    steps, path = 21, tmp_path / "run.npz"
    whole = loop("fp16.16/stochastic")
    losses = whole.run(SOURCES[kind](), steps)
    done = 0
    for killed in (5, 17, steps):
        made = loop("fp16.16/stochastic")
        if path.exists():
            made.load(path)
        assert made.step == done
        last = made.run(SOURCES[kind](), min(killed, len(losses)) - made.step, callbacks=[Checkpoint(path, every)])
        assert last.tobytes() == losses[done:killed].tobytes()
        done = min(killed, len(losses)) // every * every
    assert bits(made) == bits(whole)
    assert len(losses) == (7 if kind == "iterable" else steps)


def test_one_pass_after_another_goes_on_too(tmp_path: Path) -> None:
    """The usual way to write it: a run for each pass, which ends with the batches."""
    path, whole = tmp_path / "run.npz", loop()
    for _ in range(3):
        whole.run(LIST, 7)
    first = loop()
    for _ in range(2):
        first.run(LIST, 7 if first.step < 7 else 4, callbacks=[Checkpoint(path, every=3)])
    made = loop()
    made.load(path)
    assert made.step == 9
    for _ in range(made.step // 7, 3):
        made.run(LIST, 7)
    assert made.step == 21
    assert bits(made) == bits(whole)


def test_a_run_that_is_over_leaves_no_place(tmp_path: Path) -> None:
    """What follows a save between two runs has the bits of loops that were never saved: the next run begins anew."""
    whole = loop()
    whole.run(LIST, 3)
    whole.save(tmp_path / "run.npz")
    whole.run(iter(LIST), 3)
    made = loop()
    made.load(tmp_path / "run.npz")
    made.run(iter(LIST), 3)
    assert bits(made) == bits(whole)


def interrupted(path: Path, source: Any, **more: Any) -> None:
    """A run that ends with an exception after 5 batches, and is saved then."""

    def fail(made: Any, loss: float) -> None:
        if made.step == 5:
            raise ZeroDivisionError

    made = loop(**more)
    with pytest.raises(ZeroDivisionError):
        made.run(source, 7, callbacks=[fail])
    made.save(path)


def test_an_iterator_cannot_go_on_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    interrupted(path, iter(LIST))
    made = loop()
    made.load(path)
    with pytest.raises(ValueError, match="had taken 5 batches, and an iterator cannot be set to the next one: give a"):
        made.run((batch for batch in LIST), 2)
    assert made.step == 5
    made.load(path)
    made.run(LIST, 2)  # what they were taken from can
    whole = loop()
    whole.run(LIST, 7)
    assert bits(made) == bits(whole)


def test_a_refused_run_can_be_begun_again_rightly(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    interrupted(path, LIST)
    made = loop()
    made.load(path)
    with pytest.raises(ValueError, match="an iterator cannot be set"):
        made.run(iter(LIST), 2)
    made.run(LIST, 2)
    whole = loop()
    whole.run(LIST, 7)
    assert bits(made) == bits(whole)


@pytest.mark.parametrize("other", [LIST[::-1], LIST[1:], LIST[:3], Epochs(LIST[::-1])], ids=range(4))
def test_other_batches_than_those_that_were_taken_are_refused(other: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    interrupted(path, LIST)
    made = loop()
    made.load(path)
    with pytest.raises(ValueError, match="batch 4 is not the one that the checkpoint's run took"):
        made.run(other, 2)


def test_batches_taken_at_a_time_are_not_counted_before_they_are_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"

    def stop(made: Any, loss: float) -> None:
        made.save(path)

    source = Epochs(passes)
    whole = loop(steps_per_call=5)
    losses = whole.run(source, 23)
    loop(steps_per_call=5).run(source, 10, callbacks=[stop])
    made = loop(steps_per_call=5)
    made.load(path)
    assert made.run(source, 13).tobytes() == losses[10:].tobytes()

    def torn(epoch: int) -> Iterator[Any]:
        for number, batch in enumerate(passes(epoch)):
            if epoch and number == 2:
                raise OSError("the disk is gone")
            yield batch

    made = loop(steps_per_call=5)
    with pytest.raises(OSError, match="the disk is gone"):
        made.run(Epochs(torn), 20)
    assert made.step == 5
    made.save(path)
    made = loop(steps_per_call=5)
    made.load(path)
    assert made.run(source, 18).tobytes() == losses[5:].tobytes()


def test_positions_are_those_of_steps() -> None:
    feed = Feed(Epochs([np.zeros(1), np.ones(1), np.full(1, 2)]), 100, most=4)
    assert feed.position(100) == {"epoch": 0, "taken": 0, "last": None}
    assert [int(batch[0]) for batch in feed.take(4)] == [0, 1, 2, 0]
    places = [feed.position(step) for step in range(100, 105)]
    assert [(place["epoch"], place["taken"]) for place in places if place] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1)]
    assert len({place["last"] for place in places if place}) == 4
    assert Feed(batches, 3).position(5) is None


def test_what_are_no_passes_is_refused() -> None:
    for wrong in (iter(LIST), 3, None):
        with pytest.raises(TypeError, match="Epochs are made of batches, or of a function"):
            Epochs(wrong)  # type: ignore[arg-type]
    assert len(loop().run(Epochs([]), 5)) == 0
    assert len(loop().run(Epochs(lambda epoch: LIST[:3] if epoch == 0 else []), 5)) == 3
    ends = itertools.islice(LIST, 2)
    assert len(loop().run(ends, 5)) == 2
