"""A segment as its manifest names it: pages with their checksums, sections with their epochs.

An entry is all that a reader trusts. What it does not name does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millrace.errors import MalformedError
from millrace.fields import UINT64, Fields, integer, items
from millrace.ids import Epoch
from millrace.keygroups import parse_ranges
from millrace.keygroups.groups import MAX_KEY_GROUPS
from millrace.log.segment.entry_fields import pages_of, path_within, sums_of

SEGMENT_VERSION = 1
"""What a segment looks like, whatever fingerprints are in it."""
INDEX_KEY = b"millrace.index"
"""Schema metadata that says which rows belong to which key group."""


@dataclass(frozen=True)
class Section:
    """What the manifest says of a section: epochs (first, last], the key groups it speaks for."""

    first: Epoch
    last: Epoch
    covers: str
    rows: int
    first_page: int
    pages: int

    @property
    def is_base(self) -> bool:
        return self.first == 0

    def to_json(self) -> list[Any]:
        return [self.first, self.last, self.covers, self.rows, self.first_page, self.pages]

    @staticmethod
    def from_json(data: Any, key_groups: int = MAX_KEY_GROUPS) -> Section:
        first, last, covers, rows, first_page, pages = items(data, "a section", 6)
        parse_ranges(covers, key_groups)
        return Section(
            Epoch(integer(first, "the first epoch of a section")),
            Epoch(integer(last, "the last epoch of a section", low=first)),
            covers,
            integer(rows, "the rows of a section"),
            integer(first_page, "the first page of a section"),
            integer(pages, "the pages of a section"),
        )


@dataclass(frozen=True)
class SegmentEntry:
    """A segment as its manifest names it."""

    path: str
    epoch: Epoch
    """The epoch that added it."""
    bytes: int
    frame_hash: int
    """Checksum of all bytes outside the pages."""
    pages: tuple[tuple[int, int, int], ...]
    """(offset, length, checksum) of each page. All checksums are XXH3, 64 bits."""
    sections: tuple[Section, ...]
    columns: tuple[str, ...] = ()
    """Per page, checksums of its header and of each column, so that a column can be read alone;
    empty if the segment was written without. See `integrity.column_sums`."""

    def is_alike(self, other: SegmentEntry) -> bool:
        """Whether another manifest says the same of the file and its sections."""
        return replace(self, columns=()) == replace(other, columns=())

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "path": self.path,
            "epoch": self.epoch,
            "bytes": self.bytes,
            "hash": self.frame_hash,
            "pages": [list(page) for page in self.pages],
            "sections": [section.to_json() for section in self.sections],
        }
        if self.columns:
            data["columns"] = list(self.columns)
        return data

    @staticmethod
    def from_json(data: Any, key_groups: int = MAX_KEY_GROUPS) -> SegmentEntry:
        fields = Fields(data, "a segment")
        size = fields.integer("bytes")
        pages = pages_of(fields.items("pages"), size)
        columns = fields.items("columns", len(pages)) if fields.has("columns") else []
        epoch = fields.integer("epoch", 1)
        sections = tuple(Section.from_json(s, key_groups) for s in fields.items("sections"))
        for section in sections:
            if section.first_page + section.pages > len(pages) or section.last > epoch:
                raise MalformedError(f"a section has pages or epochs that {epoch} has not")
        return SegmentEntry(
            path=path_within(fields.text("path")),
            epoch=Epoch(epoch),
            bytes=size,
            frame_hash=fields.integer("hash", 0, UINT64),
            pages=pages,
            sections=sections,
            columns=tuple(sums_of(column) for column in columns),
        )
