"""An overlay: what many small pieces changed, against a dict, and what it costs to have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import Fingerprint, Row, changed_batch, fingerprint, words
from tests.unit.state.test_owners import EVERY, Entries, Owned, related_owners

from millrace import clock
from millrace.log import open_store
from millrace.log.segment import DELETED, HI, LO, SYSTEM_FIELDS
from millrace.state import overlay as overlays
from millrace.state.addresses import DELETED_BIT
from millrace.state.mapped_pages import MappedPages
from millrace.state.overlay import FANOUT, Overlay

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
GROUPS = 8

Changed = dict[Fingerprint, Row | None]


def made() -> tuple[Overlay, MappedPages]:
    store = open_store(f"memory://overlay-{clock.fresh_id()}")
    table = pa.schema([*SYSTEM_FIELDS, *SCHEMA])
    pages = MappedPages(store, table, GROUPS, owned=False, by_column=False)
    return Overlay(pages, GROUPS, 61, owned=False), pages


def value(dice: clock.Dice) -> tuple[Any, ...] | None:
    number = dice.randrange(1000)
    return None if number < 200 else (number, str(number), [None, str(number)][: number % 3])


def stored(rows: pa.RecordBatch) -> Changed:
    """The rows of a batch by fingerprint; None for a deletion."""
    keys = list(zip(rows.column(HI).to_pylist(), rows.column(LO).to_pylist(), strict=True))
    assert keys == sorted(set(keys))
    values = zip(*(rows.column(name).to_pylist() for name in SCHEMA.names), strict=True)
    gone = rows.column(DELETED).to_pylist()
    return {k: None if d else v for k, v, d in zip(keys, values, gone, strict=True)}


def found(overlay: Overlay, pages: MappedPages) -> Changed:
    """What the index finds, by fingerprint."""
    state: Changed = {}
    for group in range(GROUPS):
        hi, lo, addresses = overlay.index.entries(group)
        rows = zip(*(c.to_pylist() for c in pages.gather(addresses, SCHEMA.names)), strict=True)
        gone = (addresses & DELETED_BIT != 0).tolist()
        keys = zip(hi.tolist(), lo.tolist(), strict=True)
        state |= {k: None if d else v for k, v, d in zip(keys, rows, gone, strict=True)}
    return state


@pytest.mark.parametrize("keys", [5, 200, 5000])
def test_the_newest_row_of_each_fingerprint_counts(keys: int) -> None:
    dice = clock.dice(f"an overlay of {keys} keys")
    overlay, pages = made()
    oracle: Changed = {}
    added = 0
    for number in range(3 * FANOUT**2 // 2):
        size = dice.choice([1, 2, 5, 40] if number % 50 else [FANOUT**2])
        changes = {fingerprint(dice.randrange(keys)): value(dice) for _ in range(size)}
        overlay.add(changed_batch(SCHEMA, changes))
        oracle |= changes
        added += len(changes)
        if number % 37 == 0:
            assert found(overlay, pages) == oracle
    assert found(overlay, pages) == oracle
    assert overlay.rows == added
    assert stored(overlay.drop()) == oracle
    assert pages.columns.chunks() == dict(pages.users()) == {}


def test_many_pieces_cost_no_more_than_few() -> None:
    """Work is counted: the pieces there are, and the rows that were written again."""
    overlay, pages = made()
    frames, size = FANOUT**3, 3
    most = 0
    for number in range(frames):
        keys = range(number * size, (number + 1) * size)
        overlay.add(changed_batch(SCHEMA, {fingerprint(key): (key, "", None) for key in keys}))
        most = max(most, overlay.pieces)
        assert overlay.pieces == len(pages.columns.chunks())
    levels = 4
    assert most <= levels * (FANOUT - 1)
    assert overlay.moved <= levels * frames * size
    assert overlay.drop().num_rows == frames * size


def test_keys_that_come_again_and_again_take_no_more_room() -> None:
    overlay, _ = made()
    changes: Changed = {fingerprint(key): (key, "", None) for key in range(50)}
    for _ in range(20 * FANOUT):
        overlay.add(changed_batch(SCHEMA, changes))
    rows = sum(piece.rows.num_rows for piece in overlay._pieces)
    assert rows <= 2 * FANOUT * len(changes)
    assert overlay.rows == 20 * FANOUT * len(changes)


def test_large_pieces_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "LARGE", 10)
    overlay, _ = made()
    for number in range(2 * FANOUT):
        keys = range(number * 10, (number + 1) * 10)
        overlay.add(changed_batch(SCHEMA, {fingerprint(key): (1, "", None) for key in keys}))
    assert (overlay.pieces, overlay.moved) == (2 * FANOUT, 0)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_an_owner_in_many_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "FANOUT", 3)
    dice = clock.dice(f"entries in pieces {seed}")
    owned = Owned(related_owners())
    every = list(range(len(owned.hi)))
    version: Entries = {}

    def some(count: int) -> dict[tuple[int, int], int | None]:
        chosen = ((0 if dice.random() < 0.5 else dice.choice(every)) for _ in range(count))
        return {
            (owner, dice.randrange(40 if owner == 0 else 4)): (
                None if dice.random() < 0.3 else dice.randrange(10**6)
            )
            for owner in chosen
        }

    def put(entries: Entries, changes: dict[tuple[int, int], int | None]) -> Entries:
        after = {owner: dict(mine) for owner, mine in entries.items()}
        for (owner, key), number in changes.items():
            mine = after.setdefault(owner, {})
            mine.pop(key, None) if number is None else mine.__setitem__(key, number)
        return {owner: mine for owner, mine in after.items() if mine}

    for size in (300, 40):
        changes = some(size)
        owned.step(1, changes)
        version = put(version, changes)
    replica = owned.follow(owned.replica())
    laid_over = version
    for number in range(40):
        changes = some(dice.choice([1, 2, 9]))
        replica.overlay(owned.changed(replica, changes))
        laid_over = put(laid_over, changes)
        if number % 3 == 0:
            assert owned.read(replica, every) == laid_over
    assert owned.read(replica, every) == laid_over
    rows = replica.read(EVERY)
    assert rows.num_rows == sum(map(len, laid_over.values()))
    replica.drop_overlay()
    assert owned.read(replica, every) == version


def test_what_is_laid_over_does_not_disturb_the_version() -> None:
    """The index of the version is the same array of slots before and after."""
    owned = Owned(related_owners())
    owned.step(1, {(owner, 1): owner for owner in range(30)})
    owned.step(1, {(owner, 1): -owner for owner in range(30)})
    replica = owned.follow(owned.replica())
    replica.touch(EVERY)
    taken, heap = replica.warm().tolist(), replica.heap_bytes
    for number in range(50):
        replica.overlay(owned.changed(replica, {(number % 30, 2): number}))
    assert replica.heap_bytes > heap
    replica.drop_overlay()
    assert (replica.warm().tolist(), replica.heap_bytes) == (taken, heap)
    hi = words([fingerprint(0)[0]])
    assert np.array_equal(replica.find(hi, hi), [0])
