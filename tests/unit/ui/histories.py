"""A location with a past: rescaled, an executor lost, started again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, fingerprint

from millrace.keygroups import Assignment
from millrace.reconfigure.requests import Answer, Requests

GROUPS = 16
TWO = Assignment.even(GROUPS, 2).placed(("executor-0", "executor-1"))
FOUR = Assignment.even(GROUPS, 4).placed(("executor-0", "executor-2", "executor-1", "executor-3"))
THREE = Assignment.even(GROUPS, 3).placed(("executor-0", "executor-1", "executor-3"))
BEGIN_MS = 1_700_000_000_000


class Past:
    """Drives a location, one epoch a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = BEGIN_MS
        monkeypatch.setattr("millrace.clock.now_ms", lambda: self.now_ms)
        self.location = Location(str(folder), pa.schema([("n", pa.int64())]), GROUPS)
        self.requests = Requests(self.location.store)

    @property
    def url(self) -> str:
        return self.location.store.url

    def epochs(self, number: int, assignment: Assignment = TWO) -> None:
        for _ in range(number):
            self.now_ms += 1000
            first = 5 * self.location.epoch
            self.location.step({fingerprint(i): (i,) for i in range(first, first + 8)}, assignment)

    def epochs_in_time(self, number: int, *, late: int = 0, evicted: int = 0) -> None:
        """Epochs without changes whose watermark is a minute behind, each with these rows."""
        for _ in range(number):
            self.now_ms += 1000
            self.location.journal.commit(
                self.location.trail,
                run="run",
                batch_id=self.location.epoch,
                watermark_ms=self.now_ms,
                operators={},
                specs={},
                full=False,
                watermarks={OPERATOR: (self.now_ms - 60_000) * 1000},
                figures={"lateRows": {OPERATOR: late}, "evictedRows": {OPERATOR: evicted}},
            )

    def rescale(self, old: int, new: int, after: Assignment) -> None:
        """A request, the two epochs it takes, and its answer."""
        asked = self.requests.submit("rescale", parallelism=new, strategy="live")
        first = self.location.epoch + 1
        self.epochs(2, after)
        report = {
            "key_groups": 8,
            "bytes": 3_200_000,
            "seconds": 1.5,
            "epochs": 2,
            "first_epoch": first,
            "last_epoch": first + 1,
            "shards": {"table": [old, new]},
        }
        self.requests.answer(asked.id, Answer("done", "", report))


def eventful(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    """2 -> 4 shards, executor-2 lost, 3 -> 2 shards."""
    past = Past(folder, monkeypatch)
    past.epochs(3)
    past.rescale(2, 4, FOUR)
    past.epochs(2, FOUR)
    past.epochs(2, THREE)
    past.rescale(3, 2, TWO)
    past.epochs(1)
    return past
