"""Damaged segments, computed again from what came before them.

A segment's bases and runs repeat what older sections say: as long as the epoch before the segment
is retained and whole, they can be computed again. Its deltas cannot, nor can the first rows of a
key group: nothing but the source has them. So a page of a delta that is damaged stays damaged.

Invariant: a file is replaced only by one that has every checksum of its manifest. A repair that
cannot be distinguished from the original is the only kind there is, and it is right for all epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import CorruptSegmentError, MillraceError, MissingFileError, StoreError
from millrace.ids import Epoch, Shard, TableName
from millrace.keygroups import Assignment, parse_ranges
from millrace.log import Journal, Trail
from millrace.log.segment import (
    HI,
    Section,
    SectionData,
    SegmentEntry,
    encode_segment,
    page_is_whole,
    with_parts,
)
from millrace.log.store import Store, replace
from millrace.state.columns import words
from millrace.state.replica import Replica
from millrace.state.sections import merged, run
from millrace.state.sorting import count_groups

Opener = Callable[[Trail, TableName], Replica]
"""An empty replica of a table, as an epoch's trail describes it."""


@dataclass(frozen=True)
class Repair:
    """What became of one damaged segment."""

    path: str
    is_repaired: bool
    reason: str = ""


def repair(
    journal: Journal, paths: Iterable[str], open_replica: Opener, *, dry_run: bool = False
) -> list[Repair]:
    """Compute damaged segments again, oldest first, since later ones may need them."""
    found = _entries(journal)
    done = []
    for path in sorted(paths, key=lambda p: (found[p][1].epoch if p in found else 0, p)):
        if path not in found:
            done.append(Repair(path, False, "no manifest that can be read names it"))
            continue
        table, entry, assignment = found[path]
        try:
            data = _recomputed(journal, table, entry, assignment, open_replica)
        except StoreError:
            raise
        except MillraceError as error:
            done.append(Repair(path, False, str(error)))
            continue
        if not dry_run:
            replace(journal.store, path, data)
        done.append(Repair(path, True))
    return done


def _entries(journal: Journal) -> dict[str, tuple[TableName, SegmentEntry, Assignment]]:
    """All segments that manifests which can be read have added, with their table and shards."""
    found = {}
    for epoch in journal.epochs():
        try:
            manifest, _ = journal.read(epoch)
        except StoreError:
            raise
        except MillraceError:
            # Damaged itself: nobody knows what it added.
            continue
        for name, commit in manifest.operators.items():
            for entry in commit.segments:
                found[entry.path] = (name, entry, commit.assignment)
    return found


def _recomputed(
    journal: Journal,
    table: TableName,
    entry: SegmentEntry,
    assignment: Assignment,
    open_replica: Opener,
) -> bytes:
    """The original bytes of a segment, or an error that says what cannot be computed."""
    before = Epoch(entry.epoch - 1)
    trail = journal.trail(before)
    # The first epoch of a run may have changed what the table is.
    replica = open_replica(journal.trail(entry.epoch), table)
    groups = assignment.groups_of(_shard(entry.path))
    replica.follow(trail.operator(table), before, groups)
    data = _read(journal.store, entry)
    bases = [parse_ranges(s.covers) for s in entry.sections if s.is_base and s.last == before]
    rest = np.setdiff1d(groups, np.concatenate(bases)) if bases else groups
    sections = [
        _section(replica, rest, entry, number, data) for number in range(len(entry.sections))
    ]
    buffer, made = encode_segment(entry.path, entry.epoch, sections)
    if [page[:2] for page in made.pages] != [page[:2] for page in entry.pages]:
        raise CorruptSegmentError(
            f"segment {entry.path} cannot be repaired: its rows are not those that older epochs "
            "give, because some had expired, or columns were added since."
        )
    whole = with_parts(entry, data, bytes(buffer))
    if whole is None:
        raise CorruptSegmentError(
            f"segment {entry.path} cannot be repaired: what older epochs give does not match the "
            "checksums in its manifest."
        )
    return whole


def _section(
    replica: Replica, rest: Int64Array, entry: SegmentEntry, number: int, data: bytes
) -> SectionData:
    """The rows of a section: read if they are whole, else computed."""
    section = entry.sections[number]
    pages = range(section.first_page, section.first_page + section.pages)
    if all(page_is_whole(entry, page, data) for page in pages):
        return _as_read(replica, entry, section, data)
    if section.last == entry.epoch:
        raise CorruptSegmentError(
            f"segment {entry.path} has damage in rows that its own epoch, {entry.epoch}, wrote: "
            "nothing older has them. Restore the file from a backup."
        )
    computed = (
        merged(replica, parse_ranges(section.covers)) if section.is_base else run(replica, rest)
    )
    if computed is None or (computed.first, computed.last) != (section.first, section.last):
        raise CorruptSegmentError(
            f"segment {entry.path} cannot be repaired: epochs {section.first} to {section.last} "
            "would be merged differently now."
        )
    return computed


def _as_read(replica: Replica, entry: SegmentEntry, section: Section, data: bytes) -> SectionData:
    batches = []
    for page in range(section.first_page, section.first_page + section.pages):
        offset, length, _ = entry.pages[page]
        message = pa.py_buffer(data[offset : offset + length])
        batches.append(pa.ipc.read_record_batch(message, replica.schema))
    rows = pa.Table.from_batches(batches, replica.schema).combine_chunks().to_batches()
    batch = rows[0] if rows else pa.RecordBatch.from_pylist([], replica.schema)
    counts = count_groups(words(batch, HI), np.uint64(replica.shift), replica.key_groups)
    groups = np.flatnonzero(counts)
    covers = parse_ranges(section.covers)
    return SectionData(section.first, section.last, covers, groups, counts[groups], batch)


def _shard(path: str) -> Shard:
    return Shard(int(path.rsplit("/", 1)[-1].split("-")[1]))


def _read(store: Store, entry: SegmentEntry) -> bytes:
    try:
        return store.read(entry.path)
    except MissingFileError:
        return b""
