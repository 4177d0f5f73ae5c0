"""The commands that look at a location's state."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner, Result
from tests.unit.reading.streams import Counted, as_oracle, draw

from millrace.cli.command import main


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    rng = random.Random(21)
    stream = Counted(str(tmp_path_factory.mktemp("cli") / "location"), shards=2)
    for _ in range(6):
        stream.send(draw(rng, 60, 30))
    return stream


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


def answer(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


ALL = "select * from totals"


def test_sql_for_people(counted: Counted) -> None:
    result = run("sql", counted.url, "select sum(n) as rows, 'a' as b from totals")
    assert result.exit_code == 0
    assert "rows" in result.output
    assert str(sum(n for n, _, _ in counted.history[6].values())) in result.output
    result = run("sql", counted.url, ALL, "--limit", 2)
    assert f"2 of {len(counted.history[6])} rows; --limit shows more" in result.output
    assert counted.journal.store.list("leases") == []


@pytest.mark.parametrize("to_file", [True, False])
@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_sql_for_programs(counted: Counted, tmp_path: Path, form: str, to_file: bool) -> None:
    target = tmp_path / f"out.{form}"
    chosen = ["--format", form, *(["--output", target] if to_file else [])]
    result = run("sql", counted.url, ALL, "--epoch", 4, *chosen)
    assert result.exit_code == 0
    data = target.read_bytes() if to_file else result.stdout_bytes
    if form == "parquet":
        found = parquet.read_table(io.BytesIO(data))
    elif form == "arrow":
        found = pa.ipc.open_file(io.BytesIO(data)).read_all()
    elif form == "json":
        found = pa.Table.from_pylist(json.loads(data))
    else:
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        assert len(rows) == len(counted.history[4])
        assert sum(int(row["n"]) for row in rows) == 240
        return
    assert as_oracle(found) == counted.history[4]


def test_sql_that_is_refused(counted: Counted, tmp_path: Path) -> None:
    for query, named in [
        ("select * from nowhere", "The tables are totals"),
        ("delete from totals", "is refused: state is read-only"),
        ("selec", "syntax error"),
    ]:
        result = run("sql", counted.url, query)
        assert result.exit_code == 1
        assert named in result.output
        assert "Traceback" not in result.output
    result = run("sql", counted.url, ALL, "--epoch", 99)
    assert result.exit_code == 1
    assert "epochs 1 to 6 are retained" in result.output
    result = run("sql", counted.url, ALL, "--as-of", "yesterday")
    assert result.exit_code == 1
    assert "is not a time" in result.output
    result = run("sql", counted.url, ALL, "--output", tmp_path / "x")
    assert result.exit_code == 1
    assert "needs a --format" in result.output
    result = run("sql", counted.url, ALL, "--format", "csv", "--output", tmp_path / "no" / "x")
    assert result.exit_code == 1
    assert "cannot write" in result.output
    assert run("sql", counted.url).exit_code == 2
    assert run("sql", counted.url, ALL, "--format", "xls").exit_code == 2


COMMANDS = [
    ("sql", "LOCATION", "select 1"),
    ("show", "LOCATION"),
    ("ls", "LOCATION"),
    ("keys", "LOCATION"),
    ("get", "LOCATION", "1"),
    ("diff", "LOCATION", "1", "2"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_what_is_not_a_location(command: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*(str(tmp_path) if a == "LOCATION" else a for a in command))
    assert result.exit_code == 1
    assert "is not a Millrace location" in result.output
    assert list(tmp_path.iterdir()) == []


def test_ls(counted: Counted, tmp_path: Path) -> None:
    (table,) = answer("ls", counted.url)
    assert table["table"] == "totals"
    assert table["rows"] == len(counted.history[6])
    assert table["bytes"] == sum(e.bytes for e in counted.trail.segments())
    (found,) = answer("ls", Path(counted.url).parent)
    assert found["location"] == counted.url
    assert (found["epoch"], found["operators"]) == (6, "totals")
    assert "totals" in run("ls", counted.url).output
    assert "committed" in run("ls", Path(counted.url).parent).output


def test_show(counted: Counted) -> None:
    body = answer("show", counted.url)
    assert body["epoch"] == 6
    assert [row["epoch"] for row in body["epochs"]] == [1, 2, 3, 4, 5, 6]
    assert {row["path"] for row in body["segments"]} == {e.path for e in counted.trail.segments()}
    assert [row["key_groups"] for row in body["assignment"]] == ["0-7", "8-15"]
    assert body["operators"][0]["rows"] == len(counted.history[6])
    assert len(body["key_groups"]) == 16
    assert body["readers"] == []
    assert answer("show", counted.url, "--epoch", 3)["epoch"] == 3
    text = run("show", counted.url).output
    for part in ("epoch 6", "6 epochs retained", "operators", "assignment", "fullest key groups"):
        assert part in text


def test_keys(counted: Counted) -> None:
    found = answer("keys", counted.url, "--limit", 1000)
    assert {(r["room"], r["device"]) for r in found} == counted.history[6].keys()
    assert len(answer("keys", counted.url, "--limit", 3)) == 3
    parts = [answer("keys", counted.url, "--limit", 1000, "--key-groups", g) for g in range(16)]
    assert sum(map(len, parts)) == len(found)
    assert "device" in run("keys", counted.url).output
    refused = run("keys", counted.url, "--operator", "other")
    assert refused.exit_code == 1
    assert "there is no operator 'other'" in refused.output


def test_get(counted: Counted) -> None:
    key = next(k for k in counted.history[6] if k[0] == "hall")
    n, total, average = counted.history[6][key]
    (row,) = answer("get", counted.url, *key)
    assert row == {
        "room": key[0],
        "device": key[1],
        "n": n,
        "total": total,
        "average": average,
    }
    null = next(k for k in counted.history[6] if k[0] is None)
    by_name = json.dumps({"device": key[1], "room": "hall"})
    rows = answer("get", counted.url, "--key", json.dumps(null), "--key", by_name)
    assert [(r["room"], r["device"]) for r in rows] == [null, key]
    missing = run("get", counted.url, "hall", 12345)
    assert missing.exit_code == 1
    assert "not found at epoch 6: room='hall', device=12345" in missing.output
    for values, named in [
        (["hall"], "give 2 values"),
        (["hall", "x"], "'device'"),
        (["--key", "{"], "not JSON"),
        (["--key", '{"room": 1}'], "columns are room, device"),
    ]:
        refused = run("get", counted.url, *values)
        assert refused.exit_code == 1
        assert named in refused.output


def test_diff(counted: Counted) -> None:
    before, after = counted.history[2], counted.history[5]
    rows = answer("diff", counted.url, 2, 5)
    assert {(r["room"], r["device"]) for r in rows} == {
        k for k in after if before.get(k) != after[k]
    }
    text = run("diff", counted.url, 2, 5).output
    added = len(after.keys() - before.keys())
    assert f"{added} added, {len(rows) - added} changed, 0 removed" in text
    assert " -> " in text
    refused = run("diff", counted.url, 2, 50)
    assert refused.exit_code == 1
    assert "epochs 1 to 6 are retained" in refused.output
