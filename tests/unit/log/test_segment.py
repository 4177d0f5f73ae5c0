"""Segments: what is written is read, and no damaged byte is ever taken for data."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from tests.unit.driving import changed_batch, fingerprint, words

from millrace.errors import (
    CorruptSegmentError,
    MalformedError,
    MissingFileError,
    NewerFormatError,
    StoreError,
)
from millrace.ids import Epoch
from millrace.keygroups import groups_of
from millrace.log import copies as copies_module
from millrace.log.segment import (
    Section,
    SectionData,
    Segment,
    SegmentEntry,
    encode_segment,
    encoding,
    open_segment,
    page_is_whole,
    segment_path,
    with_parts,
)
from millrace.log.segment import reading as segment_reading
from millrace.log.segment.entry import INDEX_KEY
from millrace.log.segment.integrity import column_spans
from millrace.log.store import Store, open_store

KEY_GROUPS = 4
SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string())])
PATH = segment_path("op", Epoch(3), 1, "attempt")


def section(first: int, last: int, numbers: range) -> SectionData:
    rows = changed_batch(
        SCHEMA,
        {fingerprint(k): None if k % 5 == 4 else (k, "x" * (k % 3)) for k in numbers},
    )
    hi = words(rows.column(0).to_pylist())
    groups, counts = np.unique(groups_of(hi, KEY_GROUPS), return_counts=True)
    return SectionData(Epoch(first), Epoch(last), groups, groups, counts, rows)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PAGE_ROWS", 4)


@pytest.fixture
def sections() -> list[SectionData]:
    return [section(2, 3, range(9)), section(0, 2, range(20, 32))]


def encoded(sections: list[SectionData]) -> tuple[bytes, SegmentEntry]:
    buffer, entry = encode_segment(PATH, Epoch(3), sections)
    return buffer.to_pybytes(), entry


def pages(segment: Segment) -> list[pa.RecordBatch]:
    return [segment.page(i) for i in range(len(segment.entry.pages))]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = str(tmp_path) if request.param == "local" else "memory://segments-test"
    yield open_store(url)
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/segments-test", recursive=True)


@pytest.mark.usefixtures("small_pages")
def test_round_trip(store: Store, sections: list[SectionData]) -> None:
    data, entry = encoded(sections)
    store.put(PATH, data)
    segment = open_segment(store, SegmentEntry.from_json(entry.to_json()))
    assert segment.entry == entry
    assert segment.schema.equals(sections[0].rows.schema)
    assert len(entry.pages) > len(sections)
    at = 0
    for number, wrote in enumerate(sections):
        described = entry.sections[number]
        assert described.first_page == at
        at += described.pages
        assert (described.first, described.last) == (wrote.first, wrote.last)
        assert described.rows == wrote.rows.num_rows
        index = segment.group_index(number)
        assert index.groups.tolist() == wrote.groups.tolist()
        assert index.rows.tolist() == wrote.counts.tolist()
        read = [segment.page(described.first_page + i) for i in range(described.pages)]
        assert pa.Table.from_batches(read).equals(pa.Table.from_batches([wrote.rows]))
        for i, group in enumerate(index.groups.tolist()):
            page = read[index.pages[i]].column(0).to_pylist()
            part = words(page[index.starts[i] : index.starts[i] + index.rows[i]])
            assert set(groups_of(part, KEY_GROUPS).tolist()) == {group}
            assert index.find(group) == i
        assert index.rows.sum() == described.rows
        assert index.find(KEY_GROUPS) is None


class Made:
    """Rows that are made when they are asked for."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.schema = rows.schema
        self.num_rows = rows.num_rows
        self.slice = rows.slice


@pytest.fixture
def spilled(sections: list[SectionData], monkeypatch: pytest.MonkeyPatch) -> list[SectionData]:
    monkeypatch.setattr(encoding, "SPILL_ROWS", 11)
    return [sections[0], dataclasses.replace(sections[1], rows=Made(sections[1].rows))]


