"""The guards around a call to Orbax."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
import tensorstore

from resnet_tpu.checkpoints import orbax_calls
from resnet_tpu.training.interrupt import Interruption


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What would be printed for errors that nobody can catch."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: found.append(str(args.exc_value)))
    yield found


def test_an_array_that_ends_after_the_loop_of_its_read_prints_no_trace(said: list[str]) -> None:
    with orbax_calls.calling():
        pass
    promise, array = tensorstore.Promise.new()

    async def wait() -> None:
        await array

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    promise.set_result(1)
    assert said == [] and not waiting.done()

    class Broken:
        def __del__(self) -> None:
            raise RuntimeError("Event loop is closed")

    Broken()
    assert said == ["Event loop is closed"]


def test_loggers_speak_again_after_the_last_of_overlapping_calls() -> None:
    """As when two threads load models: the one that began first ends first."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.level for logger in loggers]
    has_begun, may_end = threading.Event(), threading.Event()

    def call() -> None:
        with orbax_calls.calling():
            has_begun.set()
            may_end.wait(60)

    other = threading.Thread(target=call)
    with orbax_calls.calling():
        other.start()
        assert has_begun.wait(60)
    silenced = [logger.level for logger in loggers]
    may_end.set()
    other.join()
    assert (silenced, [logger.level for logger in loggers]) == ([logging.CRITICAL] * 2, before)


def test_a_signal_waits_for_the_end_whatever_comes_of_it() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), orbax_calls.calling():
        signal.raise_signal(signal.SIGINT)
        done.append("the read")
        raise ValueError("damaged")
    assert done == ["the read"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_acts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), orbax_calls.calling():
        signal.raise_signal(signal.SIGINT)
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:  # as Orbax does
            raise ValueError("damaged") from error
        pytest.fail("nothing was raised")


def test_the_second_ctrl_c_acts_at_once_where_the_first_is_only_noted() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interruption() as stop:  # as nobody asked `leave`
        with pytest.raises(KeyboardInterrupt), orbax_calls.calling():
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_due(1)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("nothing was raised")
        assert stop.is_due(1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_only_noted_raises_nothing_and_the_second_does() -> None:
    with pytest.raises(KeyboardInterrupt), Interruption() as stop:
        with orbax_calls.calling():
            signal.raise_signal(signal.SIGINT)
        assert stop.is_due(1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
