"""Signals that come in the middle of what must be done whole wait for its end, whichever of them it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ipu_core.train.stepper import Hold


class Came(KeyboardInterrupt):
    pass


def come(number: int, frame: object) -> None:
    raise Came(number)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal whose handler is a function."""
    before = signal.signal(request.param, come)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_waits_for_the_end(number: int) -> None:
    hold, done = Hold(), []
    with hold.installed():

        def work() -> None:
            with hold:
                signal.raise_signal(number)
                signal.raise_signal(number)
                done.append("whole")

        with pytest.raises(Came) as raised:
            work()
        assert raised.value.args == (number,)
        with pytest.raises(Came):
            signal.raise_signal(number)  # nothing is held: at once
        with hold:
            pass  # what came is not told twice
    assert done == ["whole"]
    assert signal.getsignal(number) is come


def test_a_handler_that_puts_another_in_its_place_is_not_undone(number: int) -> None:
    def once(got: int, frame: object) -> None:
        signal.signal(got, signal.SIG_IGN)
        raise Came(got)

    signal.signal(number, once)
    with pytest.raises(Came), Hold().installed():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_signal_that_no_function_handles_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert before is signal.SIG_DFL
    with Hold().installed():
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_ctrl_c_comes_once_at_the_end_of_what_is_held() -> None:
    hold, done = Hold(), list[str]()
    with hold.installed():
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            with hold:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                done.append("held")
            done.append("behind")
        try:
            with hold:
                done.append("later")
        except KeyboardInterrupt:
            done.append("again")
    assert done == ["held", "later"]


def test_between_what_is_held_it_comes_at_once_and_afterwards_as_before() -> None:
    hold, heard = Hold(), list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        meant = signal.getsignal(signal.SIGINT)
        with hold.installed(), hold.installed():
            signal.raise_signal(signal.SIGINT)
            assert heard == [signal.SIGINT]
            with hold:
                signal.raise_signal(signal.SIGINT)
                assert len(heard) == 1
            assert len(heard) == 2
        assert signal.getsignal(signal.SIGINT) is meant
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_listens_to_nothing() -> None:
    hold, before, seen = Hold(), signal.getsignal(signal.SIGINT), list[object]()

    def work() -> None:
        with hold.installed(), hold:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_what_ends_the_listening_in_the_middle_is_made_good_the_next_time(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes while the handlers are put back, behind the first of them."""
    hold, put = Hold(), signal.signal

    def interrupted(which: int, handler: Any) -> Any:
        before = put(which, handler)
        if handler is come:
            raise Came(which)
        return before

    with pytest.raises(Came), hold.installed():
        monkeypatch.setattr(signal, "signal", interrupted)
    monkeypatch.undo()
    done = []

    def work() -> None:
        with hold:
            signal.raise_signal(number)
            done.append("whole")

    with pytest.raises(Came), hold.installed():
        work()
    assert done == ["whole"]
    assert signal.getsignal(number) is come
