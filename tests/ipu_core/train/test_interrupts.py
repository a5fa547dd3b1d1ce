"""Ctrl-C that waits: once, at the end of what must be done whole, and with the meaning it had before."""

import signal
import threading

import pytest

from ipu_core.train.interrupts import Hold


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
