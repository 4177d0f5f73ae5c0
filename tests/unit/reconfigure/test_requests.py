"""Requests as files: durable, taken, answered once, forgotten in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.recording import RecordingStore

from millrace.errors import CorruptionError, CorruptManifestError, UnknownRequestError
from millrace.log.store import Store, open_store
from millrace.reconfigure.requests import KEEP, Answer, Request, Requests


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "location"))


@pytest.fixture
def requests(store: Store) -> Requests:
    return Requests(store)


def test_a_request_survives_whoever_wrote_it(requests: Requests, store: Store) -> None:
    asked = requests.submit("rescale", parallelism=4, strategy="live", operator="totals")
    later = Requests(open_store(store.url))
    assert later.pending() == [asked]
    assert later.read(asked.id) == asked
    assert asked.details == {"parallelism": 4, "strategy": "live", "operator": "totals"}


def test_oldest_first(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((3000, 1000, 2000))
    monkeypatch.setattr("millrace.clock.now_ms", lambda: next(times))
    for number in range(3):
        requests.submit("rescale", parallelism=number)
    assert [r.details["parallelism"] for r in requests.pending()] == [1, 2, 0]


def test_taking_is_not_answering(requests: Requests) -> None:
    asked = requests.submit("drain", executor="executor-1")
    other = requests.submit("drain", executor="executor-2")
    assert not requests.is_taken(asked.id)
    requests.take(asked, "run-1")
    requests.take(asked, "run-1")
    requests.take(asked, "run-2")
    assert requests.is_taken(asked.id)
    assert not requests.is_taken(other.id)
    assert requests.answered(asked.id) is None
    assert {r.id for r in requests.pending()} == {asked.id, other.id}


def test_the_first_answer_counts(requests: Requests) -> None:
    asked = requests.submit("rescale", parallelism=2)
    assert requests.answer(asked.id, Answer("done", "", {"key_groups": 3}))
    assert not requests.answer(asked.id, Answer("cancelled", "too late"))
    assert requests.answered(asked.id) == Answer("done", "", {"key_groups": 3})
    assert requests.pending() == []
    assert requests.open() == []


def test_a_request_that_is_not_there(requests: Requests) -> None:
    with pytest.raises(UnknownRequestError, match=r"has no request 17.*`millrace assignment`"):
        requests.read("17")
    assert requests.answered("17") is None
    assert requests.pending() == []


def damage(store: Store, path: str) -> None:
    full = Path(store.local_path(path) or "")
    full.write_bytes(full.read_bytes().replace(b"rescale", b"rescald").replace(b"done", b"gone"))


def test_a_damaged_request_says_so(requests: Requests, store: Store) -> None:
    asked = requests.submit("rescale", parallelism=2)
    damage(store, f"requests/{asked.id}.json")
    with pytest.raises(CorruptManifestError, match=rf"{asked.id}\.json is damaged"):
        requests.read(asked.id)
    assert requests.open() == [asked.id]


def test_a_damaged_answer_says_so(requests: Requests, store: Store) -> None:
    asked = requests.submit("rescale", parallelism=2)
    requests.answer(asked.id, Answer("done"))
    damage(store, f"requests/{asked.id}.answer.json")
    with pytest.raises(CorruptManifestError, match=rf"{asked.id}\.answer\.json is damaged"):
        requests.answered(asked.id)


def test_old_answers_are_forgotten_and_open_requests_are_not(
    requests: Requests, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.reconfigure.requests.KEEP", 3)
    assert KEEP > 3
    asked: list[Request] = [requests.submit("rescale", parallelism=n) for n in range(8)]
    asked.sort(key=lambda r: r.id)
    for request in asked[1:]:
        requests.take(request, "run")
        requests.answer(request.id, Answer("done"))
    requests.tidy()
    assert requests.pending() == [asked[0]]
    kept = [r.id for r in asked if requests.answered(r.id) is not None]
    assert kept == [r.id for r in asked[-3:]]
    left = store.list("requests")
    assert len(left) == 1 + 3 * 3
    requests.tidy()
    assert store.list("requests") == left


def test_tidying_that_is_interrupted_opens_nothing(requests: Requests, store: Store) -> None:
    """The answer goes last, so that a request without one is never an old one."""
    watched = RecordingStore(store)
    asked = [requests.submit("rescale", parallelism=n) for n in range(KEEP + 2)]
    for request in asked:
        requests.answer(request.id, Answer("done"))
    Requests(watched).tidy()
    by_id: dict[str, list[str]] = {}
    for path in (path for verb, path in watched.asked if verb == "delete"):
        by_id.setdefault(path.split("/")[1].split(".")[0], []).append(path)
    assert len(by_id) == 2
    for paths in by_id.values():
        assert paths[-1].endswith(".answer.json")


@pytest.mark.parametrize(
    "report",
    [
        {"seconds": "x"},
        {"seconds": True},
        {"seconds": None},
        {"bytes": None},
        {"shards": None},
        {"bytes": -1},
        {"first_epoch": "1"},
        {"shards": {"op": [1]}},
        {"shards": [1, 2]},
    ],
)
def test_an_answer_whose_report_is_none_is_refused_by_name(
    tmp_path: Path, report: dict[str, object]
) -> None:
    requests = Requests(open_store(str(tmp_path)))
    asked = requests.submit("rescale", parallelism=2)
    requests.answer(asked.id, Answer("done", "", report))
    with pytest.raises(CorruptionError, match=rf"requests/{asked.id}\.answer\.json is malformed"):
        requests.answered(asked.id)
