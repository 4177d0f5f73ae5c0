"""Looking rows up in bases, and merging deltas into them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.unit.driving import words

from millrace.state.addresses import DELETED_BIT, address_of
from millrace.state.base import BaseTable, find, find_in_bases, merge_addresses
from millrace.state.index import NO_TABLES, DeltaIndex

GROUPS = 4
SHIFT = np.uint64(62)
CHUNK, FIRST = 7, 100

Key = tuple[int, int]


class Bases:
    """Bases of some key groups, whose arrays are kept alive."""

    def __init__(self, keys: list[Key], group: int = 1) -> None:
        self.table = BaseTable(GROUPS)
        self.index = DeltaIndex(GROUPS)
        self.columns = [words(column) for column in zip(*sorted(keys), strict=True)]
        self.table.set(group, CHUNK, FIRST, *self.columns)

    def find(self, keys: list[Key]) -> list[int]:
        hi, lo = (words(column) for column in zip(*keys, strict=True))
        return find(hi, lo, SHIFT, NO_TABLES, self.index.tables, self.table.bases).tolist()

    def find_in_bases(self, keys: list[Key]) -> list[int]:
        hi, lo = (words(column) for column in zip(*keys, strict=True))
        return find_in_bases(hi, lo, SHIFT, self.table.bases).tolist()


def address(row: int) -> int:
    return int(address_of(CHUNK, FIRST + row))


def spread(rows: int, seed: int = 1) -> list[Key]:
    chance = random.Random(seed)
    return sorted({(1 << 62 | chance.getrandbits(62), chance.getrandbits(64)) for _ in range(rows)})


@pytest.mark.parametrize(
    ("rows", "entries"), [(1, 3), (8, 3), (15, 3), (16, 5), (31, 5), (32, 9), (64, 17)]
)
def test_a_directory_has_an_entry_for_four_to_eight_rows(rows: int, entries: int) -> None:
    table = Bases(spread(rows)).table
    assert table.bytes == 4 * entries
    assert table.slice(1) == (CHUNK, FIRST, rows)
    assert table.slice(0) == (0, 0, 0)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 17, 500])
def test_each_row_is_found_and_its_neighbours_are_not(rows: int) -> None:
    keys = spread(rows)
    bases = Bases(keys)
    expected = [address(row) for row in range(rows)]
    assert bases.find(keys) == bases.find_in_bases(keys) == expected
    for step in (-1, 1):
        assert bases.find([(hi, lo + step) for hi, lo in keys]) == [0] * rows
        assert bases.find([(hi + step, lo) for hi, lo in keys]) == [0] * rows


@pytest.mark.parametrize("rows", [15, 16, 17, 18, 33, 300])
def test_rows_that_share_a_bucket_are_found_by_halving(rows: int) -> None:
    keys = [(1 << 62, 10 * n) for n in range(rows)] + [((1 << 62) + 1, 10 * n) for n in range(rows)]
    bases = Bases(keys)
    assert bases.find(keys) == [address(row) for row in range(2 * rows)]
    assert bases.find([(hi, lo + 5) for hi, lo in keys]) == [0] * (2 * rows)
    assert bases.find([((1 << 62) + 2, 0), (1 << 62, 10 * rows)]) == [0, 0]


def test_the_ends_of_a_key_group_are_found() -> None:
    keys = [(1 << 62, 0), (1 << 62, 2**64 - 1), ((2 << 62) - 1, 0), ((2 << 62) - 1, 2**64 - 1)]
    bases = Bases(keys)
    assert bases.find(keys) == [address(row) for row in range(4)]
    assert bases.find([(0, 0), (2 << 62, 0), (2**64 - 1, 2**64 - 1)]) == [0, 0, 0]


def test_the_delta_is_looked_at_first() -> None:
    keys = spread(20)
    bases = Bases(keys)
    bases.index.reserve(np.asarray([1]), np.asarray([3]))
    changed, deleted, new = keys[3], keys[4], (1 << 62, 1)
    hi, lo = (words(column) for column in zip(changed, deleted, new, strict=True))
    bases.index.upsert(hi, lo, words([55, 66 | int(DELETED_BIT), 77]), int(SHIFT))
    assert bases.find([changed, deleted, new, keys[5]]) == [55, 0, 77, address(5)]
    assert bases.find_in_bases([changed, deleted, new, keys[5]]) == [
        address(3),
        address(4),
        0,
        address(5),
    ]


def test_a_base_that_was_dropped_has_no_rows() -> None:
    keys = spread(20)
    bases = Bases(keys)
    bases.table.drop(1)
    assert bases.find(keys) == [0] * 20
    assert bases.table.slice(1) == (0, 0, 0)
    assert bases.table.bytes == 0


def merged(base: list[Key], delta: list[tuple[int, int, int]]) -> list[int]:
    def column(rows: list[tuple[int, ...]], number: int) -> np.ndarray:
        return words(row[number] for row in rows)

    return merge_addresses(
        column(base, 0),  # type: ignore[arg-type]
        column(base, 1),  # type: ignore[arg-type]
        np.uint64(1000),
        column(delta, 0),  # type: ignore[arg-type]
        column(delta, 1),  # type: ignore[arg-type]
        column(delta, 2),  # type: ignore[arg-type]
    ).tolist()


DELETED = int(DELETED_BIT)


@pytest.mark.parametrize(
    ("base", "delta", "expected"),
    [
        ([], [], []),
        ([(1, 1), (2, 1)], [], [1000, 1001]),
        ([], [(1, 1, 5), (2, 1, 6)], [5, 6]),
        ([(1, 1), (1, 3), (2, 2)], [(1, 2, 5)], [1000, 5, 1001, 1002]),
        ([(1, 1), (1, 3), (2, 2)], [(1, 3, 5)], [1000, 5, 1002]),
        ([(1, 1), (1, 3), (2, 2)], [(1, 3, 5 | DELETED)], [1000, 1002]),
        ([(1, 1)], [(1, 0, 5 | DELETED), (1, 2, 6)], [1000, 6]),
        ([(1, 5), (2, 0)], [(1, 6, 5), (2, 0, 6), (2, 1, 7)], [1000, 5, 6, 7]),
        ([(2, 1)], [(1, 9, 5), (3, 0, 6)], [5, 1000, 6]),
    ],
)
def test_merging_keeps_the_order_and_the_delta_wins(
    base: list[Key], delta: list[tuple[int, int, int]], expected: list[int]
) -> None:
    assert merged(base, delta) == expected
