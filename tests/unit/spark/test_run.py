"""A run between two queries of Spark's, and one that loses its location."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import clock
from millrace.api.query import Query
from millrace.errors import FencedError, StoreError
from millrace.spark import run as run_module
from millrace.spark.run import FENCE_SECONDS, Run


class SparkQuery:
    """As much of Spark's query as a run asks of it."""

    def __init__(self) -> None:
        self.isActive = True
        self.waited: list[int] = []
        self.stops = 0
        self._jsq = SimpleNamespace(awaitTermination=self._await)

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False

    def _await(self, ms: int) -> bool:
        self.waited.append(ms)
        return not self.isActive


def a_run() -> tuple[Run, SparkQuery]:
    run: Any = Run.__new__(Run)
    run._spark_query = query = SparkQuery()
    run._switch_lock = threading.Lock()
    run._stopped = threading.Event()
    run._lost = threading.Event()
    run.halting = threading.Event()
    run.failure = None
    run.reports = []
    run.runner = SimpleNamespace(trail=SimpleNamespace(epoch=3))
    run.director = SimpleNamespace(restarting=threading.Event(), close=lambda: None)
    return run, query


def test_a_run_is_active_until_its_restart_has_started_the_next_query() -> None:
    run, query = a_run()
    assert run.is_active
    run.director.restarting.set()
    query.isActive = False
    assert run.is_active
    with run._switch_lock:
        run.director.restarting.clear()
        assert run.is_active
    assert not run.is_active


def test_a_run_that_was_stopped_or_failed_during_a_restart_is_not_active() -> None:
    run, query = a_run()
    query.isActive = False
    run.director.restarting.set()
    run.failure = ValueError()
    assert not run.is_active
    run.failure = None
    run._stopped.set()
    assert not run.is_active


@pytest.mark.parametrize(("seconds", "ms"), [(0.05, 50), (0.0001, 1), (2, 2000)])
def test_fractions_of_a_second_are_waited_for_as_such(seconds: float, ms: int) -> None:
    run, query = a_run()
    assert not run.await_end(seconds)
    assert query.waited == [pytest.approx(ms, abs=1)]


def test_the_end_of_a_query_that_is_restarted_is_not_the_end_of_the_run() -> None:
    run, query = a_run()
    query.isActive = False
    run._switch_lock.acquire()
    assert not run.await_end(0.01)
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(run.await_end(None)))
    following: Any = SparkQuery()
    following.awaitTermination = lambda: True
    query.awaitTermination = lambda: True  # type: ignore[attr-defined]
    waiting.start()
    run._spark_query = following
    run._switch_lock.release()
    waiting.join()
    assert ended == [True]
    assert run.settled_query() is following
    assert following.waited == []


def fenced(version: int, has_committed: bool) -> None:
    raise FencedError("epoch 4 was committed by run x")


def test_a_run_that_has_lost_its_location_stops_sparks_query() -> None:
    run, query = a_run()
    any_run: Any = run
    any_run._fence = SimpleNamespace(check=lambda version, has_committed: None)
    assert run._watch_fence() == FENCE_SECONDS
    assert run.is_active
    any_run._fence.check = fenced
    assert run._watch_fence() is None
    assert query.stops == 1
    assert not run.is_active
    assert isinstance(run.reason(), FencedError)
    # What the interrupted epoch raises is a consequence, not the reason.
    run.fail(ValueError("interrupted"))
    assert isinstance(run.reason(), FencedError)
    assert run.is_halting()


def test_stopping_is_tried_again_until_it_succeeds() -> None:
    run, query = a_run()
    any_run: Any = run
    any_run._fence = SimpleNamespace(check=fenced)
    stop = query.stop

    def fail() -> None:
        raise OSError("the gateway does not answer")

    query.stop = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gateway"):
        run._watch_fence()
    query.stop = stop  # type: ignore[method-assign]
    assert run._watch_fence() is None
    assert query.stops == 1


def test_a_run_that_ended_before_another_began_has_lost_nothing() -> None:
    run, query = a_run()
    any_run: Any = run
    any_run._fence = SimpleNamespace(check=fenced)
    query.isActive = False
    assert run._watch_fence() is None
    assert run.failure is None


class Restarting:
    """A run in the middle of a rescale by `restart`."""

    def __init__(self) -> None:
        run: Any
        run, self.query = a_run()
        self.run: Run = run
        run.director.restarting.set()
        run.director.adopt = run.director.restarting.clear
        run.director.close = lambda: None
        run.journal = SimpleNamespace(store=SimpleNamespace(url="a location"))
        run.epoch_lock = threading.Lock()
        run.runner = SimpleNamespace(restart=lambda: None)
        run._launch = SparkQuery
        self.query.stop = self._stop  # type: ignore[attr-defined]
        self.query.awaitTermination = lambda: True  # type: ignore[attr-defined]
        self.query.exception = lambda: None  # type: ignore[attr-defined]

    def _stop(self) -> None:
        self.query.isActive = False


