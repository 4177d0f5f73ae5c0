"""A segment as its manifest names it: pages with their checksums, sections with their epochs.

An entry is all that a reader trusts. What it does not name does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace.errors import CorruptManifestError
from millrace.ids import Epoch
from millrace.log.layout import SEGMENTS

FORMAT_VERSION = 1
INDEX_KEY = b"millrace.index"
"""Schema metadata that says which rows belong to which key group."""
_NOT_A_PART = frozenset(("", ".", ".."))


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
    def from_json(data: Sequence[Any]) -> Section:
        first, last, covers, rows, first_page, pages = data
        return Section(Epoch(first), Epoch(last), covers, rows, first_page, pages)


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
    def from_json(data: dict[str, Any]) -> SegmentEntry:
        return SegmentEntry(
            path=_within(data["path"]),
            epoch=Epoch(data["epoch"]),
            bytes=data["bytes"],
            frame_hash=data["hash"],
            pages=tuple((o, n, c) for o, n, c in data["pages"]),
            sections=tuple(Section.from_json(s) for s in data["sections"]),
            columns=tuple(data.get("columns", ())),
        )


def _within(path: str) -> str:
    """The path, if it is one of this location's segments: a checksum does not make it safe."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != SEGMENTS or not _NOT_A_PART.isdisjoint(parts) or "\0" in path:
        raise CorruptManifestError(
            f"a manifest names the segment {path!r}, which is not below {SEGMENTS!r} of its "
            "location. Millrace writes no such manifest: do not trust this location."
        )
    return path
