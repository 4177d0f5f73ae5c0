"""Where the rows of a segment's key groups are: its index, which is in the metadata of its schema.

The index says, per section, which key groups have rows, how many each, and how many key groups are
in each page. It is checked against what the manifest says of the section before anything is read
by it: kernels follow it without looking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace import fields
from millrace.arrays import Int64Array
from millrace.errors import MalformedError
from millrace.fields import Fields
from millrace.keygroups import parse_ranges

if TYPE_CHECKING:
    from millrace.log.segment.entry import Section


@dataclass(frozen=True)
class GroupIndex:
    """Where a section's rows are: arrays of equal length, one element per key group, ascending."""

    groups: Int64Array
    pages: Int64Array
    """Which of the section's pages, from 0."""
    starts: Int64Array
    """The key group's first row in that page."""
    rows: Int64Array

    def find(self, group: int) -> int | None:
        """The element of a key group; None if it has no rows here."""
        at = int(np.searchsorted(self.groups, group))
        return at if at < len(self.groups) and self.groups[at] == group else None

    def rows_of_page(self, page: int) -> int:
        return int(self.rows[self.pages == page].sum())


def parse_index(data: bytes, sections: Sequence[Section]) -> tuple[int, list[Any]]:
    """The format of a segment, and what its index says of each section."""
    index = Fields(fields.parse(data), "the index")
    return index.integer("format", 1), index.items("sections", len(sections))


def group_index_of(data: Any, section: Section) -> GroupIndex:
    """Where the rows of a section are, if that fits what the manifest says of it."""
    index = Fields(data, "a section of the index")
    groups = parse_ranges(index.text("groups"))
    rows = _counts(index.items("rows", len(groups)), section.rows)
    per_page = _counts(index.items("pages", section.pages), len(groups))
    epochs = (index.integer("first"), index.integer("last"))
    if epochs != (section.first, section.last):
        raise MalformedError(f"a section is of epochs {epochs}, the manifest has others")
    if not np.isin(groups, parse_ranges(section.covers), assume_unique=True).all():
        raise MalformedError("a section has key groups that it does not speak for")
    pages = np.repeat(np.arange(len(per_page)), per_page)
    before = np.cumsum(rows) - rows
    firsts = np.cumsum(per_page) - per_page
    return GroupIndex(groups, pages, before - before[firsts][pages], rows)


def _counts(data: list[Any], total: int) -> Int64Array:
    """How many of something there are in each of several, none of them empty."""
    counts = [fields.integer(count, "a count in the index", 1, total) for count in data]
    if sum(counts) != total:
        raise MalformedError(f"the counts in the index add up to {sum(counts)}, not to {total}")
    return np.asarray(counts, np.int64)
