"""The delta index, against a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.unit.driving import words

from millrace.state.addresses import DELETED_BIT
from millrace.state.base import BASE, find
from millrace.state.index import MIN_SLOTS, NO_TABLES, DeltaIndex

GROUPS = 4
SHIFT = 62
SLOT_BYTES = 24

Entry = tuple[int, int, int]


def reserve(index: DeltaIndex, group: int, rows: int) -> None:
    index.reserve(np.asarray([group]), np.asarray([rows]))


def put(index: DeltaIndex, entries: list[Entry]) -> None:
    hi, lo, address = (words(column) for column in zip(*entries, strict=True))
    index.upsert(hi, lo, address, SHIFT)


def entries(index: DeltaIndex, group: int) -> list[Entry]:
    return sorted(zip(*(column.tolist() for column in index.entries(group)), strict=True))


def found(index: DeltaIndex, keys: list[tuple[int, int]]) -> list[int]:
    hi, lo = (words(column) for column in zip(*keys, strict=True))
    return find(hi, lo, np.uint64(SHIFT), NO_TABLES, index.tables, np.zeros(GROUPS, BASE)).tolist()


def test_an_index_begins_without_tables() -> None:
    index = DeltaIndex(GROUPS)
    assert index.bytes == 0
    assert [index.group_bytes(group) for group in range(GROUPS)] == [0] * GROUPS
    assert entries(index, 3) == []
    assert found(index, [(0, 0), (1 << 63, 5)]) == [0, 0]


@pytest.mark.parametrize(
    ("rows", "slots"), [(1, 16), (10, 16), (11, 32), (20, 32), (21, 64), (40, 64), (41, 128)]
)
def test_at_most_five_of_eight_slots_are_used(rows: int, slots: int) -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 2, rows)
    assert index.group_bytes(2) == index.bytes == slots * SLOT_BYTES
    assert entries(index, 2) == []


def test_room_is_reserved_for_rows_beside_those_that_are_there() -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 0, 10)
    put(index, [(n, n, n + 1) for n in range(10)])
    reserve(index, 0, 0)
    assert index.group_bytes(0) == MIN_SLOTS * SLOT_BYTES
    reserve(index, 0, 1)
    assert index.group_bytes(0) == 2 * MIN_SLOTS * SLOT_BYTES
    assert entries(index, 0) == [(n, n, n + 1) for n in range(10)]
    reserve(index, 0, 10)
    assert index.group_bytes(0) == 2 * MIN_SLOTS * SLOT_BYTES


def test_only_the_key_groups_that_are_short_grow() -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 1, 20)
    index.reserve(np.asarray([0, 1, 3]), np.asarray([5, 20, 30]))
    slots = [index.group_bytes(group) // SLOT_BYTES for group in range(GROUPS)]
    assert slots == [16, 32, 0, 64]
    assert index.bytes == sum(slots) * SLOT_BYTES


def test_the_newest_address_of_a_fingerprint_counts() -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 0, 3)
    put(index, [(1, 2, 10), (1, 3, 11), (2, 2, 12)])
    put(index, [(1, 3, 21)])
    assert entries(index, 0) == [(1, 2, 10), (1, 3, 21), (2, 2, 12)]
    assert found(index, [(1, 2), (1, 3), (2, 2), (2, 3), (3, 2)]) == [10, 21, 12, 0, 0]


def test_a_deleted_row_is_kept_and_not_found() -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 0, 2)
    deleted = 10 | int(DELETED_BIT)
    put(index, [(1, 2, deleted), (1, 3, 11)])
    assert entries(index, 0) == [(1, 2, deleted), (1, 3, 11)]
    assert found(index, [(1, 2), (1, 3)]) == [0, 11]


def test_fingerprints_that_fall_into_one_slot_wrap_around_the_end() -> None:
    index = DeltaIndex(GROUPS)
    reserve(index, 0, 10)
    full = [(n, 15 + 16 * (n % 2), 100 + n) for n in range(10)]
    put(index, full)
    assert found(index, [(hi, lo) for hi, lo, _ in full]) == [address for _, _, address in full]
    assert found(index, [(10, 15), (0, 31), (1, 15)]) == [0, 0, 0]
    assert entries(index, 0) == sorted(full)


def test_rows_that_follow_each_other_get_addresses_that_do() -> None:
    index = DeltaIndex(GROUPS)
    for group in (0, 3):
        reserve(index, group, 3)
    hi, lo = words([1, 2, 3 << 62]), words([9, 9, 9])
    index.upsert_rows(hi, lo, np.uint64(70), SHIFT)
    assert entries(index, 0) == [(1, 9, 70), (2, 9, 71)]
    assert entries(index, 3) == [(3 << 62, 9, 72)]


def test_dropping_a_key_group_leaves_the_others() -> None:
    index = DeltaIndex(GROUPS)
    for group in (0, 1):
        reserve(index, group, 1)
    put(index, [(1, 1, 5), (1 << 62, 1, 6)])
    index.drop(0)
    assert entries(index, 0) == []
    assert index.group_bytes(0) == 0
    assert found(index, [(1, 1), (1 << 62, 1)]) == [0, 6]
    reserve(index, 0, 1)
    put(index, [(2, 2, 7)])
    assert entries(index, 0) == [(2, 2, 7)]


def test_many_random_rows_are_those_of_a_dict() -> None:
    chance = random.Random(3)
    index = DeltaIndex(GROUPS)
    expected: dict[tuple[int, int], int] = {}
    for step in range(30):
        batch = {
            (chance.randrange(GROUPS) << 62 | chance.randrange(20), chance.randrange(20)): 1 + step
            for _ in range(25)
        }
        for group in range(GROUPS):
            reserve(index, group, sum(hi >> 62 == group for hi, _ in batch))
        put(index, [(hi, lo, address) for (hi, lo), address in batch.items()])
        expected |= batch
    for group in range(GROUPS):
        mine = [(*key, address) for key, address in expected.items() if key[0] >> 62 == group]
        assert entries(index, group) == sorted(mine)
    assert found(index, list(expected)) == list(expected.values())