ERRORS = [StoreError("no network"), RuntimeError("no network"), MemoryError("no network")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["launch", "adopt", "forget plans"])
def test_a_restart_that_fails_ends_the_run_and_says_why(
    step: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    restarting = Restarting()
    run: Any = restarting.run

    def failing() -> None:
        raise error

    if step == "launch":
        run._launch = failing
    elif step == "adopt":
        run.director.adopt = failing
    else:
        run.runner.restart = failing
    thread = threading.Thread(target=run.restart)
    thread.start()
    thread.join()
    assert not run.is_active
    assert run.reason() is error
    assert "a location: the restart failed: no network" in caplog.text
    query = Query(run, "a location")
    assert query.exception() is error
    for wait in (query.await_termination, lambda: query.await_termination(0.1)):
        with pytest.raises(type(error), match="no network"):
            wait()
    with pytest.raises(type(error), match="no network"):
        query.process_all_available()


def test_a_query_of_sparks_that_a_failed_restart_could_not_stop_ends_with_its_next_batch() -> None:
    restarting = Restarting()
    run: Any = restarting.run

    def failing() -> None:
        raise RuntimeError("it does not stop")

    restarting.query.stop = failing  # type: ignore[attr-defined]
    run.restart()
    assert restarting.query.isActive
    with pytest.raises(RuntimeError, match="it does not stop"):
        run(SimpleNamespace(), 7)


def test_a_restart_goes_on_with_the_next_query() -> None:
    restarting = Restarting()
    restarting.run.restart()
    assert not restarting.query.isActive
    assert restarting.run.spark_query is not restarting.query
    assert restarting.run.is_active
    assert restarting.run.failure is None


def test_a_start_whose_threads_cannot_be_started_leaves_nothing_running() -> None:
    run: Any
    run, query = a_run()
    stopped: list[str] = []

    def failing() -> None:
        raise RuntimeError("can't start new thread")

    run.epoch_lock = threading.Lock()
    run._idle = SimpleNamespace(close=lambda: stopped.append("idle"))
    run._fence_thread = SimpleNamespace(close=lambda: stopped.append("fence"))
    run._background = SimpleNamespace(start=failing, close=lambda: stopped.append("background"))
    run._collector = SimpleNamespace(close=lambda: stopped.append("collector"))
    run.scaling = SimpleNamespace(close=lambda: stopped.append("scaling"))
    query.stop = lambda: stopped.append("query")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run.start(lambda: query)
    assert stopped == ["query", "idle", "background", "collector", "fence", "scaling"]


class Waiting:
    """A run with a move that waits, and no batch for a while."""

    def __init__(self) -> None:
        run: Any
        run, self.query = a_run()
        self.run: Run = run
        self.steps = 0
        self.error: BaseException | None = None
        self.told: list[int] = []
        self.stopped = False
        run.epoch_lock = threading.Lock()
        run.last_batch = float("-inf")
        run.listeners = [self.told.append]
        run._collector = SimpleNamespace(after_epoch=self.told.append)
        run.runner = SimpleNamespace(run_without_rows=self._step)
        run.director.is_closed = False
        run.director.waits_for_epoch = True
        run.director.close = lambda: None
        self.query.stop = self._stop  # type: ignore[attr-defined]

    def _step(self) -> int:
        self.steps += 1
        if self.error is not None:
            raise self.error
        return 7

    def _stop(self) -> None:
        self.stopped = True


def test_a_move_goes_on_while_no_batch_comes() -> None:
    waiting = Waiting()
    assert waiting.run._step_without_rows() == run_module.IDLE_POLL_SECONDS
    assert waiting.told == [7, 7]


@pytest.mark.parametrize("why", ["batch", "busy", "nothing", "stopped", "failed"])
def test_nothing_is_done_without_a_batch_unless_it_has_to_be(why: str) -> None:
    waiting = Waiting()
    run: Any = waiting.run
    if why == "batch":
        run.last_batch = clock.stopwatch() + 1e6
    elif why == "busy":
        run.epoch_lock.acquire()
    elif why == "nothing":
        run.director.waits_for_epoch = False
    elif why == "stopped":
        run._stopped.set()
    else:
        run.failure = ValueError()
    run._step_without_rows()
    assert waiting.steps == 0


def test_a_run_that_has_lost_its_location_ends_without_a_batch() -> None:
    waiting = Waiting()
    waiting.error = FencedError("another one was faster")
    assert waiting.run._step_without_rows() is None
    assert waiting.stopped
    assert waiting.run.failure is waiting.error
    assert not waiting.run.epoch_lock.locked()


def test_a_store_that_fails_is_tried_again_without_a_batch() -> None:
    waiting = Waiting()
    waiting.error = StoreError("no network")
    with pytest.raises(StoreError):
        waiting.run._step_without_rows()
    assert waiting.run.failure is None
    waiting.error = None
    assert waiting.run._step_without_rows() == run_module.IDLE_POLL_SECONDS
