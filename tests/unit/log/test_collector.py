"""The collection of old files beside the epochs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint
from tests.waiting import until

from millrace import repeating
from millrace.errors import MissingFileError
from millrace.ids import Epoch
from millrace.log import collector as collector_module
from millrace.log import journal as journal_module
from millrace.log.collector import Collector
from millrace.log.journal import Journal

RETAIN = 2


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(journal_module, "FULL_EVERY", 3)
    monkeypatch.setattr(collector_module, "COLLECT_EVERY", 4)
    monkeypatch.setattr(repeating, "RETRY_SECONDS", 0.001)
    return Location(str(tmp_path), pa.schema([("n", pa.int64())]))


@pytest.fixture
def collector(location: Location) -> Iterator[Collector]:
    made = Collector(location.journal, RETAIN)
    made.start()
    yield made
    made.close()


def run(location: Location, collector: Collector, epochs: int) -> None:
    for _ in range(epochs):
        location.step({fingerprint(int(location.epoch) % 5): (int(location.epoch),)})
        collector.after_epoch(location.epoch)


def test_every_few_epochs_what_is_not_retained_goes(
    location: Location, collector: Collector
) -> None:
    run(location, collector, 3)
    assert location.journal.epochs() == [1, 2, 3]
    run(location, collector, 9)
    until(lambda: location.journal.epochs()[0] == 10, "the collection")
    assert location.journal.epochs() == [10, 11, 12]
    assert len(location.state()) == 5
    assert collector.thread.problem is None


def test_a_file_that_others_have_collected_is_no_failure(
    location: Location, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [MissingFileError("manifests/1 is missing"), RuntimeError("a client's own")]
    epochs = Journal.epochs

    def failing(journal: Journal) -> Any:
        if failures and type(journal) is not Journal:
            raise failures.pop(0)
        return epochs(journal)

    monkeypatch.setattr(Journal, "epochs", failing)
    run(location, collector, 12)
    until(lambda: location.journal.epochs()[0] == 10, "the collection")
    assert not failures


def test_what_fails_is_shown(
    location: Location, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(collector_module, "collect", broken)
    run(location, collector, 4)
    until(lambda: collector.thread.problem == "no network", "the problem")


def test_each_manifest_is_read_once(
    location: Location, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Epoch] = []
    read = Journal.read

    def counted(journal: Journal, epoch: Epoch) -> Any:
        if type(journal) is not Journal:
            reads.append(epoch)
        return read(journal, epoch)

    monkeypatch.setattr(Journal, "read", counted)
    for _ in range(6):
        run(location, collector, 4)
        until(lambda: location.journal.epochs()[0] >= location.epoch - 4, "the collection")
    assert reads
    assert len(reads) == len(set(reads))
    # And forgotten when the epoch is gone.
    until(lambda: len(collector._journal._read) <= 6, "forgetting")