@pytest.mark.usefixtures("small_pages")
def test_a_large_one_is_put_together_in_a_file_and_is_the_same(
    sections: list[SectionData],
    spilled: list[SectionData],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = encoded(sections)
    assert encoded(spilled) == small
    # Without a folder for it, memory has to do.
    blocked = tmp_path / "blocked"
    blocked.touch()
    monkeypatch.setenv(copies_module.VARIABLE, str(blocked / "below"))
    assert encoded(spilled) == small
    assert "no folder for large segments" in caplog.text


def test_no_space_for_a_large_one_is_an_error_that_says_where(
    spilled: list[SectionData], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("wb", 0) as full:
        monkeypatch.setattr(copies_module, "_nameless", lambda: full)
        with pytest.raises(StoreError, match=r"assemble a segment.*No space left.*CACHE_DIR"):
            encoded(spilled)


def test_another_arrow_reader_reads_it(tmp_path: Path, sections: list[SectionData]) -> None:
    data, _ = encoded(sections)
    path = tmp_path / "segment.arrow"
    path.write_bytes(data)
    table = pa.ipc.open_file(path).read_all()
    assert table.num_rows == sum(s.rows.num_rows for s in sections)
    assert INDEX_KEY in table.schema.metadata


def test_a_local_segment_is_mapped_not_copied(tmp_path: Path, sections: list[SectionData]) -> None:
    store = open_store(str(tmp_path))
    data, entry = encoded(sections)
    store.put(PATH, data)
    before = pa.total_allocated_bytes()
    batches = pages(open_segment(store, entry))
    assert pa.total_allocated_bytes() == before
    assert sum(b.num_rows for b in batches) == sum(s.rows.num_rows for s in sections)


@pytest.mark.usefixtures("small_pages")
def test_every_flipped_byte_is_noticed(sections: list[SectionData]) -> None:
    """Exhaustive: each byte, one bit and all bits. Open and all pages, or an error; the pages that
    are not damaged can still be read."""
    data, entry = encoded(sections)
    whole = [batch.to_pydict() for batch in pages(Segment(entry, memoryview(data), "here"))]
    for at in range(len(data)):
        for mask in (1 << at % 8, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            bad = [i for i, (o, n, _) in enumerate(entry.pages) if o <= at < o + n]
            if not bad:
                with pytest.raises(CorruptSegmentError, match="here is damaged outside its pages"):
                    Segment(entry, memoryview(bytes(damaged)), "here")
                continue
            segment = Segment(entry, memoryview(bytes(damaged)), "here")
            for number, expected in enumerate(whole):
                if number in bad:
                    with pytest.raises(CorruptSegmentError, match=rf"page {number} of .*restore"):
                        segment.page(number)
                elif at % 16 == 0:
                    assert segment.page(number).to_pydict() == expected


def test_every_truncation_is_noticed(sections: list[SectionData], tmp_path: Path) -> None:
    data, entry = encoded(sections)
    for length in range(len(data)):
        with pytest.raises(CorruptSegmentError, match=f"has {length} bytes.*says {len(data)}"):
            Segment(entry, memoryview(data[:length]), "here")
    with pytest.raises(CorruptSegmentError, match=f"has {len(data) + 1} bytes"):
        Segment(entry, memoryview(data + b"\0"), "here")
    store = open_store(str(tmp_path))
    store.put(PATH, b"")
    with pytest.raises(CorruptSegmentError, match="has 0 bytes"):
        open_segment(store, entry)


def test_another_segment_in_its_place_is_noticed(sections: list[SectionData]) -> None:
    _, entry = encoded(sections)
    other, _ = encoded([section(2, 3, range(1, 10)), section(0, 2, range(21, 33))])
    if len(other) != entry.bytes:
        other = other.ljust(entry.bytes, b"\0")[: entry.bytes]
    with pytest.raises(CorruptSegmentError):
        pages(Segment(entry, memoryview(other), "here"))


def test_a_newer_format_is_refused(
    monkeypatch: pytest.MonkeyPatch, sections: list[SectionData]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(encoding, "SEGMENT_VERSION", 99)
        data, entry = encoded(sections)
    with pytest.raises(NewerFormatError, match=r"format 99.*Upgrade Millrace"):
        Segment(entry, memoryview(data), "here")


def test_a_missing_file_is_named(store: Store, sections: list[SectionData]) -> None:
    data, entry = encoded(sections)
    store.put(PATH, data)
    store.delete(PATH)
    with pytest.raises(MissingFileError, match=entry.path):
        open_segment(store, entry)
    store.put("segments/other", b"x")


def test_a_section_without_rows(sections: list[SectionData]) -> None:
    """An emptied key group is covered by a base that has no rows of it."""
    empty = dataclasses.replace(
        sections[1],
        covers=np.arange(KEY_GROUPS),
        groups=np.empty(0, np.int64),
        counts=np.empty(0, np.int64),
        rows=sections[1].rows.slice(0, 0),
    )
    data, entry = encoded([empty])
    segment = Segment(entry, memoryview(data), "here")
    assert entry.sections == (Section(Epoch(0), Epoch(2), "0-3", 0, 0, 0),)
    assert entry.pages == ()
    assert len(segment.group_index(0).groups) == 0
    assert segment.group_index(0).find(0) is None
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptSegmentError):
            Segment(entry, memoryview(bytes(damaged)), "here")


def test_attempts_get_names_of_their_own() -> None:
    assert PATH == "segments/op/000000000003-0001-attempt.arrow"
    assert segment_path("op", Epoch(3), 1, "other") != PATH


@pytest.mark.parametrize(
    ("counts", "cuts"),
    [
        ([], []),
        ([3], [(0, 1, 3)]),
        ([4], [(0, 1, 4)]),
        ([9], [(0, 1, 9)]),
        ([1, 1, 1, 1], [(0, 4, 4)]),
        ([1, 2, 2, 1], [(0, 3, 5), (3, 4, 1)]),
        ([5, 1, 1], [(0, 1, 5), (1, 3, 2)]),
        ([3, 4, 1], [(0, 2, 7), (2, 3, 1)]),
    ],
)
@pytest.mark.usefixtures("small_pages")
def test_pages_end_with_the_key_group_that_fills_them(
    counts: list[int], cuts: list[tuple[int, int, int]]
) -> None:
    assert encoding._page_cuts(np.asarray(counts, np.int64)) == cuts


def test_what_cannot_be_mapped_is_named(tmp_path: Path, sections: list[SectionData]) -> None:
    (tmp_path / PATH).mkdir(parents=True)
    with pytest.raises(StoreError, match=f"segment {tmp_path}/{PATH} cannot be opened: No such de"):
        open_segment(open_store(str(tmp_path)), encoded(sections)[1])


def test_checksums_are_those_that_the_format_documents(sections: list[SectionData]) -> None:
    """Other programs read segments, and other versions of this one."""

    def low_half(part: bytes) -> int:
        return xxhash.xxh3_64_intdigest(part) % 2**32

    data, entry = encoded(sections)
    outside, at = b"", 0
    for (offset, length, checksum), columns in zip(entry.pages, entry.columns, strict=True):
        outside, at = outside + data[at:offset], offset + length
        page = data[offset:at]
        assert checksum == xxhash.xxh3_64_intdigest(page)
        buffer = pa.py_buffer(page)
        expected = [low_half(page[: 8 + int.from_bytes(page[4:8], "little")])]
        for column in pa.ipc.read_record_batch(buffer, sections[0].rows.schema).columns:
            found = [b for b in column.buffers() if b is not None and b.size]
            start = found[0].address - buffer.address
            end = found[-1].address + found[-1].size - buffer.address
            expected.append(low_half(page[start:end]))
        assert np.frombuffer(base64.b64decode(columns), "<u4").tolist() == expected
    assert entry.frame_hash == xxhash.xxh3_64_intdigest(outside + data[at:])


class TestColumns:
    """Columns of a page that are verified alone."""

    @pytest.fixture
    def local(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path))

    def damaged(self, store: Store, sections: list[SectionData], names: list[str]) -> Segment:
        """A segment in whose first page the bytes of some columns are wrong."""
        data, entry = encoded(sections)
        page = pa.py_buffer(data[entry.pages[0][0] : sum(entry.pages[0][:2])])
        spans = column_spans(page, sections[0].rows.schema)
        wrong = bytearray(data)
        for name in names:
            start, end = spans[sections[0].rows.schema.get_field_index(name)]
            assert start < end
            wrong[entry.pages[0][0] + end - 1] ^= 1
        store.put(PATH, bytes(wrong))
        return open_segment(store, entry)

    def test_a_column_is_right_whatever_the_others_are(
        self, local: Store, sections: list[SectionData]
    ) -> None:
        segment = self.damaged(local, sections, ["s"])
        page = segment.page(0, ["_hi", "n"])
        assert page.column("n").equals(sections[0].rows.slice(0, page.num_rows).column("n"))
        where = f"{local.url}/{PATH}"
        message = rf"column 's' of page 0 of segment {where} \(bytes \d+ to \d+\) is damaged"
        for names in (["s"], ["n", "s"]):
            with pytest.raises(CorruptSegmentError, match=message):
                segment.page(0, names)
        with pytest.raises(CorruptSegmentError, match=f"page 0 of segment {where}"):
            segment.page(0)

    def test_the_header_is_verified_with_any_column(
        self, local: Store, sections: list[SectionData]
    ) -> None:
        data, entry = encoded(sections)
        wrong = bytearray(data)
        wrong[entry.pages[0][0] + 20] ^= 1
        local.put(PATH, bytes(wrong))
        with pytest.raises(CorruptSegmentError, match="the header of page 0 of segment"):
            open_segment(local, entry).page(0, ["n"])

    def test_what_was_verified_is_not_looked_at_again(
        self, local: Store, sections: list[SectionData]
    ) -> None:
        segment = self.damaged(local, sections, [])
        segment.page(0, ["n"])
        once = segment.read_bytes
        assert 0 < once < segment.entry.pages[0][1]
        segment.page(0, ["n"])
        assert segment.read_bytes == once
        segment.page(0, ["n", "s"])
        assert once < segment.read_bytes < segment.entry.pages[0][1]
        segment.page(0)
        assert segment.read_bytes > segment.entry.pages[0][1]

    def test_without_sums_of_columns_the_whole_page_is_verified(
        self, local: Store, sections: list[SectionData]
    ) -> None:
        segment = self.damaged(local, sections, ["s"])
        segment.entry = dataclasses.replace(segment.entry, columns=())
        with pytest.raises(CorruptSegmentError, match="page 0 of segment"):
            segment.page(0, ["n"])

    @pytest.mark.usefixtures("small_pages")
    def test_columns_of_a_remote_segment_are_fetched_alone(
        self, sections: list[SectionData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(copies_module.VARIABLE, str(tmp_path / "copies"))
        monkeypatch.setattr(copies_module, "COALESCE", 0)
        monkeypatch.setattr(segment_reading, "SMALL", 0)
        monkeypatch.setattr(segment_reading, "HEADER", 64)
        data, entry = encoded(sections)
        remote = open_store(f"memory://{tmp_path}")
        remote.put(PATH, data)
        asked: list[tuple[int, int]] = []
        real = remote.read_range

        def read_range(path: str, offset: int, length: int) -> bytes:
            asked.append((offset, length))
            return real(path, offset, length)

        remote.read_range = read_range  # type: ignore[method-assign]
        segment = open_segment(remote, entry)
        frame = sum(length for _, length in asked)
        assert frame == entry.bytes - sum(length for _, length, _ in entry.pages)
        asked.clear()
        first = sections[0].rows.slice(0, 4)
        assert segment.page(0, ["n"]).column("n").equals(first.column("n"))
        assert sum(length for _, length in asked) < entry.pages[0][1]
        asked.clear()
        segment.fetch_columns([0], ["n"])
        assert asked == []
        segment.fetch_columns([0, 1], ["n"])
        assert {offset >= entry.pages[1][0] for offset, _ in asked} == {True}
        asked.clear()
        segment.prefetch([2])
        segment.prefetch([2])
        assert asked == [entry.pages[2][:2]]


def test_a_section_is_found_in_its_json() -> None:
    described = Section(Epoch(1), Epoch(3), "0-2", 10, 4, 2)
    assert described.to_json() == [1, 3, "0-2", 10, 4, 2]
    assert Section.from_json(described.to_json()) == described
    assert not described.is_base
    assert Section(Epoch(0), Epoch(3), "0", 1, 0, 1).is_base


@pytest.mark.parametrize(
    "path",
    [
        "segments/x",
        "manifests/op/x",
        "segments/op/../x",
        "segments/./x",
        "segments//x",
        "/segments/op/x",
        "segments/op/x\0",
    ],
)
def test_a_manifest_cannot_name_files_elsewhere(path: str, sections: list[SectionData]) -> None:
    data = encoded(sections)[1].to_json()
    with pytest.raises(MalformedError, match=f"names the segment {re.escape(repr(path))}"):
        SegmentEntry.from_json(data | {"path": path})


def test_a_file_is_put_together_of_two(sections: list[SectionData]) -> None:
    data, entry = encoded(sections)
    offset = entry.pages[0][0]
    old = bytearray(data)
    old[offset + 30] ^= 1
    new = bytearray(data)
    new[entry.pages[1][0] + 30] ^= 1
    assert not page_is_whole(entry, 0, bytes(old))
    assert page_is_whole(entry, 1, bytes(old))
    assert with_parts(entry, bytes(old), bytes(new)) == data
    assert with_parts(entry, bytes(new), bytes(new)) is None
    assert with_parts(entry, b"", data) == data
    assert with_parts(entry, bytes(old), data + b"x") is None
    framed = bytes([data[0] ^ 1]) + data[1:]
    assert with_parts(entry, data, framed) is None
