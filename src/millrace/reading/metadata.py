"""A location's metadata as tables: operators, tables, epochs, segments, key groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from millrace.ids import OperatorName, table_name
from millrace.keygroups import format_ranges, parse_ranges
from millrace.log.segment import SegmentEntry
from millrace.operators.operator import MAIN
from millrace.reading.description import Description
from millrace.reading.snapshot import Snapshot
from millrace.reading.tables import tables

_TIME = pa.timestamp("ms", "UTC")

OPERATORS = pa.schema(
    [
        ("operator", pa.string()),
        ("kind", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("shards", pa.int32()),
        ("segments", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
TABLES = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("columns", pa.list_(pa.string())),
    ]
)
EPOCHS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("committed_at", _TIME),
        ("batch_id", pa.int64()),
        ("watermark", _TIME),
        ("is_full", pa.bool_()),
        ("segments", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
SEGMENTS = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("path", pa.string()),
        ("epoch", pa.int64()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("holds", pa.string()),
        ("key_groups", pa.string()),
    ]
)
KEY_GROUPS = pa.schema(
    [
        ("operator", pa.string()),
        ("key_group", pa.int32()),
        ("shard", pa.int32()),
        ("executor", pa.string()),
        ("base_rows", pa.int64()),
        ("changed_rows", pa.int64()),
        ("base_epoch", pa.int64()),
    ]
)


def operators(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One row per operator."""
    found = []
    for name in snapshot.operators:
        description = snapshot.description(name)
        log = snapshot.log(name, MAIN)
        entries = [e for table in description.tables for e in _entries(snapshot, name, table)]
        found.append(
            {
                "operator": name,
                "kind": description.kind,
                "keys": description.key_names,
                "rows": log.rows,
                "shards": log.assignment.shards if log.assignment else None,
                "segments": len(entries),
                "bytes": sum(entry.bytes for entry in entries),
            }
        )
    return found


def state_tables(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One row per table that SQL knows."""
    found = []
    names = sql_names(snapshot)
    for name in snapshot.operators:
        for state, table in tables(snapshot, name).items():
            found.append(
                {
                    "operator": name,
                    "state": state,
                    "kind": _kind(table.description, state),
                    "name": names[name, state],
                    "columns": [f"{f.name} {f.type}" for f in table.schema],
                }
            )
    return found


def _kind(description: Description, state: str) -> str:
    kinds = {spec["name"]: spec["kind"] for spec in description.states}
    return "main" if state == MAIN else str(kinds.get(state, "timers"))


def epochs(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One row per retained epoch, up to the snapshot's."""
    found = []
    for epoch in snapshot.journal.epochs():
        if epoch > snapshot.epoch:
            break
        manifest, _ = snapshot.journal.read(epoch)
        added = [entry for commit in manifest.operators.values() for entry in commit.segments]
        found.append(
            {
                "epoch": epoch,
                "committed_at": manifest.time_ms,
                "batch_id": manifest.batch_id,
                "watermark": manifest.watermark_ms,
                "is_full": manifest.is_full,
                "segments": len(added),
                "bytes": sum(entry.bytes for entry in added),
            }
        )
    return found


def segments(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One row per live segment."""
    found = []
    for name in snapshot.operators:
        for table in snapshot.description(name).tables:
            for entry in _entries(snapshot, name, table):
                covers = sorted({g for s in entry.sections for g in _covered(s.covers)})
                found.append(
                    {
                        "operator": name,
                        "state": table,
                        "path": entry.path,
                        "epoch": entry.epoch,
                        "bytes": entry.bytes,
                        "rows": sum(section.rows for section in entry.sections),
                        "holds": ", ".join(dict.fromkeys(_holds(entry))),
                        "key_groups": format_ranges(covers),
                    }
                )
    return found


def _covered(ranges: str) -> list[int]:
    listed: list[int] = parse_ranges(ranges).tolist()
    return listed


def _holds(entry: SegmentEntry) -> Iterator[str]:
    for section in entry.sections:
        if section.is_base:
            yield "base"
        else:
            yield "delta" if section.last == entry.epoch else "run"


def key_groups(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One row per operator and key group, of its main table."""
    found = []
    for name in snapshot.operators:
        log = snapshot.log(name, MAIN)
        base, logged = snapshot.replica(snapshot.description(name)).row_counts()
        assignment = log.assignment
        for group in range(len(base)):
            shard = assignment.owners[group] if assignment else None
            executor = assignment.executor_of(shard) if assignment and shard is not None else ""
            found.append(
                {
                    "operator": name,
                    "key_group": group,
                    "shard": shard,
                    "executor": executor or None,
                    "base_rows": int(base[group]),
                    "changed_rows": int(logged[group]),
                    "base_epoch": int(log.base_last[group]),
                }
            )
    return found


def _entries(snapshot: Snapshot, operator: OperatorName, table: str) -> list[SegmentEntry]:
    log = snapshot.trail.operator(table_name(operator, table))
    return sorted(log.segments().values(), key=lambda entry: (entry.epoch, entry.path))


def sql_names(snapshot: Snapshot) -> dict[tuple[OperatorName, str], str]:
    """What each table is called in SQL, by operator and state.

    The same as in the program, except that names which DuckDB cannot distinguish, or which it
    reserves, get an underscore at the end.
    """
    names: dict[tuple[OperatorName, str], str] = {}
    taken = set(_DUCKDBS_OWN)
    for operator in snapshot.operators:
        schema = quoted(_free(operator, taken))
        states: set[str] = set()
        for state in tables(snapshot, operator):
            names[operator, state] = schema
            if state != MAIN:
                names[operator, state] = f"{schema}.{quoted(_free(state, states))}"
    return names


def _free(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


_DUCKDBS_OWN = ("information_schema", "memory", "pg_catalog", "system", "temp", "by_group", "views")
"""Names of schemas and databases that an operator's tables could not be found by."""


def quoted(name: str) -> str:
    """An identifier, quoted only if it must be."""
    plain = name.replace("_", "a").isalnum() and name.isascii() and not name[0].isdigit()
    return (
        name if plain and name.lower() not in _reserved() else '"' + name.replace('"', '""') + '"'
    )


@functools.cache
def _reserved() -> frozenset[str]:
    """Words that DuckDB takes for something else than a name."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        ).fetchall()
    return frozenset(word for (word,) in rows)


VIEWS: dict[str, tuple[pa.Schema, Callable[[Snapshot], list[dict[str, Any]]]]] = {
    "millrace_operators": (OPERATORS, operators),
    "millrace_tables": (TABLES, state_tables),
    "millrace_epochs": (EPOCHS, epochs),
    "millrace_segments": (SEGMENTS, segments),
    "millrace_key_groups": (KEY_GROUPS, key_groups),
}
"""Name in SQL -> columns, and what gives the rows."""


class MetadataDataset(ds.Dataset):  # type: ignore[misc]
    """Rows about a location, made when a query asks for them."""

    def __init__(
        self, snapshot: Snapshot, schema: pa.Schema, rows: Callable[[Snapshot], Any]
    ) -> None:
        # Does not call Arrow's own constructor: the rows come from the snapshot.
        self._snapshot = snapshot
        self._schema = schema
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any
    ) -> ds.Scanner:
        """What DuckDB calls for each scan."""
        with self._snapshot.lock:
            rows = pa.Table.from_pylist(self._rows(self._snapshot), self._schema)
        return ds.dataset(rows).scanner(columns=columns, filter=filter)
