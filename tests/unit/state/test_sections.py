"""The sections that a shard writes: deltas, first bases, merges and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import Fingerprint, Location, Row, changed_batch

from millrace.log.segment import HI, SectionData
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.sections import delta, due_merges, merged, run

SCHEMA = pa.schema([("n", pa.int64())])
GROUPS = 4


def key(group: int, number: int) -> Fingerprint:
    return group << 62 | number, number


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(str(tmp_path), SCHEMA, GROUPS)


def followed(location: Location) -> Replica:
    return location.follow(location.replica())


def change(replica: Replica, changes: dict[Fingerprint, Row | None]) -> list[SectionData]:
    return delta(replica, changed_batch(SCHEMA, changes))


def facts(section: SectionData) -> tuple[int, int, list[int], list[int], list[int]]:
    """Its epochs, and the key groups it covers and has rows of."""
    groups = section.groups.tolist(), section.counts.tolist()
    return section.first, section.last, section.covers.tolist(), *groups


def rows(section: SectionData) -> list[tuple[int, int | None]]:
    batch = section.rows.slice(0, section.rows.num_rows)
    return list(zip(batch.column(HI).to_pylist(), batch.column("n").to_pylist(), strict=True))


def test_the_first_rows_of_key_groups_are_their_base(location: Location) -> None:
    replica = followed(location)
    (section,) = change(replica, {key(1, 5): (1,), key(1, 6): (2,), key(3, 7): (3,)})
    assert facts(section) == (0, 1, [1, 3], [1, 3], [2, 1])
    assert section.rows.num_rows == 3


def test_later_rows_are_a_delta(location: Location) -> None:
    location.step({key(1, 5): (1,), key(3, 5): (1,)})
    (section,) = change(followed(location), {key(1, 5): (2,), key(3, 6): None})
    assert facts(section) == (1, 2, [1, 3], [1, 3], [1, 1])
    assert rows(section) == [(key(1, 5)[0], 2), (key(3, 6)[0], None)]


def test_new_and_known_key_groups_get_a_section_each(location: Location) -> None:
    location.step({key(1, 5): (1,)})
    base, changes = change(followed(location), {key(0, 1): (7,), key(1, 5): (8,), key(2, 1): None})
    assert facts(base) == (0, 2, [0], [0], [1])
    assert rows(base) == [(key(0, 1)[0], 7)]
    assert facts(changes) == (1, 2, [1], [1], [1])
    assert rows(changes) == [(key(1, 5)[0], 8)]


def test_deleting_what_was_never_there_is_one_empty_section(location: Location) -> None:
    location.step({key(1, 5): (1,)})
    (section,) = change(followed(location), {key(0, 1): None})
    assert facts(section) == (1, 2, [], [], [])
    assert section.rows.num_rows == 0


def test_a_key_group_with_only_deltas_is_not_new(location: Location) -> None:
    location.step({key(1, 5): (1,)})
    location.step({key(1, 5): None})
    replica = followed(location)
    assert [facts(s)[:2] for s in change(replica, {key(1, 6): (1,)})] == [(2, 3)]


def test_a_merge_has_the_rows_that_count_and_covers_what_is_empty(location: Location) -> None:
    location.step({key(0, 1): (1,), key(1, 5): (1,), key(1, 6): (1,)})
    location.step({key(0, 1): None, key(1, 5): (2,), key(1, 4): (3,)})
    section = merged(followed(location), np.asarray([0, 1, 2]))
    assert facts(section) == (0, 2, [0, 1, 2], [1], [3])
    assert rows(section) == [(key(1, 4)[0], 3), (key(1, 5)[0], 2), (key(1, 6)[0], 1)]
    assert section.rows.schema.names == ["_hi", "_lo", "_deleted", "n"]
    part = section.rows.slice(1, 1)
    assert part.column("n").to_pylist() == [2]


def test_a_merge_of_nothing_is_empty(location: Location) -> None:
    section = merged(followed(location), np.empty(0, np.int64))
    assert facts(section) == (0, 0, [], [], [])
    assert section.rows.num_rows == 0


def test_a_budget_of_nothing_merges_every_key_group_that_has_a_log(location: Location) -> None:
    location.step({key(0, 1): (1,), key(1, 5): (1,), key(2, 5): (1,)})
    location.step({key(0, 1): (2,), key(2, 5): (2,)})
    replica = followed(location)
    replica.touch(location.every)
    assert due_merges(replica, location.every, 1, 0).tolist() == [0, 2]
    assert due_merges(replica, np.asarray([0, 1]), 1, 0).tolist() == [0]
    assert due_merges(replica, location.every, 1, 1 << 60).tolist() == []


class TestRuns:
    @pytest.fixture(autouse=True)
    def _small_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(merging, "LOG_PIECES", 3)
        monkeypatch.setattr(merging, "RUN_PIECES", 2)
        monkeypatch.setattr(merging, "MERGE_RATIO", 1000)

    def filled(self, location: Location, epochs: int) -> Replica:
        wide = {key(group, n): (0,) for group in (0, 1, 2) for n in range(10)}
        location.step(wide)
        for epoch in range(epochs):
            location.step({key(0, 1): (epoch,), key(1, epoch): None if epoch else (9,)})
        return followed(location)

    def test_too_few_pieces_make_no_run(self, location: Location) -> None:
        assert run(self.filled(location, 2), location.every) is None

    def test_the_newest_deltas_become_one(self, location: Location) -> None:
        section = run(self.filled(location, 3), location.every)
        assert section is not None
        assert facts(section) == (1, 4, [0, 1], [0, 1], [1, 3])
        deleted = section.rows.slice(0, 4).column("_deleted").to_pylist()
        assert rows(section)[0] == (key(0, 1)[0], 2)
        assert deleted == [False, False, True, True]

    def test_a_run_speaks_for_the_key_groups_it_was_asked_for(self, location: Location) -> None:
        section = run(self.filled(location, 3), np.asarray([0, 2]))
        assert section is not None
        assert facts(section) == (1, 4, [0], [0], [1])
        assert run(followed(location), np.asarray([2])) is None
