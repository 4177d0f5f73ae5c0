"""A table over mapped pages: what is taken is found, and what is dropped is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Fingerprint, Location, changed_batch, words

from millrace.log.segment import SYSTEM_FIELDS
from millrace.log.trail import Piece
from millrace.state.addresses import DELETED_BIT, chunks_of
from millrace.state.mapped_pages import MappedPages
from millrace.state.table import Table

SCHEMA = pa.schema([("n", pa.int64())])
GROUPS = 4


def key(group: int, number: int) -> Fingerprint:
    return group << 62 | number, number


@pytest.fixture
def location(tmp_path: Path) -> Location:
    """Two key groups of three rows each; then one changed, one deleted and one added in each."""
    made = Location(str(tmp_path), SCHEMA, GROUPS)
    made.step({key(group, n): (n,) for group in (0, 2) for n in (1, 2, 3)})
    for group in (0, 2):
        made.step({key(group, 1): (10,), key(group, 2): None, key(group, 4): (40,)})
    return made


class Taken:
    """A table that has taken its bases and some deltas."""

    def __init__(self, location: Location, deltas: int) -> None:
        self.pages = MappedPages(
            location.store,
            pa.schema([*SYSTEM_FIELDS, *SCHEMA]),
            GROUPS,
            owned=False,
            by_column=False,
        )
        self.table = Table(self.pages, GROUPS, owned=False)
        log = location.trail.operator(OPERATOR)
        for group, base in enumerate(log.base):
            if base is not None:
                self.table.take_base(group, base)
        self.pieces: list[Piece] = [piece for piece, _ in log.live().after()][:deltas]
        for piece in self.pieces:
            self.table.take(piece, location.every)

    def numbers(self, addresses: np.ndarray) -> list[int | None]:
        return self.pages.gather(addresses, ["n"])[0].to_pylist()  # type: ignore[no-any-return]

    def find(self, *keys: Fingerprint) -> list[int | None]:
        hi, lo = (words(column) for column in zip(*keys, strict=True))
        return self.numbers(self.table.find(hi, lo))


def test_bases_alone(location: Location) -> None:
    taken = Taken(location, 0)
    assert taken.find(key(0, 1), key(0, 2), key(0, 4), key(2, 3), key(1, 1)) == [
        1,
        2,
        None,
        3,
        None,
    ]
    assert taken.numbers(taken.table.rows(2)) == [1, 2, 3]
    superseded, beside = taken.table.changed(0)
    assert (len(superseded), len(beside)) == (0, 0)
    assert taken.table.index_bytes(location.every).tolist() == [0, 0, 0, 0]


def test_deltas_lie_over_their_bases(location: Location) -> None:
    taken = Taken(location, 1)
    assert taken.find(key(0, 1), key(0, 2), key(0, 3), key(0, 4)) == [10, None, 3, 40]
    assert taken.find(key(2, 1), key(2, 2)) == [1, 2]
    assert taken.numbers(taken.table.rows(0)) == [10, 3, 40]
    assert taken.numbers(taken.table.rows(2)) == [1, 2, 3]
    assert taken.table.index_bytes(location.every).tolist() == [16 * 24, 0, 0, 0]


def test_what_changed_since_the_base(location: Location) -> None:
    taken = Taken(location, 2)
    for group in (0, 2):
        superseded, beside = taken.table.changed(group)
        assert sorted(taken.numbers(superseded)) == [1, 2]  # type: ignore[type-var]
        assert sorted(taken.numbers(beside)) == [10, 40]  # type: ignore[type-var]


def test_rows_that_are_in_some_chunks(location: Location) -> None:
    taken = Taken(location, 2)
    first, second = (taken.pages.chunks_of([piece.id]) for piece in taken.pieces)
    found = taken.table.rows_in(0, first)
    assert (found & DELETED_BIT != 0).tolist() == [False, True, False]
    assert set(chunks_of(found).tolist()) == set(first.tolist())
    assert taken.numbers(found) == [10, None, 40]
    assert taken.table.rows_in(0, second).tolist() == []
    assert len(taken.table.rows_in(2, second)) == 3


def test_rows_in_memory_lie_over_everything(location: Location) -> None:
    taken = Taken(location, 2)
    batch = changed_batch(SCHEMA, {key(0, 2): (22,), key(0, 3): None, key(1, 9): (9,)})
    taken.table.lay_over(batch)
    found = taken.find(key(0, 1), key(0, 2), key(0, 3), key(0, 4), key(1, 9), key(2, 3))
    assert found == [10, 22, None, 40, 9, 3]
    assert taken.numbers(taken.table.rows(0)) == [10, 22, 40]
    assert taken.numbers(taken.table.rows(1)) == [9]
    superseded, beside = taken.table.changed(0)
    assert sorted(taken.numbers(superseded)) == [1, 2, 3]  # type: ignore[type-var]
    assert sorted(taken.numbers(beside)) == [10, 22, 40]  # type: ignore[type-var]
    taken.table.drop_overlay()
    assert taken.find(key(0, 2), key(0, 3), key(1, 9)) == [None, 3, None]
    assert taken.numbers(taken.table.rows(0)) == [10, 3, 40]


def test_a_key_group_that_was_dropped_is_empty(location: Location) -> None:
    taken = Taken(location, 2)
    heap = taken.table.heap_bytes
    taken.table.drop(np.asarray([0]))
    taken.table.drop_base(0)
    assert taken.find(key(0, 1), key(2, 1), key(2, 3)) == [None, 10, 3]
    assert taken.table.base_slice(0) == (0, 0, 0)
    assert taken.table.base_slice(2)[2] == 3
    assert taken.table.heap_bytes == heap - 16 * 24 - 3 * 4


def test_room_is_reserved_at_once(location: Location) -> None:
    taken = Taken(location, 0)
    taken.table.reserve(np.asarray([1, 2]), np.asarray([10, 11]))
    assert taken.table.index_bytes(location.every).tolist() == [0, 16 * 24, 32 * 24, 0]
