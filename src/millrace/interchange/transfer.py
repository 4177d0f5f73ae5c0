"""Export a whole state to plain files, and import one into a new location.

An export is a folder: `millrace-export.json`, which says what it is, a folder of files per table of
every operator, and Spark's offsets. The rows are those of the state, fingerprints included, so an
import needs neither Spark nor the program, and may choose another number of key groups. Columns
that only other tools need, such as a mean beside its sum and count, are written too; an import
ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace import clock
from millrace.errors import MissingFileError, NotAnExportError, UsageError
from millrace.ids import Epoch, OperatorName, table_name
from millrace.interchange import delta
from millrace.interchange.offsets import Files, read_offsets, write_files
from millrace.interchange.writing import (
    OperatorState,
    Reached,
    StateWriter,
    signed,
    stored_schema,
)
from millrace.keygroups.scheme import CHAINED, Scheme
from millrace.log import open_store
from millrace.log.layout import IDENTITY, SPARK
from millrace.log.segment import DELETED
from millrace.log.store import Store
from millrace.operators.operator import MAIN, TableLayout
from millrace.reading.description import Description
from millrace.reading.reader import Reader, open_location
from millrace.state.scanning import scan

FORMATS = ("parquet", "arrow", "delta")
HEADER = "millrace-export.json"
VERSION = 2
"""Version 1 has no scheme, because there was only one."""
PARTS = 16
"""How many files a table is written as, at most."""


@dataclass(frozen=True)
class Transfer:
    """What was exported or imported."""

    location: str
    epoch: int
    operators: tuple[str, ...]
    rows: int
    with_offsets: bool


def export(
    location: str,
    out: str,
    *,
    epoch: int | None = None,
    file_format: str = "parquet",
    offsets: bool = True,
) -> Transfer:
    """Write the state of an epoch, by default the last one, to a new folder.

    The last epoch includes Spark's offsets, so the query must not be running. `offsets=False`
    leaves them out, and then the query may run.
    """
    if file_format not in FORMATS:
        raise UsageError(f"format {file_format!r}: choose from {', '.join(FORMATS)}.")
    target = open_store(out)
    if target.list(""):
        raise UsageError(f"{target.url} is not empty. Export to a new folder.")
    with open_location(location, epoch=epoch) as reader:
        scheme = reader.snapshot.journal.identity.scheme
        header: dict[str, Any] = {
            "format": scheme.version,
            "files": file_format,
            "epoch": reader.epoch,
            "batchId": reader.batch_id,
            "watermark": reader.watermark_ms,
            "processing": reader.snapshot.trail.processing_ms,
            "watermarks": dict(reader.snapshot.trail.watermarks),
            "keyGroups": reader.key_groups,
            "fingerprints": scheme.to_json(),
            "exported": clock.now_ms(),
            "operators": {},
        }
        rows = 0
        for name in reader.operators:
            tables, written = _export_operator(reader, name, target, file_format)
            rows += written
            header["operators"][name] = {
                "spec": reader.snapshot.trail.specs[OperatorName(name)],
                "tables": tables,
            }
        files = _offsets(reader) if offsets else {}
        header["offsets"] = sorted(files)
        write_files(files, lambda path, data: target.put(f"{SPARK}/{path}", data))
        # Last: a folder without it is an export that was cut off.
        target.create(HEADER, json.dumps(header, indent=1).encode())
        names = tuple(reader.operators)
        return Transfer(target.url, reader.epoch, names, rows, bool(files))


def _offsets(reader: Reader) -> Files:
    """Spark's files, if they continue from this epoch; else none."""
    journal = reader.snapshot.journal
    if reader.batch_id is None or reader.epoch != journal.head():
        return {}
    return read_offsets(journal.store, SPARK, reader.batch_id)


def _export_operator(
    reader: Reader, name: str, target: Store, file_format: str
) -> tuple[dict[str, Any], int]:
    description = reader.snapshot.description(name)
    found: dict[str, Any] = {}
    total = 0
    for table in description.tables:
        folder = f"{name}/{table or 'main'}"
        schema = _portable_schema(reader, name, table)
        paths, rows, sizes = [], 0, []
        for number, part in enumerate(_stored(reader, name, table)):
            suffix = "arrow" if file_format == "arrow" else "parquet"
            path = f"{folder}/part-{number:05d}.{suffix}"
            data = _encoded(part, file_format)
            target.put(path, memoryview(data))
            paths.append(path)
            sizes.append(delta.Part(path.rsplit("/", 1)[-1], data.size, part.num_rows))
            rows += part.num_rows
        if file_format == "delta":
            log = delta.first_commit(f"{name} {table}".strip(), schema, sizes)
            target.put(f"{folder}/{delta.LOG}", log)
        found[table] = {"files": paths, "rows": rows}
        total += rows
    return found, total


