"""Sinks with a marker, on real tables and servers: each batch once, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.targets import WITHOUT_SERVER, MakeTarget, TableRows, Target, kinds

from millrace.ddl import parse_schema
from millrace.errors import MissingPackageError, SinkError
from millrace.spark.sinks import MarkedSink, make_sink
from millrace.spark.sinks.marked import require, without_password
from millrace.types import arrow_schema
from millrace_lab.servers import free_port
from millrace_lab.servers.postgres import postgres
from millrace_lab.servers.redis import redis

SCHEMA = parse_schema("k string, g int, n long")
KEY = ("k", "g")
ALL = kinds("delta append", "delta upsert")
BATCHES = [
    [("a", 1, 10), ("b", None, 20), (None, None, 30), ("", 1, 40)],
    [("a", 1, 11), ("a", 1, 12), (None, None, None)],
    [],
    [("a", 2, 50), ("b", None, 21), ("", None, 41)],
]


def opened(
    target: Target, query: str = "q", schema: T.StructType = SCHEMA, **more: Any
) -> MarkedSink:
    sink = target.make(KEY, **more)
    sink.open(None, query, schema)  # type: ignore[arg-type]
    return sink


def rows_of(values: Sequence[tuple[Any, ...]], schema: T.StructType = SCHEMA) -> TableRows:
    rows = [dict(zip(schema.names, row, strict=True)) for row in values]
    return TableRows(pa.Table.from_pylist(rows, schema=arrow_schema(schema)))


def send(sink: MarkedSink, batch_id: int) -> None:
    if not sink.has(batch_id):
        sink.write_rows(rows_of(BATCHES[batch_id]), batch_id)


def plain(row: dict[str, Any] | tuple[Any, ...]) -> tuple[str | None, ...]:
    values = row if isinstance(row, tuple) else [row.get(name) for name in SCHEMA.names]
    return tuple(None if value is None else str(value) for value in values)


def assert_holds(target: Target, batches: int) -> None:
    rows = [row for batch in BATCHES[:batches] for row in batch]
    if target.upserts:
        rows = list({row[:2]: row for row in rows}.values())
    assert sorted(map(plain, target.rows()), key=str) == sorted(map(plain, rows), key=str)


@pytest.mark.parametrize("kind", kinds(*WITHOUT_SERVER))
def test_each_batch_is_written_once(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    for batch_id in range(len(BATCHES)):
        send(opened(target), batch_id)
        assert_holds(target, batch_id + 1)
        again = opened(target)
        assert again.has(batch_id)
        send(again, batch_id)
        assert_holds(target, batch_id + 1)
    assert not opened(target).has(len(BATCHES))


@pytest.mark.parametrize("kind", ALL)
def test_one_life_with_many_batches(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    sink = opened(target)
    for batch_id in range(len(BATCHES)):
        send(sink, batch_id)
    assert_holds(target, len(BATCHES))


@pytest.mark.parametrize("kind", ALL)
def test_of_two_drivers_one_writes(make_target: MakeTarget, kind: str) -> None:
    """Both have seen that the batch is not there before one of them writes it."""
    target = make_target(kind)
    send(opened(target), 0)
    one, other = opened(target), opened(target)
    assert not one.has(1)
    assert not other.has(1)
    one.write_rows(rows_of(BATCHES[1]), 1)
    other.write_rows(rows_of(BATCHES[1]), 1)
    assert_holds(target, 2)
    send(one, 2)
    send(one, 3)
    with pytest.raises(SinkError, match=r"at batch 3 already.*at batch 2.*another driver"):
        other.write_rows(rows_of(BATCHES[2]), 2)
    assert_holds(target, 4)


@pytest.mark.parametrize("kind", ALL)
def test_another_query_is_refused(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    send(opened(target), 0)
    with pytest.raises(SinkError, match=r"belongs to another query \(q; this one is other\)"):
        opened(target, "other")
    assert_holds(target, 1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("k string, g int", "n"),
        ("k string, g int, n string", "n"),
        ("k string, g int, m long", "m"),
    ],
)
@pytest.mark.parametrize("kind", ALL)
def test_another_schema_is_refused(
    make_target: MakeTarget, kind: str, columns: str, said: str
) -> None:
    target = make_target(kind)
    send(opened(target), 0)
    other = parse_schema(columns)
    if target.sink == "postgres" and len(other) == 2:
        opened(target, schema=other)  # The table's other columns may be NULL.
        return
    with pytest.raises(SinkError, match=rf"other columns than the output: .*\b{said}\b.*transform"):
        opened(target, schema=other)
    assert_holds(target, 1)


@pytest.mark.parametrize("kind", ALL)
def test_a_deleted_marker_is_noticed(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    running = opened(target)
    send(running, 0)
    target.delete_marker()
    with pytest.raises(SinkError, match="no marker of its last batch"):
        opened(target)
    with pytest.raises(SinkError, match="no marker of its last batch"):
        send(running, 1)
    assert_holds(target, 1)


@pytest.mark.parametrize("kind", ALL)
def test_a_marker_that_does_not_fit_is_refused(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    send(opened(target), 0)
    send(opened(target), 1)
    with pytest.raises(SinkError, match=r"at batch 1 already.*at batch 0.*older backup"):
        opened(target).has(0)
    with pytest.raises(SinkError, match=r"at batch 1, and .* at batch 3.*accept_gap=True"):
        opened(target).has(3)
    assert_holds(target, 2)
    assert not opened(target, accept_gap=True).has(3)


def test_a_new_sink_may_begin_at_any_batch(make_target: MakeTarget) -> None:
    target = make_target("delta append")
    sink = opened(target)
    assert not sink.has(7)
    sink.write_rows(rows_of(BATCHES[0]), 7)
    assert opened(target).has(7)


VALUES: list[tuple[str, Any]] = [
    ("string", "tab\t, quote\" and 'line\nend \\N \\. ünïcödé"),
    ("long", -(2**63)),
    ("smallint", -7),
    ("double", 0.1 + 0.2),
    ("float", 0.5),
    ("boolean", False),
    ("decimal(20,3)", Decimal("-12345678901234567.891")),
    ("binary", b"\x00\xff:%"),
    ("date", dt.date(1900, 2, 28)),
    ("timestamp", dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC)),
    ("timestamp_ntz", dt.datetime(1969, 12, 31, 23, 59, 59, 1)),
    ("array<int>", [1, None, 3]),
    ("struct<a:int,b:string>", {"a": 1, "b": None}),
]


@pytest.mark.parametrize("kind", ALL)
def test_values_arrive_as_they_are(make_target: MakeTarget, kind: str) -> None:
    columns = ", ".join(f"c{i} {data_type}" for i, (data_type, _) in enumerate(VALUES))
    schema = parse_schema(f"k string, g int, {columns}")
    full = ("x", 1, *(value for _, value in VALUES))
    nulls = ("y", 2, *(None for _ in VALUES))
    target = make_target(kind)
    sink = opened(target, schema=schema)
    sink.write_rows(rows_of([full, nulls], schema), 0)
    found = sorted(target.rows(), key=lambda row: str(row["k"]))
    if target.sink != "redis":
        assert [tuple(row.values()) for row in found] == [full, nulls]
        return
    assert found[1] == {"k": "y", "g": "2", "_batch_id": "0"}
    assert found[0]["c0"] == VALUES[0][1]
    assert float(found[0]["c3"]) == VALUES[3][1]
    assert found[0]["c6"] == "-12345678901234567.891"
    assert found[0]["c9"] == "2024-02-29 01:02:03.456789Z"
    assert found[0]["c11"] == "[1, null, 3]"
    assert found[0]["c12"] == '{"a": 1, "b": null}'


@pytest.mark.stress
def test_keys_of_redis_never_share_a_name(make_target: MakeTarget) -> None:
    target = make_target("redis upsert")
    sink = target.make(("k", "g"))
    schema = parse_schema("k string, g string")
    sink.open(None, "q", schema)  # type: ignore[arg-type]
    keys = [
        ("a:b", "c"),
        ("a", "b:c"),
        (None, "x"),
        ("%NULL", "x"),
        ("", ""),
        ("%3A", ":"),
        (":", ""),
    ]
    sink.write_rows(rows_of(keys, schema), 0)
    assert {(row.get("k"), row.get("g")) for row in target.rows()} == set(keys)


@pytest.mark.stress
def test_a_table_that_was_there_before(make_target: MakeTarget) -> None:
    """The user's own table: other columns may be NULL or have a default, types may be wider."""
    target = make_target("postgres upsert")
    target.execute(
        "CREATE TABLE totals (id serial, k varchar(20), g bigint, n numeric, note text, "
        "UNIQUE NULLS NOT DISTINCT (k, g))"
    )
    for batch_id in range(len(BATCHES)):
        send(opened(target), batch_id)
    assert_holds(target, len(BATCHES))


