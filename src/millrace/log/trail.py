"""What is live in the log at a version: the trail a replica follows.

For each operator and key group there is at most one **base** section and, after it, the **pieces**
(deltas and runs) whose last epoch is beyond the base. Applying base, then pieces in order of their
last epoch, gives the state. A trail advances by manifests only; it never looks into a segment.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace.errors import BrokenChainError, MalformedError
from millrace.fields import Fields, integer, items
from millrace.ids import Epoch, OperatorName, TableName
from millrace.keygroups import Assignment, format_ranges, parse_ranges
from millrace.log.manifest import Manifest, OperatorCommit, manifest_path
from millrace.log.segment import Section, SegmentEntry

PieceId = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Piece:
    """One section of one segment."""

    segment: SegmentEntry
    number: int

    @property
    def id(self) -> PieceId:
        return self.segment.path, self.number

    @property
    def section(self) -> Section:
        return self.segment.sections[self.number]

    @property
    def is_run(self) -> bool:
        """A run speaks for epochs before its own; a delta ends with the epoch that wrote it."""
        return not self.section.is_base and self.section.last < self.segment.epoch


@dataclass(eq=False)
class _LivePiece:
    piece: Piece
    covers: Int64Array
    """What the section covers, less what runs have taken over."""

    @property
    def order(self) -> tuple[int, int]:
        # A run is written an epoch after its last delta, and its rows are newer or the same.
        return self.piece.section.last, self.piece.segment.epoch

    def to_json(self, segment: int) -> list[Any]:
        covers = format_ranges(self.covers.tolist())
        short = [segment, self.piece.number]
        return short if covers == self.piece.section.covers else [*short, covers]


@dataclass(frozen=True)
class LivePieces:
    """The deltas and runs that are live at a version, in the order they apply.

    It does not change when the log advances.
    """

    pieces: tuple[tuple[Piece, Int64Array], ...]
    base_last: Int64Array
    """Per key group, the last epoch of its base."""

    def after(self, epoch: int = -1) -> Iterator[tuple[Piece, Int64Array]]:
        """Those added after an epoch, with the key groups they still speak for."""
        # Pieces are in order of their last epoch, and are added in that epoch or the one after it.
        start = bisect_left(self.pieces, epoch, key=lambda found: found[0].section.last)
        return self._live(f for f in self.pieces[start:] if f[0].segment.epoch > epoch)

    def newest_first(self) -> Iterator[tuple[Piece, Int64Array]]:
        """All of them, from the last to apply to the first."""
        return self._live(reversed(self.pieces))

    def _live(
        self, pieces: Iterable[tuple[Piece, Int64Array]]
    ) -> Iterator[tuple[Piece, Int64Array]]:
        for piece, covers in pieces:
            groups = covers[self.base_last[covers] < piece.section.last]
            if len(groups):
                yield piece, groups

    def paths(self) -> set[str]:
        return {piece.segment.path for piece, _ in self.pieces}


class OperatorLog:
    """The live sections of one operator."""

    def __init__(self, key_groups: int) -> None:
        self.key_groups = key_groups
        self.base: list[Piece | None] = [None] * key_groups
        self.base_last: Int64Array = np.zeros(key_groups, np.int64)
        self._pieces: list[_LivePiece] = []
        self.rows = 0
        self.assignment: Assignment | None = None

    def apply(self, commit: OperatorCommit) -> None:
        """Advance by what one epoch did."""
        for segment in commit.segments:
            for number, section in enumerate(segment.sections):
                self._add(Piece(segment, number), parse_ranges(section.covers))
        self._pieces.sort(key=lambda live: live.order)
        self.rows = commit.rows
        self.assignment = commit.assignment

    def _add(self, piece: Piece, covers: Int64Array) -> None:
        section = piece.section
        if section.is_base:
            for group in covers.tolist():
                self.base[group] = piece
            self.base_last[covers] = section.last
            self._pieces = [p for p in self._pieces if self._is_live(p)]
            return
        if piece.is_run:
            self._pieces = [p for p in self._pieces if self._outlives(p, section, covers)]
        self._pieces.append(_LivePiece(piece, covers))

    def _is_live(self, live: _LivePiece) -> bool:
        return bool((self.base_last[live.covers] < live.piece.section.last).any())

    def _outlives(self, live: _LivePiece, run: Section, covers: Int64Array) -> bool:
        """Let a run take key groups over from a piece; whether the piece still speaks for some."""
        section = live.piece.section
        if run.first <= section.first and section.last <= run.last:
            live.covers = np.setdiff1d(live.covers, covers, assume_unique=True)
        return self._is_live(live)

    def live(self) -> LivePieces:
        """The deltas and runs to apply after the bases."""
        pieces = tuple((live.piece, live.covers) for live in self._pieces)
        return LivePieces(pieces, self.base_last.copy())

    def segments(self) -> dict[str, SegmentEntry]:
        """All live segments by path."""
        bases = {p.segment.path: p.segment for p in self.base if p is not None}
        return bases | {p.piece.segment.path: p.piece.segment for p in self._pieces}

    def to_json(self) -> dict[str, Any]:
        segments = self.segments()
        number = {path: i for i, path in enumerate(segments)}
        base: dict[PieceId, list[int]] = {}
        for group, piece in enumerate(self.base):
            if piece is not None:
                base.setdefault(piece.id, []).append(group)
        return {
            "segments": [entry.to_json() for entry in segments.values()],
            "base": [[number[p], n, format_ranges(groups)] for (p, n), groups in base.items()],
            "pieces": [p.to_json(number[p.piece.segment.path]) for p in self._pieces],
            "rows": self.rows,
            "assignment": self.assignment.to_json() if self.assignment else None,
        }

    @staticmethod
    def from_json(data: dict[str, Any], key_groups: int) -> OperatorLog:
        log = OperatorLog(key_groups)
        fields = Fields(data, "the snapshot of an operator")
        segments = [SegmentEntry.from_json(e, key_groups) for e in fields.items("segments")]
        if len({entry.path for entry in segments}) < len(segments):
            raise MalformedError("a snapshot names a segment twice")
        for found in fields.items("base"):
            piece, groups = _part(found, segments, key_groups, is_base=True)
            for group in groups.tolist():
                log.base[group] = piece
            log.base_last[groups] = piece.section.last
        for found in fields.items("pieces"):
            log._pieces.append(_LivePiece(*_part(found, segments, key_groups, is_base=False)))
        if len({live.piece.id for live in log._pieces}) < len(log._pieces):
            raise MalformedError("a snapshot lists a section twice")
        if any(b.order < a.order for a, b in itertools.pairwise(log._pieces)):
            raise MalformedError("the pieces of a snapshot are not in the order they apply")
        log.rows = fields.integer("rows")
        if fields["assignment"] is not None:
            log.assignment = Assignment.from_json(fields["assignment"], key_groups)
        return log


def _part(
    data: Any, segments: list[SegmentEntry], key_groups: int, *, is_base: bool
) -> tuple[Piece, Int64Array]:
    """A section that a snapshot names, and the key groups that it speaks for."""
    named = items(data, "a part of a snapshot")
    index, number, *narrowed = named if len(named) in (2, 3) else items(named, "a part", 3)
    entry = segments[integer(index, "the segment of a part", 0, len(segments) - 1)]
    number = integer(number, "the section of a part", 0, len(entry.sections) - 1)
    section = entry.sections[number]
    covers = parse_ranges(section.covers, key_groups)
    groups = parse_ranges(narrowed[0], key_groups) if narrowed else covers
    if section.is_base != is_base or not np.isin(groups, covers, assume_unique=True).all():
        raise MalformedError(f"a snapshot lists section {number} of {entry.path} as the wrong kind")
    return Piece(entry, number), groups


@dataclass
class Trail:
    """All operators at one version."""

    key_groups: int
    epoch: Epoch = Epoch(0)
    checksum: str = ""
    last_full: Epoch = Epoch(0)
    batch_id: int | None = None
    offsets: str | None = None
    """What the last batch has read, if it was a real-time one."""
    watermark_ms: int | None = None
    time_ms: int = 0
    processing_ms: int = 0
    """The processing time of the last epoch: that of the next is not before it."""
    operators: dict[TableName, OperatorLog] = field(default_factory=dict)
    specs: dict[OperatorName, dict[str, Any]] = field(default_factory=dict)
    unmet_parallelism: dict[OperatorName, int] = field(default_factory=dict)
    """The number of shards that operators should have, where it differs from the assignment."""
    watermarks: dict[OperatorName, int] = field(default_factory=dict)
    """The watermarks of operators, in microseconds, where a manifest has them."""

    def operator(self, name: TableName) -> OperatorLog:
        """An operator's log; empty if the operator has not committed anything yet."""
        log = self.operators.get(name)
        if log is None:
            log = self.operators[name] = OperatorLog(self.key_groups)
        return log

    def watermark_us(self, operator: OperatorName) -> int | None:
        """An operator's watermark; that of the sources where a manifest does not have it."""
        if operator in self.watermarks:
            return self.watermarks[operator]
        return None if self.watermark_ms is None else self.watermark_ms * 1000

    def advance(self, manifest: Manifest, checksum: str) -> None:
        """Apply the next manifest of the chain."""
        if manifest.epoch != self.epoch + 1 or manifest.parent != self.checksum:
            raise BrokenChainError(
                f"{manifest_path(manifest.epoch)}: epoch {manifest.epoch} does not follow that of "
                f"epoch {self.epoch}: the chain of manifests is broken. Restore the manifests from "
                "a backup, or start from an earlier epoch."
            )
        for name, commit in manifest.operators.items():
            self.operator(name).apply(commit)
        self._adopt(manifest, checksum)

    def _adopt(self, manifest: Manifest, checksum: str) -> None:
        self.epoch = manifest.epoch
        self.checksum = checksum
        self.last_full = manifest.last_full
        self.time_ms = manifest.time_ms
        self.processing_ms = manifest.processing_ms
        if manifest.batch_id is not None:
            self.batch_id = manifest.batch_id
            self.offsets = manifest.offsets
        self.watermark_ms = manifest.watermark_ms
        self.unmet_parallelism = dict(manifest.unmet_parallelism)
        self.watermarks = dict(manifest.watermarks)
        if manifest.specs is not None:
            self.specs = dict(manifest.specs)

    @staticmethod
    def from_full(manifest: Manifest, checksum: str) -> Trail:
        """The trail right after a full manifest, without its predecessors."""
        if manifest.snapshot is None:
            raise MalformedError(f"epoch {manifest.epoch} is to be full, and is not")
        trail = Trail(manifest.key_groups)
        trail.operators = {
            name: OperatorLog.from_json(data, manifest.key_groups)
            for name, data in manifest.snapshot.items()
        }
        trail._adopt(manifest, checksum)
        return trail

    def segments(self) -> Iterable[SegmentEntry]:
        for log in self.operators.values():
            yield from log.segments().values()
