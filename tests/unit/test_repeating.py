"""A thread that outlives whatever goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.waiting import DEADLINE, until

from millrace import repeating
from millrace.errors import StoreError
from millrace.repeating import Repeating, problems


class Step:
    """Does what it is told to: raises, returns a pause, or ends."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: BaseException | None = None
        self.pause: float | None = 0.001
        self.called = threading.Condition()

    def __call__(self) -> float | None:
        with self.called:
            self.calls += 1
            self.called.notify_all()
        if self.error is not None:
            raise self.error
        return self.pause

    def await_calls(self, more: int) -> None:
        with self.called:
            wanted = self.calls + more
            assert self.called.wait_for(lambda: self.calls >= wanted, DEADLINE)


@pytest.fixture
def step() -> Step:
    return Step()


@pytest.fixture
def thread(step: Step, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repeating]:
    monkeypatch.setattr(repeating, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(repeating, "MAX_RETRY_SECONDS", 0.004)
    made = Repeating("test", step)
    yield made
    step.error = None
    made.close()
    assert not made.is_alive


ERRORS = [
    StoreError("no network\nand more"),
    OSError("no network"),
    RuntimeError("no network"),
    MemoryError("no network"),
    # No `Exception`s: the first comes from asynchronous clients, the second ends a thread silently.
    asyncio.CancelledError("no network"),
    SystemExit("no network"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_error_is_outlived_and_shown(
    step: Step, thread: Repeating, error: BaseException
) -> None:
    thread.start()
    step.await_calls(2)
    assert thread.problem is None
    step.error = error
    until(lambda: thread.problem == "no network", "the problem")
    step.await_calls(20)
    assert thread.is_alive
    step.error = None
    until(lambda: thread.problem is None, "the end of the problem")


def test_an_error_without_words_is_named(step: Step, thread: Repeating) -> None:
    step.error = KeyError()
    thread.start()
    until(lambda: thread.problem == "KeyError()", "the problem")


class Unprintable(Exception):
    """As an error of Spark's whose JVM is gone: its text would have to be asked for there."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


def test_an_error_that_cannot_say_what_it_is(step: Step, thread: Repeating) -> None:
    step.error = Unprintable()
    thread.start()
    until(lambda: thread.problem == "Unprintable", "the problem")
    step.await_calls(3)
    assert thread.is_alive


def test_the_problems_of_several_threads_are_told_together() -> None:
    threads = [Repeating(name, lambda: None) for name in ("a", "b", "c")]
    assert problems(threads) is None
    threads[0].problem, threads[2].problem = "no network", "disk full"
    assert problems(threads) == "a: no network; c: disk full"


def test_pauses_grow_to_a_limit_and_begin_again(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    script = [OSError("a")] * 6 + [None, OSError("b")]

    def scripted() -> float | None:
        error = script.pop(0) if script else None
        if error is not None:
            raise error
        return 0.0 if script else None

    monkeypatch.setattr(repeating, "RETRY_SECONDS", 1.0)
    monkeypatch.setattr(repeating, "MAX_RETRY_SECONDS", 10.0)
    thread = Repeating("test", scripted)
    monkeypatch.setattr(thread._wake, "wait", pauses.append)
    thread.start()
    until(lambda: not thread.is_alive, "its end")
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 0.0, 1.0]


def test_a_step_may_end_the_thread(step: Step, thread: Repeating) -> None:
    step.pause = None
    thread.start()
    until(lambda: not thread.is_alive, "its end")
    assert step.calls == 1


def test_waking_ends_a_pause(step: Step, thread: Repeating) -> None:
    step.pause = 1e6
    thread.start()
    until(lambda: step.calls == 1, "the first step")
    thread.wake()
    until(lambda: step.calls == 2, "the second step")


def test_closing_ends_a_pause_and_the_thread(step: Step, thread: Repeating) -> None:
    step.pause = 1e6
    thread.start()
    until(lambda: step.calls == 1, "the first step")
    thread.close(None)
    assert not thread.is_alive
    assert step.calls == 1


def test_a_step_may_close_its_own_thread() -> None:
    def closing() -> float:
        thread.close()
        return 0.0

    thread = Repeating("test", closing)
    thread.start()
    until(lambda: not thread.is_alive, "its end")
