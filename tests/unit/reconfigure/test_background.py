"""The threads beside the epochs outlive whatever goes wrong, and say what does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reconfigure.test_director import Executors, Stage

from millrace import clock, repeating
from millrace.errors import StoreError
from millrace.reconfigure import background
from millrace.reconfigure.background import Background


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "POLL_SECONDS", 0.01)
    for name in ("RETRY_SECONDS", "MAX_RETRY_SECONDS"):
        monkeypatch.setattr(repeating, name, 0.01)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Executors("a", "b", "c", "d"))


@pytest.fixture
def threads(stage: Stage) -> Iterator[Background]:
    """Not started."""
    made = Background(stage.director, stage.requests)
    yield made
    made.close()
    assert not any(thread.is_alive for thread in made.threads)


def becomes(true: Callable[[], bool]) -> None:
    until = clock.stopwatch() + 30
    while not true():
        assert clock.stopwatch() < until, "it did not happen"
        clock.sleep(0.005)


ERRORS = [
    StoreError("no network"),
    OSError("no network"),
    RuntimeError("no network"),
    asyncio.CancelledError("no network"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["open", "read", "take", "answered", "tidy"])
def test_requests_are_taken_when_the_store_works_again(
    stage: Stage,
    threads: Background,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: BaseException,
) -> None:
    works = threading.Event()
    real = getattr(stage.requests, call)

    def failing(*arguments: Any) -> Any:
        if not works.is_set():
            raise error
        return real(*arguments)

    monkeypatch.setattr(background, "TIDY_EVERY", 1)
    monkeypatch.setattr(stage.requests, call, failing)
    stage.run()
    request = stage.requests.submit("rescale", parallelism=3, strategy="pause")
    threads.start()
    becomes(lambda: threads.problem == "requests: no network")
    works.set()
    becomes(lambda: threads.problem is None)
    becomes(lambda: request.id in stage.director._inbox.moves)
    assert stage.run().shards == 3


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_following_goes_on_when_it_works_again(
    stage: Stage, threads: Background, error: BaseException
) -> None:
    stage.cluster.failing = error
    stage.run(follow=False)
    threads.start()
    becomes(lambda: threads.problem == "follow: no network")
    stage.cluster.failing = None
    becomes(lambda: threads.problem is None)
    stage.director.submit("rescale", "live", parallelism=4)
    becomes(lambda: stage.run(follow=False).shards == 4)


def test_a_move_that_was_refused_is_no_longer_a_problem(
    stage: Stage, threads: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its answer cannot be written while it fails."""
    stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    stage.cluster.failing = RuntimeError("no network")
    answer, works = stage.requests.answer, threading.Event()

    def failing(*arguments: Any) -> bool:
        if not works.is_set():
            raise RuntimeError("disk full")
        return answer(*arguments)

    monkeypatch.setattr(stage.requests, "answer", failing)
    threads.start()
    becomes(lambda: move.state == "refused")
    becomes(lambda: threads.problem == "requests: disk full")
    works.set()
    becomes(lambda: threads.problem is None)
    found = stage.answer(move.id)
    assert found is not None
    assert found.reason == "following failed 3 times: no network"


def test_closing_does_not_wait_for_a_pause(
    stage: Stage, threads: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_SECONDS", 600.0)
    threads.start()
    threads.close()
    assert not any(thread.is_alive for thread in threads.threads)


def test_a_closed_director_ends_the_threads(stage: Stage, threads: Background) -> None:
    """A failed run closes its director, and nothing else."""
    threads.start()
    stage.director.close()
    becomes(lambda: not any(thread.is_alive for thread in threads.threads))