def _stored(reader: Reader, name: str, table: str) -> Iterator[pa.Table]:
    """A table's stored rows, some key groups at a time."""
    snapshot = reader.snapshot
    description = snapshot.description(name)
    replica = snapshot.replica(description, table)
    names = [field.name for field in replica.schema if field.name != DELETED]
    shown = _shown(reader, name) if table == MAIN else []
    for groups in np.array_split(snapshot.every, min(PARTS, len(snapshot.every))):
        batches = list(scan(replica, groups, names))
        if not batches:
            continue
        rows = _present(reader, name, table, pa.Table.from_batches(batches)).combine_chunks()
        for column in shown:
            needs = [rows.column(need).combine_chunks() for need in column.needs]
            rows = rows.append_column(column.name, [column.make(needs)])
        yield _portable(rows)


def _shown(reader: Reader, name: str) -> list[Any]:
    """What readers see of a key although it is not stored that way."""
    description = reader.snapshot.description(name)
    stored = set(description.main.names)
    return [
        s
        for s in description.shown(reader.snapshot.moment(description.name))
        if s.name not in stored
    ]


def _portable(rows: pa.Table) -> pa.Table:
    """Rows without unsigned numbers, which not every format and tool has."""
    fields = [field.with_type(signed(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields), safe=False)


def _portable_schema(reader: Reader, name: str, table: str) -> pa.Schema:
    snapshot = reader.snapshot
    replica = snapshot.replica(snapshot.description(name), table, np.empty(0, np.int64))
    fields = [f.with_type(signed(f.type)) for f in replica.schema if f.name != DELETED]
    extra = [pa.field(s.name, s.type) for s in _shown(reader, name)] if table == MAIN else []
    return pa.schema([*fields, *extra])


def _encoded(rows: pa.Table, file_format: str) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    if file_format == "arrow":
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    else:
        pq.write_table(rows, sink, coerce_timestamps="us", store_schema=True)
    return sink.getvalue()


def import_state(
    source: str,
    location: str,
    *,
    key_groups: int | None = None,
    parallelism: int | None = None,
    epoch: int | None = None,
    fresh_source: bool = False,
) -> Transfer:
    """Import an export, or the state of another location, into a new location.

    Spark's offsets are copied too, so a query on the new location continues where the old one
    was. With `fresh_source` they are left out, and the query's sources start over.
    """
    store = open_store(source)
    if store.size(IDENTITY) is not None:
        return _import_location(source, location, key_groups, parallelism, epoch, fresh_source)
    if epoch is not None:
        raise UsageError("epoch= is for importing from a location; an export has one epoch.")
    try:
        header = json.loads(store.read(HEADER))
    except MissingFileError as error:
        raise NotAnExportError(
            f"{store.url} is neither a location nor an export: it has no {IDENTITY} and no "
            f"{HEADER}. If it is an export, it was cut off: export again."
        ) from error
    if header["format"] > VERSION:
        raise NotAnExportError(
            f"{store.url}/{HEADER} has format {header['format']}; this Millrace reads up to "
            f"{VERSION}. Upgrade it."
        )
    files: Files = {}
    if not fresh_source:
        _check_offsets(bool(header["offsets"]), header["batchId"], store.url)
        files = {path: store.read(f"{SPARK}/{path}") for path in header["offsets"]}
    count = _check_groups(header["operators"], header["keyGroups"], key_groups)
    given = header.get("fingerprints")
    scheme = CHAINED if given is None else Scheme.from_json(given)
    writer = StateWriter(location, count, parallelism or 1, scheme, Epoch(header["epoch"]))
    rows = 0
    for name, operator in header["operators"].items():
        layouts = Description(OperatorName(name), operator["spec"]).tables
        tables = {
            table: _read_parts(store, content["files"], layouts[table])
            for table, content in operator["tables"].items()
        }
        rows += writer.operator(OperatorName(name), OperatorState(operator["spec"], tables))
    reached = Reached(
        header["batchId"],
        header["watermark"],
        header["processing"],
        # Exports of earlier versions have none.
        {OperatorName(name): us for name, us in header.get("watermarks", {}).items()},
    )
    return _finish(writer, files, reached, rows, tuple(header["operators"]))


def _import_location(
    source: str,
    location: str,
    key_groups: int | None,
    parallelism: int | None,
    epoch: int | None,
    fresh_source: bool,
) -> Transfer:
    with open_location(source, epoch=epoch) as reader:
        files: Files = {}
        if not fresh_source:
            files = _offsets(reader)
            _check_offsets(bool(files), reader.batch_id, source)
        specs = reader.snapshot.trail.specs
        description = {name: {"spec": spec} for name, spec in specs.items()}
        count = _check_groups(description, reader.key_groups, key_groups)
        shards = parallelism or min(_shards(reader), count)
        scheme = reader.snapshot.journal.identity.scheme
        writer = StateWriter(location, count, shards, scheme, Epoch(reader.epoch))
        rows = 0
        for name, spec in specs.items():
            layouts = reader.snapshot.description(name).tables
            tables = {table: _whole(reader, name, table) for table in layouts}
            rows += writer.operator(name, OperatorState(spec, tables))
        trail = reader.snapshot.trail
        reached = Reached(
            reader.batch_id, reader.watermark_ms, trail.processing_ms, trail.watermarks
        )
        return _finish(writer, files, reached, rows, tuple(map(str, specs)))


def _whole(reader: Reader, name: str, table: str) -> pa.Table:
    snapshot = reader.snapshot
    replica = snapshot.replica(snapshot.description(name), table)
    batches = list(scan(replica, snapshot.every, replica.schema.names))
    return _present(reader, name, table, pa.Table.from_batches(batches, replica.schema))


def _present(reader: Reader, name: str, table: str, rows: pa.Table) -> pa.Table:
    """Rows without those that the watermark has passed."""
    description = reader.snapshot.description(name)
    eviction = description.eviction(table, reader.snapshot.moment(description.name))
    if eviction is None:
        return rows
    return rows.filter(pa.array(~eviction.over(rows.column(eviction.column))))


def _shards(reader: Reader) -> int:
    logs = (reader.snapshot.trail.operator(table_name(n)) for n in reader.snapshot.operators)
    return max((log.assignment.shards for log in logs if log.assignment), default=1)


def _check_offsets(has_offsets: bool, batch_id: int | None, where: str) -> None:
    if not has_offsets and batch_id is not None:
        raise UsageError(
            f"the state of {where} comes without Spark's offsets, which exist for the last "
            "epoch only. A query on it would read its sources from the beginning; if you want "
            "that, use --fresh-source (fresh_source=True)."
        )


def _check_groups(operators: dict[Any, Any], before: int, wanted: int | None) -> int:
    """The number of key groups of the new location."""
    if wanted is None or wanted == before:
        return before
    for name, operator in operators.items():
        for state in operator["spec"].get("states", ()):
            if state["kind"] == "task":
                raise UsageError(
                    f"operator {name!r} has the task state {state['name']!r}, which belongs to "
                    f"ranges of the {before} key groups there are. Keep their number."
                )
    return wanted


def _read_parts(store: Store, paths: list[str], layout: TableLayout) -> pa.Table:
    parts = [_read_part(store.read(path), path) for path in paths]
    if not parts:
        # A table without rows has no files.
        return stored_schema(layout).empty_table()
    return pa.concat_tables(parts)


def _read_part(data: bytes, path: str) -> pa.Table:
    if path.endswith(".arrow"):
        return pa.ipc.open_file(data).read_all()
    return pq.read_table(pa.BufferReader(data))


def _finish(
    writer: StateWriter,
    files: Files,
    reached: Reached,
    rows: int,
    operators: tuple[str, ...],
) -> Transfer:
    writer.put_offsets(files)
    # Without offsets the sources start over, with batch 0.
    writer.commit(reached if files else Reached(processing_ms=reached.processing_ms))
    return Transfer(writer.url, writer.epoch, operators, rows, bool(files))
