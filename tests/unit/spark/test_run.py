"""A run between two queries of Spark's, and one that loses its location."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.errors import FencedError
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
    run._halting = threading.Event()
    run.failure = None
    run.reports = []
    run._runner = SimpleNamespace(trail=SimpleNamespace(epoch=3))
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
    run._fail(ValueError("interrupted"))
    assert isinstance(run.reason(), FencedError)
    assert run._is_halting()


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
