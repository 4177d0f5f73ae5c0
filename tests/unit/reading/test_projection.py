"""A query reads the columns and the key groups it needs, and no others."""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from tests.unit.reading.streams import Counted, as_oracle, draw

import millrace as mr
from millrace.errors import CorruptSegmentError
from millrace.ids import Epoch
from millrace.log import copies as copies_module
from millrace.log.segment import SegmentEntry, encoding
from millrace.log.segment import reading as segment_reading
from millrace.log.segment.integrity import column_spans
from millrace.log.store import FsspecStore
from millrace.state.mapped_pages import MappedPages


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """About 4,000 keys in pages of some hundred rows, with deltas on top."""
    monkeypatch.setattr(encoding, "PAGE_ROWS", 200)
    counted = Counted(str(tmp_path / "location"))
    rng = random.Random(51)
    counted.send(draw(rng, 8000, 1000))
    counted.send(draw(rng, 300, 1000))
    return counted


def read_by(stream: Counted, query: str) -> int:
    """Bytes of pages that a query of a fresh reader looks at."""
    with mr.open(stream.url) as reader:
        reader.sql(query)
        return reader.snapshot.read_bytes


def page_bytes(stream: Counted) -> int:
    return sum(length for e in stream.trail.segments() for _, length, _ in e.pages)


def test_one_column_is_not_the_others(stream: Counted) -> None:
    rows = sum(s.rows for e in stream.trail.segments() for s in e.sections)
    everything = read_by(stream, "select * from totals")
    assert everything <= page_bytes(stream)
    headers = everything - read_by(stream, "select room, device, n, total, average from totals")
    assert headers == 0
    one = read_by(stream, "select sum(n) from totals")
    two = read_by(stream, "select sum(n), sum(total) from totals")
    # Each is 64 bits a row, and so is what a second one adds.
    assert 8 * rows <= two - one <= 8.2 * rows
    assert one < everything / 2
    # The average is made of two columns, and a predicate's column is read as well.
    average = read_by(stream, "select max(average) from totals")
    assert 8 * rows <= average - one <= 8.2 * rows
    assert read_by(stream, "select count(*) from totals where n > 3") == one
    assert one - read_by(stream, "select count(*) from totals") >= 8 * rows


def test_one_key_is_one_key_group(stream: Counted) -> None:
    everything = read_by(stream, "select * from totals")
    key = next(k for k in stream.history[2] if k[0] == "hall")
    one = read_by(stream, f"select * from totals where room = 'hall' and device = {key[1]}")
    # Of 16 key groups, the page or two that hold one of them.
    assert 0 < one < everything / 8
    half = read_by(stream, "select * from by_group.totals where _key_group < 8")
    assert 0.35 * everything < half < 0.65 * everything
    group = read_by(stream, "select * from by_group.totals where _key_group = 3")
    assert 0 < group < everything / 8
    assert read_by(stream, "select * from by_group.totals where _key_group = 99") == 0
    with mr.open(stream.url) as reader:
        reader.to_arrow(key_groups=[3], columns=["n"])
        assert 0 < reader.snapshot.read_bytes < group


class Counting(FsspecStore):
    """A remote store that counts what is read of segments."""

    fetched = 0

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        found = super().read_range(path, offset, length)
        Counting.fetched += len(found)
        return found


def test_a_remote_store_is_asked_for_no_more(
    stream: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(copies_module.VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(segment_reading, "SMALL", 0)
    monkeypatch.setattr(segment_reading, "HEADER", 1024)
    monkeypatch.setattr(copies_module, "COALESCE", 0)
    monkeypatch.setattr("millrace.reading.reader.open_store", Counting)
    url = f"memory://projection-{os.getpid()}"
    fs = fsspec.filesystem("memory")
    fs.put(stream.url, url.removeprefix("memory:/"), recursive=True)

    def fetched(query: str) -> int:
        monkeypatch.setenv(copies_module.VARIABLE, str(tmp_path / f"copies-{hash(query)}"))
        Counting.fetched = 0
        with mr.open(url) as reader:
            found = reader.sql(query)
            with mr.open(stream.url) as local:
                order = [(name, "ascending") for name in found.column_names]
                assert found.sort_by(order).equals(local.sql(query).sort_by(order))
        return Counting.fetched

    everything = fetched("select * from totals")
    assert fetched("select sum(n) as n from totals") < 0.7 * everything
    # Once more: what is on this machine is not fetched again.
    before = Counting.fetched
    with mr.open(url) as reader:
        reader.sql("select sum(n) as n from totals")
    assert Counting.fetched == before
    fs.rm(url.removeprefix("memory:/"), recursive=True)


def test_copies_of_what_is_no_longer_live_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(copies_module.VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr("millrace.reading.snapshot.PRUNE_EVERY", 4)
    stream = Counted(f"memory://pruned-{os.getpid()}")
    rng = random.Random(5)

    def copies() -> set[str]:
        root = Path(copies_module.copies_of(stream.journal.store))
        files = (f for f in root.rglob("*") if f.is_file())
        return {str(f.relative_to(root)).rpartition(".")[0] for f in files}

    def live() -> set[str]:
        return {entry.path for entry in stream.trail.segments()}

    for _ in range(12):
        stream.send(draw(rng, 300))
        assert as_oracle(mr.open(stream.url).to_arrow()) == stream.history[stream.trail.epoch]
    past = {e.path for n in range(1, 12) for e in stream.journal.trail(Epoch(n)).segments()}
    assert past - live()
    following = mr.open(stream.url)
    assert copies() <= live()
    following.to_arrow()
    for _ in range(4):
        stream.send(draw(rng, 300))
    assert copies() - live()
    # A reader that follows deletes them as well, but not at every epoch.
    following.refresh()
    assert copies() <= live()
    assert as_oracle(following.to_arrow()) == stream.history[stream.trail.epoch]
    stream.send(draw(rng, 300))
    following.refresh()
    # One that looks at an earlier epoch leaves the others' copies alone.
    before = copies()
    with mr.open(stream.url, epoch=5) as earlier:
        assert as_oracle(earlier.to_arrow()) == stream.history[5]
    assert before < copies()


@pytest.mark.parametrize("column", ["n", "total"])
def test_damage_is_found_when_the_column_is_read(stream: Counted, column: str) -> None:
    entry = max(stream.trail.segments(), key=lambda e: e.bytes)
    data = bytearray(Path(stream.url, entry.path).read_bytes())
    offset, length, _ = entry.pages[0]
    page = pa.py_buffer(bytes(data[offset : offset + length]))
    schema = pa.ipc.open_file(pa.py_buffer(bytes(data))).schema
    spans = dict(zip(schema.names, column_spans(page, schema), strict=True))
    data[offset + spans[column][0]] ^= 1
    Path(stream.url, entry.path).write_bytes(bytes(data))
    other = {"n": "total", "total": "n"}[column]
    with mr.open(stream.url) as reader:
        reader.sql(f"select sum({other}) from totals")
        with pytest.raises(CorruptSegmentError, match=f"column '{column}' of page 0 of segment"):
            reader.sql(f"select sum({column}) from totals")
        with pytest.raises(CorruptSegmentError, match="restore it from a backup"):
            reader.to_arrow()


def test_segments_without_checksums_of_columns_are_verified_whole(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.cache
    def old(entry: Any) -> Any:
        data = entry.to_json()
        data.pop("columns", None)
        return SegmentEntry.from_json(data)

    real = MappedPages._segment
    monkeypatch.setattr(MappedPages, "_segment", lambda pages, entry: real(pages, old(entry)))
    assert read_by(stream, "select sum(n) from totals") == page_bytes(stream)
