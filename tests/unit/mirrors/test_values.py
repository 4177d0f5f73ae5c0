"""Every type of column in every kind of store, and the names and values that a store refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.mirrors.places import Place, PostgresPlace, RedisPlace

from millrace.errors import MirrorHistoryError, MirrorTargetError, UnsupportedMirrorError
from millrace.ids import Epoch, OperatorName
from millrace.mirrors.contract import CHANGES, COPY, Mark, MirrorStep
from millrace.mirrors.encoding import key_of, keys_of
from millrace.mirrors.targets import open_target

UTC = dt.UTC
MOMENT = dt.datetime(2026, 3, 1, 12, 30, 0, 123456)

# Name, Arrow type, value, as JSON, as PostgreSQL's client has it if that is not the value.
VALUES: list[tuple[str, pa.DataType, Any, Any, Any]] = [
    ("flag", pa.bool_(), True, True, True),
    ("tiny", pa.int8(), -128, -128, -128),
    ("small", pa.int16(), 32767, 32767, 32767),
    ("int", pa.int32(), -(2**31), -(2**31), -(2**31)),
    ("long", pa.int64(), 2**63 - 1, 2**63 - 1, 2**63 - 1),
    ("single", pa.float32(), 0.5, 0.5, 0.5),
    ("double", pa.float64(), 0.1, 0.1, 0.1),
    ("infinite", pa.float64(), -math.inf, "-Infinity", -math.inf),
    (
        "exact",
        pa.decimal128(20, 2),
        decimal.Decimal("123456789012345678.90"),
        "123456789012345678.90",
        decimal.Decimal("123456789012345678.90"),
    ),
    ("text", pa.string(), 'tab\t "quoted" Küche \\N', 'tab\t "quoted" Küche \\N', None),
    ("bytes", pa.binary(), b"\x00\xff", "AP8=", b"\x00\xff"),
    ("day", pa.date32(), dt.date(1969, 7, 20), "1969-07-20", dt.date(1969, 7, 20)),
    (
        "moment",
        pa.timestamp("us", "UTC"),
        MOMENT.replace(tzinfo=UTC),
        "2026-03-01T12:30:00.123456Z",
        MOMENT.replace(tzinfo=UTC),
    ),
    ("local", pa.timestamp("us"), MOMENT, "2026-03-01T12:30:00.123456", MOMENT),
    (
        "span",
        pa.duration("us"),
        dt.timedelta(days=-1, microseconds=1),
        -86_399_999_999,
        dt.timedelta(days=-1, microseconds=1),
    ),
    ("list", pa.list_(pa.int64()), [1, None, 3], [1, None, 3], [1, None, 3]),
    ("map", pa.map_(pa.string(), pa.float64()), [("a", 1.5)], {"a": 1.5}, {"a": 1.5}),
    (
        "nested",
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.date32()))]),
        {"x": 1, "y": [dt.date(2026, 1, 2)]},
        {"x": 1, "y": ["2026-01-02"]},
        {"x": 1, "y": ["2026-01-02"]},
    ),
]
KEYS = ("id", "part")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.string()), *((name, kind) for name, kind, *_ in VALUES)]
)


def batch(*keys: tuple[int | None, str | None], empty: bool = False) -> pa.RecordBatch:
    rows = [
        {"id": i, "part": part, **{name: None if empty else v for name, _, v, *_ in VALUES}}
        for i, part in keys
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def mark(epoch: int, schema: pa.Schema = SCHEMA) -> Mark:
    columns = tuple((field.name, str(field.type)) for field in schema)
    return Mark("q", OperatorName("totals"), Epoch(epoch), f"sum{epoch}", 1000, columns, 2)


def step(
    kind: str, epoch: int, upserts: list[pa.RecordBatch], deletes: list[pa.RecordBatch]
) -> MirrorStep:
    before = None if epoch == 1 else mark(epoch - 1)
    return MirrorStep(kind, before, mark(epoch), SCHEMA, KEYS, upserts, deletes)


def test_values_of_every_type(place: Place) -> None:
    target = open_target(place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"), (2, None))], []))
    more = batch((None, 'b"'), empty=True)
    target.apply(step(CHANGES, 2, [more], [batch((1, "a")).select(list(KEYS))]))
    assert target.mark() == mark(2)
    target.close()
    native = place.kind == "postgres"
    full = {
        name: (value if own is None else own) if native else plain
        for name, _, value, plain, own in VALUES
    }
    nothing = dict.fromkeys(full)
    assert place.rows() == {(2, None): full, (None, 'b"'): nothing}


def test_a_copy_replaces_everything(place: Place) -> None:
    target = open_target(place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"), (2, "b"))], []))
    target.apply(step(COPY, 2, [batch((2, "b"), (3, "c"))], []))
    target.apply(step(COPY, 3, [], []))
    target.apply(step(CHANGES, 4, [batch((9, "z"))], []))
    target.close()
    assert set(place.rows()) == {(9, "z")}


def test_a_step_whose_rows_cannot_be_read_is_not_taken(place: Place) -> None:
    def broken() -> Any:
        yield batch((3, "c"))
        raise MirrorTargetError("the log is gone")

    target = open_target(place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"))], []))
    for kind in (COPY, CHANGES):
        bad = MirrorStep(kind, mark(1), mark(2), SCHEMA, KEYS, broken(), [])
        with pytest.raises(MirrorTargetError, match="the log is gone"):
            target.apply(bad)
        assert target.mark() == mark(1)
    target.apply(step(CHANGES, 2, [batch((2, "b"))], []))
    target.close()
    assert set(place.rows()) == {(1, "a"), (2, "b")}


def test_keys_are_compact_json() -> None:
    rows = batch((7, "Küche"))
    assert keys_of(rows, KEYS) == ['[7,"Küche"]'.encode()] == [key_of(7, "Küche")]
    assert keys_of(rows, ["id"]) == [b"[7]"]
    times = pa.record_batch([pa.array([10**18], pa.timestamp("us"))], ["at"])
    with pytest.raises(MirrorTargetError, match="years 1 to 9999"):
        keys_of(times, ["at"])
    no_text = pa.record_batch([pa.array([b"a\xff"]).view(pa.string())], ["k"])
    (key,) = keys_of(no_text, ["k"])
    assert json.loads(key) == ["a\udcff"]


@pytest.mark.parametrize("data", ["", "[]", '{"format": 9}', '{"format": 1, "query": 3}'])
def test_a_mark_that_no_mirror_wrote(data: str) -> None:
    with pytest.raises(MirrorHistoryError, match="here has a mark that no mirror wrote"):
        Mark.from_json(data, "here")


def test_a_mark_survives() -> None:
    assert Mark.from_json(mark(3).to_json(), "here") == mark(3)


@pytest.mark.stress
def test_what_postgres_cannot_hold(postgres_place: PostgresPlace) -> None:
    target = open_target(postgres_place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"))], []))
    for text in ("a\0b", "a\udcff"):
        raw = pa.array([text.encode("utf-8", "surrogateescape")]).view(pa.string())
        columns = [raw if n == "text" else batch((2, "b")).column(n) for n in SCHEMA.names]
        bad = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        with pytest.raises(MirrorTargetError, match="NUL"):
            target.apply(step(CHANGES, 2, [bad], []))
    # Random, because PostgreSQL compresses what is indexed.
    import random

    long = "".join(map(chr, random.Random(1).choices(range(33, 126), k=9000)))
    with pytest.raises(MirrorTargetError, match="Drop the index"):
        target.apply(step(CHANGES, 2, [batch((2, long))], []))
    assert target.mark() == mark(1)
    (index,) = postgres_place.connection.execute(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'totals' AND indexname LIKE '%id%'"
    ).fetchone() or ("",)
    postgres_place.connection.execute(f'DROP INDEX "{index}"')  # type: ignore[arg-type]
    target.apply(step(CHANGES, 2, [batch((2, long))], []))
    target.close()
    assert set(postgres_place.rows()) == {(1, "a"), (2, long)}
    with pytest.raises(UnsupportedMirrorError, match="63 bytes"):
        open_target(postgres_place.url, "x" * 64)


@pytest.mark.stress
def test_a_table_that_was_dropped(postgres_place: PostgresPlace) -> None:
    target = open_target(postgres_place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"))], []))
    postgres_place.connection.execute("DROP TABLE totals")
    with pytest.raises(MirrorHistoryError, match="DELETE FROM millrace_mirrors"):
        target.mark()
    postgres_place.connection.execute("DELETE FROM millrace_mirrors WHERE name = 'totals'")
    target.apply(step(COPY, 1, [batch((1, "a"))], []))
    target.close()
    assert set(postgres_place.rows()) == {(1, "a")}


@pytest.mark.stress
def test_rows_that_redis_has_lost(redis_place: RedisPlace) -> None:
    target = open_target(redis_place.url, "totals")
    target.apply(step(COPY, 1, [batch((1, "a"), (2, "b"))], []))
    redis_place.client.hdel("millrace:{totals}", key_of(1, "a"))
    with pytest.raises(MirrorHistoryError, match=r"has 1 rows.*with 2.*noeviction"):
        target.mark()
    redis_place.client.delete("millrace:{totals}", "millrace:{totals}:mirror")
    target.apply(step(COPY, 1, [batch((1, "a"))], []))
    # Nothing but the rows and the mark.
    assert sorted(redis_place.client.keys()) == [b"millrace:{totals}", b"millrace:{totals}:mirror"]
    target.close()


@pytest.mark.stress
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_wrong_credentials_are_told_apart(
    scheme: str, redis_server: str, postgres_server: str
) -> None:
    url = redis_server if scheme == "redis" else f"{postgres_server}/postgres"
    wrong = url.replace("not-a-secret", "guessed")
    target = open_target(wrong, "totals")
    with pytest.raises(MirrorTargetError, match="refused the") as raised:
        target.mark()
    assert "guessed" not in str(raised.value)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    from millrace.errors import ForeignMirrorError

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ForeignMirrorError, match="not a database"):
        open_target(f"rocksdb:{tmp_path}", "totals")
