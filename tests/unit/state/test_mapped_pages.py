"""Pages in use: shared by key groups, released with the last of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, changed_batch

from millrace.errors import CorruptSegmentError
from millrace.log.segment import SYSTEM_FIELDS, encoding
from millrace.log.trail import Piece
from millrace.state.addresses import address_of
from millrace.state.mapped_pages import MappedPages

SCHEMA = pa.schema([("n", pa.int64())])
TABLE = pa.schema([*SYSTEM_FIELDS, *SCHEMA])
ROWS = {(group << 62 | n, n): (10 * group + n,) for group in range(4) for n in range(group + 1)}


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """Four key groups of one to four rows: two pages, of three key groups and of one."""
    monkeypatch.setattr(encoding, "PAGE_ROWS", 4)
    made = Location(str(tmp_path), SCHEMA, 4)
    made.step(ROWS)
    return made


def piece_of(location: Location) -> Piece:
    piece = location.trail.operator(OPERATOR).base[0]
    assert piece is not None
    return piece


def mapped(location: Location, *, by_column: bool = False) -> MappedPages:
    return MappedPages(
        location.store,
        TABLE,
        location.journal.identity.key_groups,
        owned=False,
        by_column=by_column,
    )


def test_a_page_is_mapped_once_for_all_its_key_groups(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    index = pages.group_index(piece)
    assert index.pages.tolist() == [0, 0, 0, 1]
    first = pages.use(piece, index, np.asarray([0]))
    again = pages.use(piece, index, np.asarray([1, 2]))
    assert again is first
    assert first.rows == {0: 1, 1: 2, 2: 3}
    assert (first.first, first.last) == (0, 1)
    other = pages.use(piece, index, np.asarray([3]))
    assert other.chunk != first.chunk
    assert pages.chunks_of([piece.id]).tolist() == [first.chunk, other.chunk]
    assert pages.chunks_of([("other", 0)]).tolist() == []


def test_the_last_key_group_releases_a_page(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    index = pages.group_index(piece)
    page = pages.use(piece, index, np.asarray([0, 1]))
    assert pages.let_go({0, 2}) == []
    assert page.rows == {1: 2}
    assert pages.let_go({1}) == [page.chunk]
    assert pages.columns.chunks() == {}


def test_pages_outside_some_epochs_are_kept(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    page = pages.use(piece, pages.group_index(piece), np.asarray([0]))
    assert pages.let_go({0}, 0, 0) == []
    assert pages.let_go({0}, 1, 1) == []
    assert pages.let_go({0}, 0, 1) == [page.chunk]


def test_rows_in_memory_are_a_page(location: Location) -> None:
    pages = mapped(location)
    batch = changed_batch(SCHEMA, {(1, 1): (5,), (2, 2): None})
    chunk = pages.hold(batch, np.asarray([0]))
    assert dict(pages.users()) == {chunk: [0]}
    rows = np.asarray([address_of(chunk, 1), address_of(chunk, 0)], np.uint64)
    assert pages.gather(rows, ["n"])[0].to_pylist() == [None, 5]
    # It is no page of the log, so key groups do not let go of it.
    assert pages.let_go({0}) == []
    pages.release(chunk)
    assert pages.columns.chunks() == dict(pages.users()) == {}


def test_segments_are_closed_when_nothing_of_them_is_used(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    pages.use(piece, pages.group_index(piece), np.asarray([0]))
    assert pages.read_bytes == piece.segment.pages[0][1]
    pages.close_segments([])
    assert pages.read_bytes > 0
    pages.let_go({0})
    pages.close_segments([piece.segment.path])
    assert pages.read_bytes > 0
    pages.close_segments([])
    assert pages.read_bytes == 0


def test_the_share_of_key_groups_in_the_pages(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    index = pages.group_index(piece)
    for chosen in ([0, 1, 2], [3]):
        pages.use(piece, index, np.asarray(chosen))
    small, large = (batch.nbytes for batch in pages.columns.chunks().values())
    assert pages.bytes_of(np.asarray([0])) == round(small / 6)
    assert pages.bytes_of(np.asarray([1, 3])) == round(small * 2 / 6 + large)
    assert pages.bytes_of(np.empty(0, np.int64)) == 0


@pytest.mark.parametrize("by_column", [False, True])
def test_columns_of_a_page_in_use(location: Location, by_column: bool) -> None:
    pages, piece = mapped(location, by_column=by_column), piece_of(location)
    page = pages.use(piece, pages.group_index(piece), np.asarray([3]))
    opened = pages.read_bytes
    assert (opened < piece.segment.pages[1][1]) is by_column
    assert pages.column(page.chunk, "n").to_pylist() == [30, 31, 32, 33]
    assert (pages.read_bytes > opened) is by_column
    rows = np.asarray([0, address_of(page.chunk, 2)], np.uint64)
    assert pages.gather(rows, ["n"])[0].to_pylist() == [None, 32]
    assert not pages.is_remote
    pages.load(np.asarray([3]), ["n"])


def test_a_file_that_is_cut_short_is_noticed(location: Location) -> None:
    pages, piece = mapped(location), piece_of(location)
    pages.group_index(piece)
    pages.check_lengths()
    with open(Path(location.store.url) / piece.segment.path, "r+b") as file:
        file.truncate(piece.segment.bytes - 1)
    with pytest.raises(CorruptSegmentError, match=f"cut to {piece.segment.bytes - 1} bytes"):
        pages.check_lengths()
