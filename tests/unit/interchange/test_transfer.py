"""Exports and imports: the state that comes out is the one that went in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import types as T
from tests.unit.serve.counting import Counting

import millrace as mr
from millrace.cli import main
from millrace.errors import (
    ForeignLocationError,
    MissingEpochError,
    MissingOffsetsError,
    NotAnExportError,
    UnknownEpochError,
    UnsupportedTypeError,
    UsageError,
)
from millrace.interchange.offsets import with_more_sources
from millrace.interchange.transfer import FORMATS, export, import_state
from millrace.operators.operator import Column
from millrace.serve.lookups import Lookups


def rows(location: str, **options: Any) -> list[Any]:
    with mr.open(location, **options) as reader:
        return sorted(reader.to_arrow("totals").to_pylist(), key=repr)


def with_offsets(root: Path, batches: int) -> None:
    """What Spark keeps of a query that has run some batches."""
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True)
        for batch in range(batches):
            (root / log / str(batch)).write_text(f"v1\n{{}}\n{batch}")
            (root / log / f".{batch}.crc").write_bytes(b"crc")
    (root / "sources" / "0").mkdir(parents=True)
    (root / "sources" / "0" / "0").write_text("v1\nfiles")
    (root / "metadata").write_text('{"id": "11111111-1111-1111-1111-111111111111"}')


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    made = Counting(str(tmp_path / "location"))
    for epoch in range(3):
        made.epoch({f"key-{i}": (epoch + 1, i) for i in range(epoch, 300, 3 - epoch)})
    with_offsets(tmp_path / "location" / "spark", 3)
    return made


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("key_groups", [None, 2, 256])
def test_out_and_in(
    counting: Counting, tmp_path: Path, file_format: str, key_groups: int | None
) -> None:
    out, place = str(tmp_path / "out"), str(tmp_path / "new")
    moved = export(counting.url, out, file_format=file_format)
    assert (moved.epoch, moved.rows, moved.with_offsets) == (3, len(counting.state), True)
    moved = import_state(out, place, key_groups=key_groups, parallelism=2)
    assert rows(place) == rows(counting.url)
    with mr.open(place) as reader:
        assert (reader.epoch, reader.batch_id) == (3, 2)
        assert reader.key_groups == (key_groups or 16)
    assert (tmp_path / "new" / "spark" / "offsets" / "2").read_text() == "v1\n{}\n2"
    assert "1111" not in (tmp_path / "new" / "spark" / "metadata").read_text()
    # Found by their fingerprints, too.
    answer = Lookups(place).look_up("totals", {"k": pa.array(["key-7"])})
    assert answer.rows.to_pylist() == [r for r in rows(place) if r["k"] == "key-7"]


def test_straight_from_a_location(counting: Counting, tmp_path: Path) -> None:
    place = str(tmp_path / "new")
    assert import_state(counting.url, place, key_groups=4).with_offsets
    assert rows(place) == rows(counting.url)


def test_an_earlier_epoch_has_no_offsets(counting: Counting, tmp_path: Path) -> None:
    out, place = str(tmp_path / "out"), str(tmp_path / "new")
    moved = export(counting.url, out, epoch=2)
    assert not moved.with_offsets
    for source, options in ((out, {}), (counting.url, {"epoch": 2})):
        with pytest.raises(UsageError, match="--fresh-source"):
            import_state(source, place, **options)
    import_state(out, place, fresh_source=True)
    assert rows(place) == rows(counting.url, epoch=2) != rows(counting.url)
    with mr.open(place) as reader:
        assert reader.batch_id is None
    assert not (tmp_path / "new" / "spark").exists()


def test_files_that_other_tools_read(counting: Counting, tmp_path: Path) -> None:
    export(counting.url, str(tmp_path / "out"))
    read = pq.read_table(tmp_path / "out" / "totals" / "main")
    assert {"k", "n", "total"} <= set(read.schema.names)
    assert read.num_rows == len(counting.state)
    export(counting.url, str(tmp_path / "delta"), file_format="delta")
    log = tmp_path / "delta" / "totals" / "main" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    for add in added:
        file = log.parent.parent / add["path"]
        assert file.stat().st_size == add["size"]
        assert pq.read_metadata(file).num_rows == json.loads(add["stats"])["numRecords"]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    fields = json.loads(metadata["schemaString"])["fields"]
    assert [f["name"] for f in fields] == pq.read_schema(file).names
    assert {f["name"]: f["type"] for f in fields}["_hi"] == "long"


def test_offsets_that_do_not_fit(counting: Counting, tmp_path: Path) -> None:
    spark = tmp_path / "location" / "spark"
    (spark / "commits" / "3").write_text("v1\n{}")
    with pytest.raises(MissingEpochError, match="is of batch 2"):
        export(counting.url, str(tmp_path / "out"))
    with pytest.raises(MissingOffsetsError, match="continues to batch 3"):
        export(counting.url, str(tmp_path / "out"), epoch=3)
    assert not export(counting.url, str(tmp_path / "alone"), epoch=3, offsets=False).with_offsets
    (spark / "commits" / "3").unlink()
    (spark / "commits" / "2").unlink()
    with pytest.raises(MissingOffsetsError, match="has no batch 2"):
        import_state(counting.url, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_further_sources_have_not_begun() -> None:
    files = {"offsets/1": b"v1\n{}\n7", "commits/1": b"v1\n{}"}
    assert with_more_sources(files, 1) == {"offsets/1": b"v1\n{}\n7\n-", "commits/1": b"v1\n{}"}
    assert with_more_sources(files, 0) == files


def test_refusals(counting: Counting, tmp_path: Path) -> None:
    with pytest.raises(NotAnExportError, match="neither a location nor an export"):
        import_state(str(tmp_path / "nothing"), str(tmp_path / "new"))
    with pytest.raises(ForeignLocationError, match="is already a location"):
        import_state(counting.url, counting.url)
    with pytest.raises(UnknownEpochError):
        export(counting.url, str(tmp_path / "out"), epoch=9)
    with pytest.raises(UsageError, match="choose from parquet"):
        export(counting.url, str(tmp_path / "out"), file_format="csv")
    with pytest.raises(UsageError, match="power of two"):
        import_state(counting.url, str(tmp_path / "new"), key_groups=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        export(counting.url, str(tmp_path / "full"))
    export(counting.url, str(tmp_path / "out"))
    with pytest.raises(UsageError, match="an export has one epoch"):
        import_state(str(tmp_path / "out"), str(tmp_path / "new"), epoch=1)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("fresh_source", [False, True])
def test_operators_keep_their_watermarks(
    counting: Counting, tmp_path: Path, exported: bool, fresh_source: bool
) -> None:
    """Without it, a row that was late before the move would not be late after it."""
    name = counting.operator.name
    counting.journal.commit(
        counting.trail,
        run="test",
        batch_id=2,
        watermark_ms=7_000,
        operators={},
        specs={},
        full=False,
        watermarks={name: 5_000_250},
    )
    source = counting.url
    if exported:
        source = export(counting.url, str(tmp_path / "out")).location
    place = import_state(source, str(tmp_path / "new"), fresh_source=fresh_source).location
    with mr.open(place) as reader:
        trail = reader.snapshot.trail
        known = {} if fresh_source else {name: 5_000_250}
        assert (trail.watermarks, trail.watermark_ms) == (known, None if fresh_source else 7_000)


def test_types_that_delta_lacks(tmp_path: Path) -> None:
    made = Counting(str(tmp_path / "location"), [Column("gap", T.DayTimeIntervalType())])
    made.journal.commit(
        made.trail,
        run="test",
        batch_id=None,
        watermark_ms=None,
        operators={},
        specs={made.operator.name: made.operator.spec()},
        full=True,
    )
    with pytest.raises(UnsupportedTypeError, match="DayTimeIntervalType"):
        export(made.url, str(tmp_path / "out"), file_format="delta")


def test_commands(counting: Counting, tmp_path: Path) -> None:
    out, place = str(tmp_path / "out"), str(tmp_path / "new")
    told = CliRunner().invoke(main, ["export", counting.url, out, "--format", "arrow"])
    assert (told.exit_code, "exported 300 rows of totals" in told.output) == (0, True)
    told = CliRunner().invoke(main, ["import", out, place, "--key-groups", "8", "--json"])
    assert told.exit_code == 0
    assert json.loads(told.output)["rows"] == 300
    assert rows(place) == rows(counting.url)
    told = CliRunner().invoke(main, ["import", str(tmp_path), place])
    assert (told.exit_code, "neither a location" in told.output) == (1, True)
