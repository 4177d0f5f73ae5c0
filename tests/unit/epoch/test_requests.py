"""What an epoch asks of a remote store: few requests, no list, nothing it has written itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests import recorded
from tests.unit.epoch.counting import Driven

from millrace import clock, hooks
from millrace.log.journal import FULL_EVERY
from millrace.log.marks import SMALL
from millrace.log.retention import collect

SHARDS = 2
TABLES = 2


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    monkeypatch.setenv(hooks.VARIABLE, recorded.__name__)
    recorded.ASKED.clear()
    yield Driven(f"memory://requests-{clock.fresh_id()}", shards=SHARDS)
    recorded.ASKED.clear()


def asked(driven: Driven, keys: range) -> Counter[tuple[str, str]]:
    """The requests of one epoch, as verbs and folders."""
    recorded.ASKED.clear()
    driven.epoch(keys)
    return Counter((verb, path.partition("/")[0]) for verb, path in recorded.ASKED)


def test_an_epoch_costs_a_create_and_a_put_per_shard_and_table(driven: Driven) -> None:
    for _ in range(3):
        driven.epoch(range(100))
    for _ in range(FULL_EVERY + 2):
        found = asked(driven, range(50))
        assert found.pop(("create", "manifests")) == 1
        assert found.pop(("put", "segments")) == SHARDS * TABLES
        # The process learns of the epoch before by one read, whatever the number of shards.
        assert found.pop(("read", "manifests")) == 1
        # Whether the epoch was committed and collected before: two looks by name.
        assert found.pop(("size", "collected")) == 2
        assert not found


def test_a_shard_that_changes_nothing_writes_nothing(driven: Driven) -> None:
    driven.epoch(range(100))
    driven.epoch(range(100))
    found = asked(driven, range(1))
    assert found["put", "segments"] == TABLES
    assert found["create", "manifests"] == 1


def test_another_process_on_the_machine_reads_no_segments(driven: Driven) -> None:
    for _ in range(3):
        driven.epoch(range(100))
    driven.restart()
    found = asked(driven, range(100))
    assert found["read", "segments"] == 0
    assert driven.state()


def test_collections_cost_epochs_nothing(driven: Driven) -> None:
    for _ in range(2 * SMALL):
        driven.epoch(range(10))
    assert collect(driven.journal, SMALL).manifests
    assert asked(driven, range(10))["list", "manifests"] == 0
