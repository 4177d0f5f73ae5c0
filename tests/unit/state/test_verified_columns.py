"""Columns are verified when they are first needed, once, and never used before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

from millrace.log.segment import DELETED, HI, LO, OWNER_HI, OWNER_LO, open_segment
from millrace.state.verified_columns import VerifiedColumns

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
FINDING = {HI, LO, DELETED}


class Recorded:
    """A segment that records what is asked of it."""

    def __init__(self, segment: Any) -> None:
        self._segment = segment
        self.entry = segment.entry
        self.schema = segment.schema
        self.asked: list[tuple[int, set[str] | None]] = []

    def page(self, number: int, names: Any = None) -> pa.RecordBatch:
        self.asked.append((number, None if names is None else set(names)))
        return self._segment.page(number, names)


@pytest.fixture
def segment(tmp_path: Path) -> Any:
    location = Location(str(tmp_path), SCHEMA)
    location.step({fingerprint(n): (n, "x") for n in range(10)})
    (entry,) = location.trail.segments()
    return Recorded(open_segment(location.store, entry))


def opened(segment: Any, schema: pa.Schema | None = None) -> VerifiedColumns:
    columns = VerifiedColumns(segment.schema if schema is None else schema, owned=False)
    columns.page(segment, 0)
    columns.opened(3, segment, 0)
    return columns


def test_what_finds_rows_is_verified_first() -> None:
    assert VerifiedColumns(SCHEMA, owned=False).always == FINDING
    assert VerifiedColumns(SCHEMA, owned=True).always == FINDING | {OWNER_HI, OWNER_LO}


def test_a_page_is_opened_with_what_finds_rows_and_others_follow_once(segment: Any) -> None:
    columns = opened(segment)
    assert segment.asked == [(0, FINDING)]
    columns.check(3, [HI, LO])
    assert len(segment.asked) == 1
    columns.check(3, [HI, "n"])
    columns.check(3, ["n"])
    columns.check(3, ["n", "s"])
    assert segment.asked[1:] == [(0, {"n"}), (0, {"s"})]


def test_no_row_needs_no_column(segment: Any) -> None:
    columns = opened(segment)
    columns.check(0, ["n"])
    assert len(segment.asked) == 1
    with pytest.raises(KeyError):
        columns.check(4, ["n"])


def test_several_chunks_are_fetched(segment: Any) -> None:
    columns = opened(segment)
    columns.opened(5, segment, 0)
    columns.fetch([3, 5], ["s"])
    assert segment.asked[1:] == [(0, {"s"})] * 2


def test_a_page_whose_types_have_changed_is_verified_as_a_whole(segment: Any) -> None:
    wider = pa.schema([f.with_type(pa.float64()) if f.name == "n" else f for f in segment.schema])
    columns = opened(segment, wider)
    columns.check(3, ["n", "s"])
    assert segment.asked == [(0, None)]


def test_a_column_that_was_dropped_since_does_not_matter(segment: Any) -> None:
    fewer = pa.schema([f for f in segment.schema if f.name != "s"])
    columns = opened(segment, fewer)
    columns.check(3, ["n"])
    assert segment.asked == [(0, FINDING), (0, {"n"})]


def test_a_segment_without_sums_of_columns_is_verified_as_a_whole(segment: Any) -> None:
    segment.entry = replace(segment.entry, columns=())
    columns = opened(segment)
    columns.check(3, ["n"])
    assert segment.asked == [(0, None)]