@pytest.mark.stress
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE totals (k text, g int, n bigint)", "no unique constraint on k, g"),
        (
            "CREATE TABLE totals (k text, g int, n bigint, u int NOT NULL, UNIQUE (k, g))",
            "column 'u' of the table is NOT NULL and not in the output",
        ),
        (
            "CREATE TABLE totals (k text, g int, n int, UNIQUE (k, g))",
            "column 'n' is integer in the table, bigint in the output",
        ),
        (
            "CREATE TABLE totals AS SELECT ''::text AS k, 1 AS g, 1::bigint AS n",
            "holds rows but has no marker",
        ),
    ],
)
def test_a_table_that_cannot_take_the_output(
    make_target: MakeTarget, statement: str, message: str
) -> None:
    target = make_target("postgres upsert")
    target.execute(statement)
    with pytest.raises(SinkError, match=message):
        opened(target)
    assert target.execute("SELECT to_regclass('millrace_batches')") == [(None,)]


@pytest.mark.stress
def test_a_dropped_table_is_noticed(make_target: MakeTarget) -> None:
    target = make_target("postgres append")
    send(opened(target), 0)
    target.execute("DROP TABLE totals")
    with pytest.raises(SinkError, match="the table was dropped"):
        opened(target)


@pytest.mark.stress
def test_a_value_that_postgres_refuses_leaves_nothing_behind(make_target: MakeTarget) -> None:
    target = make_target("postgres append")
    sink = opened(target)
    send(sink, 0)
    with pytest.raises(SinkError, match=r"did not take batch 1: .*0x00.*Nothing is lost"):
        sink.write_rows(rows_of([("fine", 1, 1), ("zero\x00", 1, 1)]), 1)
    assert_holds(target, 1)
    send(opened(target), 1)
    assert_holds(target, 2)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["postgres append", "redis upsert"])
