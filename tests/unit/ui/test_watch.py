"""What the page says of a location: every epoch once, and marks for what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.restoring import Backup
from tests.unit.ui.histories import BEGIN_MS, FOUR, GROUPS, THREE, TWO, Past, eventful

from millrace.errors import NotALocationError
from millrace.log.manifest import manifest_path
from millrace.log.retention import collect
from millrace.reconfigure.requests import Answer
from millrace.ui.history import KEPT_MARKS
from millrace.ui.watch import QueryStatus, Watch


class Scripted:
    """A query that says what it is told to."""

    def __init__(self, live: QueryStatus) -> None:
        self.live = live

    def status(self) -> QueryStatus:
        return self.live


def titles(watch: Watch) -> list[str]:
    return [mark.title for mark in watch.marks()]


def shown(watch: Watch, after: int = 0) -> dict[str, list[object]]:
    snapshot = watch.snapshot(after)
    rows = zip(*snapshot["points"], strict=True)
    return dict(zip(snapshot["columns"], map(list, rows), strict=True))


def test_an_eventful_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    watch = Watch(past.url)
    watch.refresh()
    assert titles(watch) == [
        "query started",
        "rescale 2 → 4",
        "executor-2 lost",
        "rescale 3 → 2",
    ]
    lost = watch.marks()[2]
    # Even shares of 16 over four: executor-2 had the second quarter.
    assert lost.detail == "4 key groups went to executor-0, executor-1"
    assert lost.epoch == 8
    rescaled = watch.marks()[1]
    assert rescaled.detail == "live: 8 key groups, 3.2 MB, 2 epochs, 1.5 s"
    assert (rescaled.time_ms, rescaled.end_ms) == (BEGIN_MS + 3000, BEGIN_MS + 4500)
    points = shown(watch)
    assert points["epoch"] == list(range(1, 13))
    assert points["time_ms"] == [BEGIN_MS + 1000 * e for e in range(1, 13)]
    assert points["shards"] == [2] * 3 + [4] * 4 + [3] * 2 + [2] * 3
    assert points["changed"] == [8] * 12
    assert points["state_bytes"][-1] > points["state_bytes"][0] > 0  # type: ignore[operator]
    body = watch.snapshot()
    # In the order in which they appeared: that is the order of their colours.
    assert [e["name"][-1] for e in body["executors"]] == ["0", "1", "2", "3"]
    assert [c["epoch"] for c in body["assignments"]["table"]] == [1, 4, 8, 10]
    assert (body["state"], body["keyGroups"], body["error"]) == ("watched", GROUPS, "")


def test_only_what_is_new_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    watch = Watch(past.url)
    watch.refresh()
    assert watch.snapshot()["points"] == []
    past.epochs(3)
    watch.refresh()
    past.epochs(2, FOUR)
    watch.refresh()
    watch.refresh()
    assert shown(watch, after=3)["epoch"] == [4, 5]
    assert [c["epoch"] for c in watch.snapshot(3)["assignments"]["table"]] == [4]
    assert watch.history.epochs == 5


def test_the_time_of_each_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(2)
    watch = Watch(past.url)

    def told() -> tuple[Any, ...]:
        watch.refresh()
        (operator,) = watch.snapshot()["operators"]
        return operator["watermark_ms"], operator["late"], operator["evicted"]

    assert told() == (None, 0, 0)
    past.epochs_in_time(2, late=3)
    past.epochs_in_time(1, evicted=1_000)
    # The operator's own watermark, not that of the sources.
    assert told() == (past.now_ms - 60_000, 6, 1_000)
    past.epochs_in_time(1, late=1, evicted=1)
    assert told() == told() == (past.now_ms - 60_000, 7, 1_001)
    assert shown(watch)["watermark_ms"][-1] == past.now_ms


def test_a_request_under_way_and_one_that_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(1, FOUR)
    refused = past.requests.submit("drain", executor="executor-9", strategy="live")
    past.requests.answer(refused.id, Answer("refused", "there is no executor-9"))
    past.now_ms += 1
    past.requests.submit("rescale", parallelism=2, strategy="live")
    past.epochs(1, TWO)
    watch = Watch(past.url)
    watch.refresh()
    drain, rescale = watch.marks()[1:]
    assert (drain.state, drain.detail) == ("refused", "there is no executor-9")
    assert (rescale.title, rescale.state, rescale.end_ms) == ("rescale to 2", "waiting", None)
    # Two executors have lost all their key groups, as was asked for.
    assert not [mark for mark in watch.marks() if mark.kind == "lost"]


def test_a_restart_loses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(2, FOUR)
    past.location.commit([], TWO, run="another", full=True)
    watch = Watch(past.url)
    watch.refresh()
    assert titles(watch) == ["query started", "query started again"]


def test_the_past_may_be_collected_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(2)
    watch = Watch(past.url)
    watch.refresh()
    past.epochs(40)
    collect(past.location.journal, 1)
    watch.refresh()
    watch.refresh()
    assert watch.problem == ""
    assert shown(watch)["epoch"][-1] == 42


@pytest.mark.parametrize("epochs", [0, 3, 4])
def test_after_a_restore_the_page_shows_the_new_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(2)
    backup = Backup(tmp_path / "location")
    past.epochs(3, FOUR)
    watch = Watch(past.url)
    watch.refresh()
    assert shown(watch)["shards"] == [2, 2, 4, 4, 4]
    backup.restore()
    again = Past(tmp_path / "location", monkeypatch)
    again.epochs(epochs, THREE)
    watch.refresh()
    assert watch.problem == ""
    assert shown(watch)["shards"] == [2, 2] + [3] * epochs
    again.epochs(1, TWO)
    watch.refresh()
    assert shown(watch)["epoch"] == list(range(1, epochs + 4))


def test_damage_is_told_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(2)
    watch = Watch(past.url)
    watch.refresh()
    past.epochs(1)
    path = tmp_path / "location" / manifest_path(past.location.epoch)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    watch.refresh()
    assert "is damaged" in watch.snapshot()["error"]
    assert shown(watch)["epoch"] == [1, 2]
    path.write_bytes(whole)
    watch.refresh()
    assert watch.snapshot()["error"] == ""
    assert shown(watch)["epoch"] == [1, 2, 3]


def test_what_the_querys_process_knows_is_laid_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(3, THREE)
    names = ("executor-0", "executor-1", "executor-3", "executor-4")
    source = Scripted(QueryStatus("running", "", names, {2: (5000, 125.0)}))
    watch = Watch(past.url, source)
    watch.refresh()
    points = shown(watch)
    assert points["rows"] == [None, 5000, None]
    assert points["took_ms"] == [None, 125.0, None]
    source.live = QueryStatus("running", "", ("executor-0", "executor-3", "executor-5"))
    watch.refresh()
    alive = {e["name"]: e["alive"] for e in watch.snapshot()["executors"]}
    assert (alive["executor-0"], alive["executor-1"]) == (True, False)
    assert titles(watch)[1:] == ["executor-1 lost", "executor-4 left", "executor-5 joined"]
    past.epochs(1, TWO.placed(("executor-0", "executor-3")))
    source.live = QueryStatus("failed", "no space on the device")
    watch.refresh()
    # The loss shows once, although the manifests now say so too.
    assert titles(watch)[1:].count("executor-1 lost") == 1
    assert watch.marks()[-1].detail == "no space on the device"
    body = watch.snapshot()
    assert (body["state"], body["error"]) == ("failed", "no space on the device")
    assert {e["alive"] for e in body["executors"]} == {None}


def test_marks_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(1)
    watch = Watch(past.url)
    watch.note("note", "SQL", "two rows")
    watch.refresh()
    assert titles(watch) == ["query started", "SQL"]


def test_what_is_not_a_location(tmp_path: Path) -> None:
    with pytest.raises(NotALocationError, match="is not a Millrace location"):
        Watch(str(tmp_path))


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.ui.watch.REQUESTS_EVERY", 0.0)
    monkeypatch.setattr("millrace.reconfigure.requests.KEEP", 5)
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(1)
    watch = Watch(past.url)
    for number in range(2 * KEPT_MARKS):
        watch.note("note", f"note {number}")
    assert titles(watch) == [f"note {n}" for n in range(KEPT_MARKS, 2 * KEPT_MARKS)]
    for _ in range(20):
        past.now_ms += 1
        asked = past.requests.submit("rescale", parallelism=2, strategy="live")
        past.requests.answer(asked.id, Answer("refused", "not now"))
        watch.refresh()
        past.requests.tidy()
    watch.refresh()
    assert len(watch._answered) == 5
