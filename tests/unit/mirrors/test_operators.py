"""Mirrors of every kind of state: after each epoch they hold what a reader of it sees."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.stress import few
from tests.unit.mirrors.places import Place, decoded

import millrace as mr
from millrace.errors import UnsupportedMirrorError
from millrace.mirrors.contract import CHANGES, COMPARISON, COPY
from millrace.mirrors.mirror import Mirror
from millrace.reading.json_values import rows_to_json
from millrace.testing.epochs import START

MINUTE = dt.timedelta(minutes=1)


class Notes(mr.Processor):
    """Keeps what it is told to, and forgets a key on request."""

    last = mr.Value("double")
    recent = mr.List("double")
    marks = mr.Map("string", "long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            if row.what == "set":
                self.last.set(row.value)
            elif row.what == "append":
                self.recent.append(row.value)
            elif row.what == "put":
                self.marks[f"m{row.value:g}"] = 1
            else:
                self.last.clear()
                self.recent.clear()
                self.marks.clear()
        yield from ()


class Fading(mr.Processor):
    """A value that is there for ten minutes."""

    last = mr.Value("double", ttl=10 * MINUTE)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.last.set(row.value)
        yield from ()


def notes() -> Any:
    return mr.testing.Harness(
        Notes(), key="id", schema="id long, what string, value double", output="id long"
    )


def shown(mirror: Mirror, place: Place) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the mirror holds; a RocksDB is read through it, because only one may open it."""
    if place.kind == "rocksdb":
        return decoded(mirror._target.rows())  # type: ignore[attr-defined]
    return place.rows("tested")


def expected(location: str, place: Place, keys: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What a reader sees, with the bounds of windows as columns."""
    with mr.open(location) as reader:
        rows = reader.to_arrow()
        names = rows.schema.names
    found = {}
    for batch in rows.to_batches():
        plain = batch.to_pylist(maps_as_pydicts="strict")
        for one in rows_to_json(batch) if place.kind != "postgres" else plain:
            row = {}
            for name in names:
                if name in ("window", "session_window"):
                    row |= {f"{name}_{part}": value for part, value in one[name].items()}
                else:
                    row[name] = one[name]
            if "window_length" in row:
                row = {"window_length": row.pop("window_length"), **row}
                row = {"id": row.pop("id"), **row}
            key = tuple(list(row.values())[:keys])
            found[key] = dict(list(row.items())[keys:])
    return found


def told(*rows: tuple[int, str, float]) -> list[dict[str, Any]]:
    return [{"id": i, "what": what, "value": value} for i, what, value in rows]


def test_keys_come_and_go_and_collections_change(place: Place) -> None:
    harness = notes()
    harness.send(told((1, "set", 1.0), (2, "append", 2.0), (3, "put", 3.0)))
    steps = [
        told((1, "append", 5.0), (2, "append", 6.0)),
        told((3, "put", 9.0)),
        told((1, "forget", 0.0), (4, "set", 4.0)),
        told((1, "put", 7.0), (2, "forget", 0.0)),
        [],
    ]
    with mr.mirror(harness.location, place.url) as mirror:
        mirror.catch_up()
        assert len(shown(mirror, place)) == 3
        for step in steps:
            harness.send(step)
            mirror.catch_up()
            assert mirror.applied is not None
            assert mirror.applied.kind == CHANGES
            assert shown(mirror, place) == expected(harness.location, place, 1)
        assert set(shown(mirror, place)) == {(1,), (3,), (4,)}


def test_values_that_expire_leave_a_mirror(place: Place) -> None:
    harness = mr.testing.Harness(
        Fading(), key="id", schema="id long, value double", output="id long"
    )
    with mr.mirror(harness.location, place.url, operator="tested") as mirror:
        for step in ([1, 2], [2, 3], [], [4], []):
            harness.send([{"id": i, "value": 1.0} for i in step])
            mirror.catch_up()
            assert shown(mirror, place) == expected(harness.location, place, 1)
            harness.advance_time(4 * MINUTE)
        mirror.catch_up()
        assert mirror.applied is not None
        assert mirror.applied.kind == COMPARISON
        assert set(shown(mirror, place)) == {(4,)}


def timed(kind: str) -> tuple[Any, int]:
    """A harness, and how many columns its key has."""
    given: dict[str, Any] = {
        "key": "id",
        "schema": "id long, at timestamp, value double",
        "event_time": "at",
        "aggregates": {"n": mr.count(), "total": mr.sum("value")},
    }
    if kind == "sessions":
        return mr.testing.SessionHarness(gap="3 minutes", **given), 2
    if kind == "tiles":
        sizes = ["2 minutes", "6 minutes"]
        return mr.testing.WindowHarness(size=sizes, slide="1 minute", emit="none", **given), 2
    slide = None if kind == "tumbling" else "1 minute"
    return mr.testing.WindowHarness(size="4 minutes", slide=slide, **given), 2


@pytest.mark.parametrize("kind", few(["tumbling", "hopping", "sessions", "tiles"], "tumbling"))
def test_windows_leave_a_mirror_when_they_are_over(place: Place, kind: str) -> None:
    harness, keys = timed(kind)
    sizes: list[int] = []
    with mr.mirror(harness.location, place.url, operator="tested") as mirror:
        for minute in range(12):
            harness.send(
                {"id": i, "at": START + (minute - i % 2) * MINUTE, "value": float(minute)}
                for i in range(minute % 5)
            )
            harness.advance_watermark(START + (minute - 2) * MINUTE)
            mirror.catch_up()
            found = shown(mirror, place)
            assert found == expected(harness.location, place, keys)
            sizes.append(len(found))
            assert mirror.applied is not None
            assert mirror.applied.kind == (COPY if minute == 0 else COMPARISON)
        assert sizes[-1] > 0
        harness.advance_watermark(START + 60 * MINUTE)
        mirror.catch_up()
        assert (mirror.applied.upserts, mirror.applied.deletes) == (0, sizes[-1])
        assert shown(mirror, place) == expected(harness.location, place, keys) == {}


def test_rows_that_wait_for_partners_are_not_mirrored(place: Place) -> None:
    harness = mr.testing.JoinHarness(
        left="id long, at timestamp, a double",
        right="id long, seen timestamp, b double",
        on="id",
        left_time="at",
        right_time="seen",
        within=("0 seconds", "1 minute"),
    )
    harness.send(left=[{"id": 1, "at": START, "a": 1.0}])
    with (
        mr.mirror(harness.location, place.url) as mirror,
        pytest.raises(UnsupportedMirrorError, match=r"wait for partners.*one row per key"),
    ):
        mirror.catch_up()
