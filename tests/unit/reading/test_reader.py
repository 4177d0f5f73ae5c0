"""Readers: one epoch as tables, only what is asked for, look-ups and changes."""

from __future__ import annotations

import datetime as dt
import errno
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint
from tests.unit.reading.streams import START_MS, Counted, Oracle, as_oracle, draw

import millrace as mr
from millrace.errors import (
    NewerFormatError,
    StoreError,
    UnknownColumnError,
    UnknownEpochError,
    UnknownOperatorError,
    UsageError,
)
from millrace.log.manifest import Manifest
from millrace.log.trail import Trail


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Twelve epochs on one to four shards."""
    rng = random.Random(1)
    stream = Counted(str(tmp_path_factory.mktemp("counted") / "location"))
    for epoch in range(12):
        stream.shards = 1 + epoch % 4
        stream.send(draw(rng, 150))
    return stream


@pytest.mark.parametrize("epoch", [1, 2, 5, 11, 12])
def test_an_epoch_is_what_the_rows_until_then_give(counted: Counted, epoch: int) -> None:
    reader = mr.open(counted.url, epoch=epoch)
    assert as_oracle(reader.to_arrow()) == counted.history[epoch]


def test_parts_of_the_key_groups_make_up_the_whole(counted: Counted) -> None:
    reader = mr.open(counted.url)
    parts = [reader.to_arrow("totals", key_groups=[g]) for g in range(16)]
    assert sum(part.num_rows for part in parts) == len(counted.history[12])
    assert as_oracle(pa.concat_tables(parts)) == counted.history[12]
    some = reader.to_arrow(key_groups="3-5,9", columns=["n", "room"])
    assert some.column_names == ["n", "room"]
    assert some.num_rows == sum(parts[g].num_rows for g in (3, 4, 5, 9))


def test_look_ups(counted: Counted) -> None:
    reader = mr.open(counted.url)
    oracle = counted.history[12]
    keys = [*random.Random(2).sample(sorted(oracle, key=str), 50), ("no such room", 1), (None, -1)]
    found = reader.get(keys)
    assert found.column_names == ["room", "device", "n", "total", "average", "_found"]
    for key, row in zip(keys, found.to_pylist(), strict=True):
        values = (row["n"], row["total"], row["average"])
        assert (row["room"], row["device"]) == key
        assert row["_found"] == (key in oracle)
        assert values == oracle.get(key, (None, None, None))
    as_dicts = reader.get([{"device": d, "room": r} for r, d in keys], columns=["n"])
    assert as_dicts.column("n") == found.column("n")
    as_table = reader.get(found.select(["device", "room"]))
    assert as_table.equals(found)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["hall"], "(room string, device bigint)"),
        ([("hall", "x")], "device"),
        ([{"room": "hall"}], "(room string, device bigint)"),
        (pa.table({"room": ["hall"]}), "no column 'device'"),
    ],
)
def test_keys_that_are_none(counted: Counted, keys: Any, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        mr.open(counted.url).get(keys)
    assert named in str(caught.value)


def applied(before: Oracle, changes: pa.Table) -> Oracle:
    after = dict(before)
    for row in changes.to_pylist():
        assert row["_change"] == "upsert"
        after[row["room"], row["device"]] = (row["n"], row["total"], row["average"])
    return after


@pytest.mark.parametrize(("since", "until"), [(0, 12), (0, 1), (4, 5), (3, 11), (12, 12)])
def test_a_state_and_its_changes_give_the_later_state(
    counted: Counted, since: int, until: int
) -> None:
    reader = mr.open(counted.url)
    changes = reader.changes(since, until)
    before = counted.history.get(since, {})
    assert applied(before, changes) == counted.history[until]
    epochs = changes.column("_epoch").to_pylist()
    assert epochs == sorted(epochs)
    assert all(since < epoch <= until for epoch in epochs)
    # One row per key, and none for a key that no epoch touched.
    keys = list(zip(changes["room"].to_pylist(), changes["device"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    for key in before.keys() - set(keys):
        assert counted.history[until][key] == before[key]
    parts = [reader.changes(since, until, key_groups=[g]) for g in range(16)]
    assert sum(part.num_rows for part in parts) == changes.num_rows


def test_every_change(counted: Counted) -> None:
    reader = mr.open(counted.url)
    every = reader.changes(2, every=True)
    state = counted.history[2]
    for epoch in range(3, 13):
        part = every.filter(pa.compute.equal(every["_epoch"], epoch))
        state = applied(state, part)
        assert state == counted.history[epoch]


def test_differences(counted: Counted) -> None:
    before, after = counted.history[4], counted.history[9]
    rows = mr.open(counted.url, epoch=9).diff(4).to_pylist()
    found = {(r["room"], r["device"]): r for r in rows}
    assert len(found) == len(rows)
    assert found.keys() == {k for k in after if before.get(k) != after[k]}
    for key, row in found.items():
        assert row["_change"] == ("changed" if key in before else "added")
        assert tuple(row["after"].values()) == after[key]
        assert (tuple(row["before"].values()) if row["before"] else None) == before.get(key)
    backwards = mr.open(counted.url, epoch=4).diff(9)
    assert set(backwards.column("_change").to_pylist()) == {"removed", "changed"}
    assert mr.open(counted.url, epoch=4).diff(4).num_rows == 0


def test_a_time_names_the_epoch_that_was_the_last(counted: Counted) -> None:
    at = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC)
    second = dt.timedelta(seconds=1)
    assert mr.open(counted.url, as_of=at).epoch == 1
    assert mr.open(counted.url, as_of=at + 3.5 * second).epoch == 4
    assert mr.open(counted.url, as_of=(at + 4 * second).isoformat()).epoch == 5
    assert mr.open(counted.url, as_of=(at + 4 * second).replace(tzinfo=None)).epoch == 5
    assert mr.open(counted.url, as_of=at + 1000 * second).epoch == 12
    assert mr.open(counted.url).committed_at == at + 11 * second
    with pytest.raises(UnknownEpochError, match=r"epoch 1, was committed at 2023-11-14T"):
        mr.open(counted.url, as_of=at - second)
    with pytest.raises(UsageError, match="not a time"):
        mr.open(counted.url, as_of="last Tuesday")
    with pytest.raises(UsageError, match="one of them"):
        mr.open(counted.url, epoch=3, as_of=at)


def test_what_is_not_there(counted: Counted, tmp_path: Path) -> None:
    reader = mr.open(counted.url)
    with pytest.raises(UnknownOperatorError, match=r"no operator 'other'.*has 'totals' at epoch"):
        reader.to_arrow("other")
    with pytest.raises(UnknownOperatorError, match="no collection 'm'; it has none"):
        reader.to_arrow(state="m")
    with pytest.raises(UnknownColumnError, match="no column 'x'; it has 'room', 'device'"):
        reader.to_arrow(columns=["x"])
    with pytest.raises(UsageError, match="key groups 0 to 15"):
        reader.to_arrow(key_groups="14-16")
    with pytest.raises(UsageError, match="'0-15,31'"):
        reader.to_arrow(key_groups="first")
    for epoch in (13, 999):
        with pytest.raises(UnknownEpochError, match="epochs 1 to 12 are retained"):
            mr.open(counted.url, epoch=epoch)
    for odd in (0, -1, "3", 1.5):
        with pytest.raises(UnknownEpochError, match="numbered from 1"):
            mr.open(counted.url, epoch=odd)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a number from 0 to 12"):
        reader.changes(13)
    with pytest.raises(UsageError, match="this reader is at epoch 12"):
        reader.changes(1, 13)


def test_a_reader_stays_where_it_is_until_told(tmp_path: Path) -> None:
    rng = random.Random(3)
    stream = Counted(str(tmp_path / "location"))
    stream.send(draw(rng, 50))
    reader = mr.open(stream.url)
    other = mr.open(stream.url)
    for _ in range(40):
        stream.send(draw(rng, 50))
    assert as_oracle(reader.to_arrow()) == stream.history[1]
    assert reader.refresh() == 41
    assert as_oracle(reader.to_arrow()) == stream.history[41]
    assert reader.refresh() == 41
    assert other.epoch == 1


def test_a_location_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    stream = Counted(str(tmp_path / "location"))
    with pytest.raises(UnknownEpochError, match="no committed epoch yet"):
        mr.open(stream.url)
    stream.send(draw(random.Random(4), 20), commit=False)
    with pytest.raises(UnknownEpochError, match="no committed epoch yet"):
        mr.open(stream.url)
    stream.restart()
    stream.send(draw(random.Random(5), 20))
    stream.send(draw(random.Random(6), 20), commit=False)
    assert as_oracle(mr.open(stream.url).to_arrow()) == stream.history[1]


def test_an_operator_of_a_later_millrace(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "location"), pa.schema([("n", pa.int64())]))
    location.step({fingerprint(1): (1,)})
    reader = mr.open(str(tmp_path / "location"))
    assert reader.operators == ["table"]
    with pytest.raises(NewerFormatError, match="which this Millrace does not know"):
        reader.to_arrow()


class Basket(mr.Processor):
    last = mr.Value("string")
    items = mr.List("string")
    prices = mr.Map("string", "long")
    seen = mr.Set("long")
    reminder = mr.EventTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            if row.item is None:
                self.items.clear()
                self.prices.clear()
                self.seen.clear()
                self.last.clear()
                for label in self.reminder.labels():
                    self.reminder.cancel(label)
                continue
            self.last.set(row.item)
            self.items.append(row.item)
            self.prices[row.item] = row.price
            self.seen.add(row.price)
            self.reminder.set(dt.datetime(2024, 1, 2, tzinfo=dt.UTC), row.item)
        return iter(())

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Any:
        return iter(())


def test_lists_maps_and_sets_whole_and_as_rows() -> None:
    harness = mr.testing.Harness(
        Basket(), key="key", schema="key string, item string, price long", output="x long"
    )
    harness.send([{"key": "a", "item": i, "price": p} for i, p in [("nut", 3), ("fig", 4)]])
    harness.send([{"key": "b", "item": "nut", "price": 9}, {"key": "a", "item": "nut", "price": 5}])
    reader = mr.open(harness.location)
    assert reader.tables() == ["items", "prices", "seen", "timers"]
    rows = {row["key"]: row for row in reader.to_arrow().to_pylist()}
    assert rows["a"]["last"] == "nut"
    assert rows["a"]["items"] == ["nut", "fig", "nut"]
    assert dict(rows["a"]["prices"]) == {"nut": 5, "fig": 4}
    assert sorted(rows["a"]["seen"]) == [3, 4, 5]
    assert rows["b"]["items"] == ["nut"]
    items = reader.to_arrow(state="items").sort_by(
        [("key", "ascending"), ("position", "ascending")]
    )
    assert items.column_names == ["key", "position", "value"]
    assert [(r["key"], r["value"]) for r in items.to_pylist()] == [
        ("a", "nut"),
        ("a", "fig"),
        ("a", "nut"),
        ("b", "nut"),
    ]
    # The map's own key has another name than the operator's.
    prices = reader.to_arrow(state="prices")
    assert prices.column_names == ["key", "prices_key", "value"]
    assert sorted(tuple(r.values()) for r in prices.to_pylist()) == [
        ("a", "fig", 4),
        ("a", "nut", 5),
        ("b", "nut", 9),
    ]
    timers = reader.to_arrow(state="timers")
    assert timers.column_names == ["key", "clock", "timer", "label", "fires_at"]
    day = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    assert sorted(tuple(r.values()) for r in timers.to_pylist()) == [
        ("a", "event", "reminder", "fig", day),
        ("a", "event", "reminder", "nut", day),
        ("b", "event", "reminder", "nut", day),
    ]
    assert reader.get(["a", "c"]).column("items").to_pylist() == [["nut", "fig", "nut"], None]


def test_changes_of_entries_and_deleted_keys() -> None:
    harness = mr.testing.Harness(
        Basket(), key="k", schema="k string, item string, price long", output="x long"
    )
    harness.send([{"k": k, "item": "nut", "price": 3} for k in "ab"])
    harness.send([{"k": "a", "item": None}, {"k": "b", "item": "fig", "price": 1}])
    reader = mr.open(harness.location)
    rows = {r["k"]: r for r in reader.changes(1).to_pylist()}
    assert (rows["a"]["_change"], rows["a"]["last"], rows["a"]["items"]) == ("delete", None, None)
    assert (rows["b"]["_change"], rows["b"]["items"]) == ("upsert", ["nut", "fig"])
    entries = reader.changes(1, state="prices").to_pylist()
    assert sorted((r["k"], r["key"], r["_change"]) for r in entries) == [
        ("a", "nut", "delete"),
        ("b", "fig", "upsert"),
    ]
    (gone,) = [r for r in reader.diff(1).to_pylist() if r["_change"] == "removed"]
    assert gone["k"] == "a"
    assert gone["before"]["last"] == "nut"
    assert gone["after"] is None


class Fading(mr.Processor):
    value = mr.Value("long", ttl=mr.seconds(10))
    lasting = mr.Value("long")
    notes = mr.List("long", ttl=mr.seconds(10))

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.value.set(row.v)
            self.notes.append(row.v)
            if row.k == "kept":
                self.lasting.set(row.v)
        return iter(())


def test_what_has_expired_is_not_shown() -> None:
    harness = mr.testing.Harness(Fading(), key="k", schema="k string, v long", output="x long")
    harness.send([{"k": k, "v": 1} for k in ("kept", "gone")])
    assert len(mr.open(harness.location).to_arrow()) == 2
    harness.advance_time(dt.timedelta(seconds=11))
    reader = mr.open(harness.location)
    (row,) = reader.to_arrow().to_pylist()
    assert row == {"k": "kept", "value": None, "lasting": 1, "notes": []}
    assert reader.to_arrow(state="notes").num_rows == 0
    assert reader.get(["gone", "kept"]).column("_found").to_pylist() == [False, True]
    # As of the epoch before, nothing had.
    assert len(mr.open(harness.location, epoch=1).to_arrow(state="notes")) == 2


def test_what_had_expired_stays_so_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = mr.testing.Harness(Fading(), key="k", schema="k string, v long", output="x long")
    harness.send([{"k": "gone", "v": 1}])
    harness.advance_time(dt.timedelta(seconds=11))
    assert len(mr.open(harness.location).to_arrow()) == 0
    head = Trail.advance

    def set_back(self: Trail, manifest: Manifest, checksum: str) -> None:
        head(self, replace(manifest, time_ms=manifest.time_ms - 60_000), checksum)

    # The operators' time is in the manifest as well, and does not go back with the clock.
    monkeypatch.setattr(Trail, "advance", set_back)
    reader = mr.open(harness.location)
    assert reader.epoch == 2
    assert len(reader.to_arrow()) == 0
    assert reader.get(["gone"]).column("_found").to_pylist() == [False]


def test_mapped_segments_hold_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Counted(str(tmp_path / "location"))
    rng = random.Random(17)
    for _ in range(5):
        stream.send(draw(rng, 50))
    reader = mr.open(stream.url)
    assert as_oracle(reader.to_arrow()) == stream.history[5]
    descriptors = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    opened = [os.readlink(path) for path in descriptors if os.path.lexists(path)]
    assert not [path for path in opened if path.startswith(stream.url)]
    segments = [e.path for e in stream.trail.segments()]
    maps = Path("/proc/self/maps").read_text()
    assert all(path in maps for path in segments)

    def at_the_limit(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    other = mr.open(stream.url)
    monkeypatch.setattr("millrace.log.segment.reading.os.open", at_the_limit)
    with pytest.raises(StoreError, match=r"Too many open files.*ulimit -n"):
        other.to_arrow()
