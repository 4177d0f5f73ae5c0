"""SQL on state: right, read-only, and reading no more than it needs."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.reading.streams import Counted, as_oracle, draw

import millrace as mr
from millrace.errors import ReadOnlyError, SqlError


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    rng = random.Random(11)
    stream = Counted(str(tmp_path_factory.mktemp("sql") / "location"))
    for epoch in range(10):
        stream.shards = 1 + epoch % 3
        stream.send(draw(rng, 200))
    return stream


@pytest.fixture(scope="module")
def reader(counted: Counted) -> Any:
    with mr.open(counted.url) as reader:
        yield reader


def test_a_whole_table(counted: Counted, reader: mr.Reader) -> None:
    assert as_oracle(reader.sql("select * from totals")) == counted.history[10]
    with mr.open(counted.url, epoch=4) as earlier:
        assert as_oracle(earlier.sql("from totals")) == counted.history[4]


def test_groups_and_joins(counted: Counted, reader: mr.Reader) -> None:
    found = reader.sql(
        "select a.room, count(*) as devices, sum(a.total) as total, max(b.n) as most "
        "from totals a join totals b using (device) where b.room is null group by a.room"
    )
    oracle: dict[Any, list[int]] = {}
    state = counted.history[10]
    for (room, device), (_, total, _) in state.items():
        if (None, device) in state:
            row = oracle.setdefault(room, [0, 0, 0])
            row[0] += 1
            row[1] += total
            row[2] = max(row[2], state[None, device][0])
    rows = {r["room"]: [r["devices"], r["total"], r["most"]] for r in found.to_pylist()}
    assert rows == oracle


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ("device = 7", lambda k, v: k[1] == 7),
        ("room = 'hall' and device = 7", lambda k, v: k == ("hall", 7)),
        ("room is null and device = 7", lambda k, v: k == (None, 7)),
        ("room = 'hall' and device = 7 and n > 100", lambda k, v: False),
        ("device = 7 and (room = 'hall' or room = '')", lambda k, v: k in (("hall", 7), ("", 7))),
        ("room = 'hall' and device in (7, 8, 9)", lambda k, v: k[0] == "hall" and 7 <= k[1] <= 9),
        ("room = 'hall' and device = 7.0", lambda k, v: k == ("hall", 7)),
        ("room = 'hall' and device = 7.5", lambda k, v: False),
        ("room = 'no such'  and device = -1", lambda k, v: False),
        ("n between 2 and 3 and total > 50", lambda k, v: 2 <= v[0] <= 3 and v[1] > 50),
        ("average < 100.5", lambda k, v: v[2] < 100.5),
    ],
)
def test_predicates(counted: Counted, reader: mr.Reader, where: str, keep: Any) -> None:
    found = as_oracle(reader.sql(f"select * from totals where {where}"))
    assert found == {k: v for k, v in counted.history[10].items() if keep(k, v)}
    (count,) = reader.sql(f"select count(*) as n from totals where {where}").to_pylist()
    assert count["n"] == len(found)


def test_parameters(counted: Counted, reader: mr.Reader) -> None:
    key = ("hall", 7)
    found = reader.sql("select n from totals where room = ? and device = ?", list(key))
    assert found.to_pylist() == [{"n": counted.history[10][key][0]}]
    named = reader.sql(
        "select n from totals where room = $r and device = $d", {"r": "hall", "d": 7}
    )
    assert named == found


def test_one_key_group(counted: Counted, reader: mr.Reader) -> None:
    per_group = reader.sql(
        "select _key_group as g, count(*) as n from by_group.totals group by g order by g"
    ).to_pylist()
    assert sum(row["n"] for row in per_group) == len(counted.history[10])
    for row in per_group:
        part = reader.to_arrow(key_groups=[row["g"]])
        assert part.num_rows == row["n"]
        one = reader.sql(
            "select room, device from by_group.totals where _key_group = ?", [row["g"]]
        )
        assert sorted(map(str, one.to_pylist())) == sorted(
            map(str, part.select(["room", "device"]).to_pylist())
        )


@pytest.mark.parametrize(
    "statement",
    [
        "insert into totals values ('hall', 1, 1, 1, 1)",
        "update totals set n = 0",
        "delete from totals",
        "create table t (a int)",
        "drop view totals",
        "copy totals to 'x.csv'",
        "attach 'x.db'",
        "set threads = 1",
        "pragma version",
        "install httpfs",
        "load httpfs",
        "call pragma_version()",
        "begin",
        "export database 'x'",
        "explain analyze create table t as select 1",
        "EXPLAIN (ANALYZE) insert into totals values (1)",
        "/* a plan */ explain analyze create table t as select 1",
        "explain -- a plan\n analyze /* of */ create table t as select 1",
    ],
)
def test_only_queries(reader: mr.Reader, statement: str) -> None:
    with pytest.raises(ReadOnlyError, match=r"is refused: state is read-only"):
        reader.sql(statement)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("select * from nowhere", "The tables are totals, millrace_operators"),
        ("select nothing from totals", "nothing"),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "one query at a time: this has 2"),
        ("", "not a query"),
        ("select * from read_csv('/etc/passwd')", "disabled by configuration"),
        ("select * from '/etc/passwd'", "does not exist"),
        ("select * from reader", "does not exist"),
        ("select cast('a' as int)", "Could not convert"),
    ],
)
def test_queries_that_cannot_run(reader: mr.Reader, query: str, named: str) -> None:
    with pytest.raises(SqlError) as caught:
        reader.sql(query)
    assert named in str(caught.value)
    # And the next one runs.
    assert reader.sql("select 1 as x").to_pylist() == [{"x": 1}]


def test_duckdb_prints_no_progress_bar(reader: mr.Reader) -> None:
    found = reader.sql("select current_setting('enable_progress_bar') as shown")
    assert found.to_pylist() == [{"shown": False}]


def test_a_warm_reader_follows(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(12)
    stream = Counted(str(tmp_path_factory.mktemp("warm") / "location"))
    stream.send(draw(rng, 100))
    with mr.open(stream.url) as reader:
        for _ in range(30):
            epoch = stream.send(draw(rng, 100))
            before = as_oracle(reader.sql("select * from totals"))
            assert before == stream.history[epoch - 1]
            assert reader.refresh() == epoch
            assert as_oracle(reader.sql("select * from totals")) == stream.history[epoch]


def test_what_the_location_knows_of_itself(counted: Counted, reader: mr.Reader) -> None:
    (operator,) = reader.sql("select * from millrace_operators").to_pylist()
    assert operator["operator"] == "totals"
    assert operator["keys"] == ["room", "device"]
    assert operator["rows"] == len(counted.history[10])
    epochs = reader.sql("select epoch, batch_id from millrace_epochs where epoch > 8").to_pylist()
    assert epochs == [{"epoch": 9, "batch_id": 8}, {"epoch": 10, "batch_id": 9}]
    live = {entry.path: entry.bytes for entry in counted.trail.segments()}
    segments = reader.sql("select path, bytes from millrace_segments").to_pylist()
    assert {row["path"]: row["bytes"] for row in segments} == live
    groups = reader.sql("select * from millrace_key_groups").to_pylist()
    assert [row["key_group"] for row in groups] == list(range(16))
    assert sum(row["base_rows"] + row["changed_rows"] for row in groups) >= operator["rows"]
    names = reader.sql("select name from millrace_tables")["name"].to_pylist()
    assert names == ["totals"]


class Shelf(mr.Processor):
    books = mr.Map("string", "long")
    log = mr.List("string")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.books[row.title] = row.pages
            self.log.append(row.title)
        return iter(())


def test_collections_as_values_and_as_rows() -> None:
    harness = mr.testing.Harness(
        Shelf(), key="owner", schema="owner string, title string, pages long", output="x long"
    )
    read = [("ann", "Emma", 474), ("bob", "Ulysses", 730), ("ann", "Persuasion", 249)]
    harness.send([dict(zip(("owner", "title", "pages"), row, strict=True)) for row in read])
    with mr.open(harness.location) as reader:
        whole = reader.sql(
            "select owner, books['Emma'] as emma, len(log) as n from tested order by 1"
        )
        assert whole.to_pylist() == [
            {"owner": "ann", "emma": 474, "n": 2},
            {"owner": "bob", "emma": None, "n": 1},
        ]
        rows = reader.sql(
            "select owner, sum(value) as pages from tested.books group by all order by 1"
        )
        assert rows.to_pylist() == [{"owner": "ann", "pages": 723}, {"owner": "bob", "pages": 730}]
        one = reader.sql("select value from tested.log where owner = 'ann' order by position")
        assert one["value"].to_pylist() == ["Emma", "Persuasion"]
        with pytest.raises(SqlError, match=r"The tables are tested, tested\.books, tested\.log"):
            reader.sql("select * from tested.nothing")


def test_a_plan_can_be_looked_at(reader: mr.Reader) -> None:
    for explain in ("explain", "explain analyze", "EXPLAIN (ANALYZE, FORMAT json)"):
        (row,) = reader.sql(f"{explain} select * from totals where n > 1").to_pylist()
        assert "totals" in str(row) or "ARROW_SCAN" in str(row)


@pytest.mark.parametrize(
    "prefix",
    [
        "-- a comment\nexplain",
        "/* a\ncomment */ explain",
        "/**/--\n/* * / */explain/**/analyze -- x\n",
        "explain /* why */ (format json)",
    ],
)
def test_comments_around_explain(reader: mr.Reader, prefix: str) -> None:
    (row,) = reader.sql(f"{prefix} select * from totals where n > 1").to_pylist()
    assert "totals" in str(row) or "ARROW_SCAN" in str(row)


@pytest.mark.parametrize(
    "query",
    [
        "/* a /* nested */ comment */ explain select 1",
        # To DuckDB, everything up to the second */ is a comment.
        "explain /* /* */ select 1; -- */ */ analyze create table t as select 1",
    ],
)
def test_comments_that_only_duckdb_understands_are_refused(reader: mr.Reader, query: str) -> None:
    with pytest.raises((SqlError, ReadOnlyError)):
        reader.sql(query)


def test_results_are_arrow(reader: mr.Reader) -> None:
    assert isinstance(reader.sql("select 1 as x"), pa.Table)


@pytest.mark.parametrize("name", ["a-b.c", "select", "temp", "Views", "1st", "main", "totals"])
def test_operators_may_have_any_name(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    stream = Counted(str(tmp_path_factory.mktemp("named") / "location"), name=name)
    stream.send(draw(random.Random(13), 20))
    with mr.open(stream.url) as reader:
        (listed,) = reader.sql("select name from millrace_tables")["name"].to_pylist()
        assert listed.strip('"').rstrip("_") == name
        assert as_oracle(reader.sql(f"select * from {listed}")) == stream.history[1]
        assert as_oracle(reader.sql(f"from by_group.{listed}")) == stream.history[1]


class Last(mr.Processor):
    last = mr.Value("long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.last.set(row.v)
        return iter(())


NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 250_001, tzinfo=dt.UTC)
KEYS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": [-128, 0, 127],
    "int": [-(2**31), 7],
    "long": [-(2**63), 2**63 - 1, 0],
    "float": [0.0, 1.5, math.nan, math.inf],
    "double": [0.0, 0.1, math.nan, -math.inf],
    "decimal(9,2)": [Decimal("1.25"), Decimal("-99999.99")],
    "decimal(38,6)": [Decimal("0.000001"), Decimal(-(10**31))],
    "string": ["", "a", "Ä", "it's", "x" * 100],
    "binary": [b"", b"\x00\xff"],
    "date": [dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "timestamp": [NOON, NOON.replace(year=1900)],
    "timestamp_ntz": [NOON.replace(tzinfo=None)],
    "struct<a: string, b: int>": [{"a": "x", "b": 1}, {"a": None, "b": 2}],
    "array<string>": [[], ["a", None], ["a"]],
}


@pytest.mark.parametrize("key_type", KEYS)
def test_a_key_of_every_type_is_found(key_type: str) -> None:
    """By its value, whether DuckDB hands the predicate down or not."""
    keys = [*KEYS[key_type], None]
    schema = f"k {key_type}, v long"
    harness = mr.testing.Harness(Last(), key="k", schema=schema, output="x long")
    harness.send([{"k": key, "v": number} for number, key in enumerate(keys)])
    with mr.open(harness.location) as reader:
        found = reader.get(keys)
        assert found["last"].to_pylist() == list(range(len(keys)))
        assert found["_found"].to_pylist() == [True] * len(keys)
        for number, key in enumerate(keys):
            where = "k is null" if key is None else "k = $key"
            # A parameter has a type of its own; DuckDB compares as SQL does.
            given = None if key is None else {"key": found["k"].slice(number, 1).to_pylist()[0]}
            rows = reader.sql(f"select last from tested where {where}", given)
            assert rows["last"].to_pylist() == [number], key
            same = reader.sql(f"select k, last from tested where last = {number}")
            assert repr(same["k"].to_pylist()) == repr(found["k"].slice(number, 1).to_pylist())
    negative_zero = {"float": -0.0, "double": -0.0}.get(key_type)
    if negative_zero is not None:
        with mr.open(harness.location) as reader:
            rows = reader.sql("select last from tested where k = ?", [negative_zero])
            assert rows["last"].to_pylist() == [0]
