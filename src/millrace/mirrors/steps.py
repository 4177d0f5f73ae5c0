"""What takes a mirror from the epoch it shows to another. Pure: tables in, rows out.

* *changes*: the log says what changed, and that is all that is read;
* *comparison*: rows leave by time, as windows do, or epochs in between were collected: the rows of
  both epochs are read, and those that differ are what changed;
* *copy*: the mirror is empty, its epoch is gone, or it has other columns.

A rough edge: a comparison keeps a digest of each row of the earlier epoch in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from millrace.errors import MissingFileError, UnknownEpochError
from millrace.mirrors.contract import CHANGES, COMPARISON, COPY, Mark, MirrorStep
from millrace.mirrors.encoding import keys_of, values_of
from millrace.mirrors.rows import MirroredTable

Earlier = Callable[[], MirroredTable | None]
"""Opens the epoch that is shown; None if it is not retained."""


def step_to(after: Mark, table: MirroredTable, shown: Mark | None, earlier: Earlier) -> MirrorStep:
    """The step from what is shown to a table."""
    if shown is None or not _fits(shown, after):
        return copy(after, table, shown)
    if not table.leaves_by_time:
        try:
            upserts, deletes = table.changes(shown.epoch)
        except (UnknownEpochError, MissingFileError):
            # Epochs in between were collected, maybe at this moment.
            pass
        else:
            return _step(CHANGES, after, table, shown, [upserts], [deletes])
    before = earlier()
    if before is None or before.columns != table.columns:
        return copy(after, table, shown)
    upserts, deletes = compared(before, table)
    return _step(COMPARISON, after, table, shown, upserts, deletes)


def copy(after: Mark, table: MirroredTable, shown: Mark | None) -> MirrorStep:
    """The step that replaces whatever is shown."""
    return _step(COPY, after, table, shown, table.scan(), ())


def _fits(shown: Mark, after: Mark) -> bool:
    return (shown.query, shown.columns, shown.keys) == (after.query, after.columns, after.keys)


def _step(
    kind: str,
    after: Mark,
    table: MirroredTable,
    shown: Mark | None,
    upserts: Iterable[pa.RecordBatch],
    deletes: Iterable[pa.RecordBatch],
) -> MirrorStep:
    return MirrorStep(kind, shown, after, table.schema, table.keys, upserts, deletes)


def compared(
    before: MirroredTable, after: MirroredTable
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Rows of the later epoch that differ, and keys that only the earlier one has."""
    old: dict[bytes, bytes] = {}
    for batch in before.scan():
        old.update(_digests(before, batch))
    upserts = []
    for batch in after.scan():
        differs = [old.pop(key, None) != row for key, row in _digests(after, batch)]
        if any(differs):
            upserts.append(batch.filter(pa.array(differs)))
    deletes = []
    if old:
        for batch in before.scan():
            mine = [key in old for key in keys_of(batch, before.keys)]
            if any(mine):
                deletes.append(batch.select(list(before.keys)).filter(pa.array(mine)))
    return upserts, deletes


def _digests(table: MirroredTable, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    names = [name for name in table.schema.names if name not in table.keys]
    rows = values_of(batch, names)
    for key, row in zip(keys_of(batch, table.keys), rows, strict=True):
        yield key, hashlib.blake2b(row, digest_size=16).digest()