def test_wrong_credentials(make_target: MakeTarget, kind: str) -> None:
    target = make_target(kind)
    options = target.options(KEY)
    options["url"] = options["url"].replace("not-a-secret", "guessed")
    sink = make_sink(target.sink, options)
    with pytest.raises(SinkError, match=r"cannot be opened: .*(password|WRONGPASS)") as caught:
        sink.open(None, "q", SCHEMA)  # type: ignore[arg-type]
    assert "guessed" not in str(caught.value)


@pytest.mark.stress
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_server_that_goes_away(tmp_path: Path, name: str) -> None:
    with postgres() if name == "postgres" else redis(tmp_path) as url:
        options = {"table": "t"} if name == "postgres" else {"prefix": "t", "key": "k"}
        place = f"{url}/postgres" if name == "postgres" else url
        sink = make_sink(name, {"url": place, **options})
        assert isinstance(sink, MarkedSink)
        sink.open(None, "q", SCHEMA)  # type: ignore[arg-type]
        send(sink, 0)
    with pytest.raises(SinkError, match=r"did not take batch 1: .*Nothing is lost"):
        send(sink, 1)
    with pytest.raises(SinkError, match=r"cannot be read: .*Nothing is lost"):
        sink.has(1)


def unreachable() -> list[tuple[str, dict[str, Any]]]:
    port = free_port()
    return [
        ("postgres", {"url": f"postgresql://u:secret@127.0.0.1:{port}/d", "table": "t"}),
        ("redis", {"url": f"redis://:secret@127.0.0.1:{port}", "prefix": "t", "key": "k"}),
        ("delta", {"path": "/proc/nowhere/table"}),
        (
            "iceberg",
            {"table": "a.b", "catalog": {"type": "sql", "uri": "sqlite:////proc/nowhere/c.db"}},
        ),
    ]


@pytest.mark.parametrize(("name", "options"), unreachable(), ids=lambda value: str(value)[:8])
def test_a_target_that_cannot_be_reached(name: str, options: dict[str, Any]) -> None:
    sink = make_sink(name, options)
    with pytest.raises(SinkError, match=r"cannot be opened: .*start the query again") as caught:
        sink.open(None, "q", SCHEMA)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("postgres", {"url": "postgresql://h/d"}, "needs table="),
        ("postgres", {"table": "t"}, "needs url="),
        ("postgres", {"url": "u", "table": "t", "mode": "replace"}, "append or upsert"),
        ("postgres", {"url": "u", "table": "t", "mode": "upsert"}, "needs key="),
        ("postgres", {"url": "u", "table": "t", "key": "k"}, "no use for it otherwise"),
        ("postgres", {"url": "u", "table": "a.b.c"}, r"SCHEMA\.NAME"),
        ("delta", {"path": "p", "mode": "upsert", "key": []}, "a column's name or a list"),
        ("delta", {"path": "p", "compression": "x"}, "no option 'compression'"),
        ("iceberg", {"table": "t"}, r"NAMESPACE\.NAME"),
        ("iceberg", {"table": "a.t", "catalog": 5}, "catalog= as the name"),
        ("redis", {"url": "redis://h", "prefix": "p"}, "needs key="),
        ("redis", {"url": "redis://h", "key": "k"}, "needs prefix="),
    ],
)
def test_options_that_cannot_be(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        make_sink(name, options)


def test_a_key_that_the_output_lacks(make_target: MakeTarget) -> None:
    target = make_target("delta upsert")
    with pytest.raises(SinkError, match=r"no column 'k', which key= names\. Its columns are n"):
        opened(target, schema=parse_schema("n long"))


def test_a_missing_package_is_named() -> None:
    with pytest.raises(MissingPackageError, match=r"with its extra: millrace\[postgres\]"):
        require("postgres", "no_such_package_of_millrace")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host/0", "redis://host/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("postgresql://me:secret@host/d", "postgresql://me:***@host/d"),
        ("postgresql://host/d?password=secret&user=me", "postgresql://host/d?password=***&user=me"),
        ("host=h password = 'sec ret' user=me", "host=h password=*** user=me"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
