"""SQL on a snapshot: DuckDB over the replica's Arrow buffers.

    totals                       an operator's keys, values and whole collections
    sessions.visits              the entries of a list, map or set, with their key
    sessions.timers              an operator's timers
    by_group.totals              an operator's table with the key group of each row
    views.top                    the last result of a view of the query
    millrace_operators, ...      the location's metadata

The connection can read these and nothing else: no files, no settings, no statement but a query.
Nothing is loaded in advance: a query scans the tables, columns and key groups that it needs.
"""

from __future__ import annotations

import atexit
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from millrace.errors import MillraceError, ReadOnlyError, SqlError
from millrace.operators.operator import MAIN
from millrace.reading import metadata, results, sketch_functions
from millrace.reading.dataset import StateDataset
from millrace.reading.metadata import MetadataDataset, quoted, sql_names
from millrace.reading.snapshot import Snapshot
from millrace.reading.state_table import KEY_GROUP, StateTable
from millrace.reading.tables import tables

BY_GROUP = "by_group"
VIEWS = "views"

_NAMES_SOMETHING = (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException)
"""Errors that a list of the tables helps with."""

_BLANK = r"(?:\s|--[^\n]*(?:\n|$)|/\*(?:(?!/\*|\*/).)*\*/)"
"""Space or a comment; DuckDB nests comments, so one with another in it is not taken for one."""
_EXPLAIN = re.compile(
    rf"{_BLANK}*explain(?:{_BLANK}+analyze)?(?:{_BLANK}*\([^)]*\))?{_BLANK}*",
    re.IGNORECASE | re.DOTALL,
)

_open: weakref.WeakSet[SqlConnection] = weakref.WeakSet()


class SqlConnection:
    """A DuckDB connection on a snapshot. It stays valid when the snapshot advances."""

    def __init__(self, snapshot: Snapshot, threads: int | None = None) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._specs = dict(snapshot.trail.specs)
        config: dict[str, Any] = {"enable_external_access": "false"}
        if threads is not None:
            config["threads"] = threads
        self._connection = duckdb.connect(":memory:", config=config)
        self._tables: list[str] = []
        self._tables_of: dict[str, str] = {}
        """Operator -> its main table, after which the schema of its others is called."""
        self._define()
        _open.add(self)

    def _define(self) -> None:
        run = self._connection.execute
        run("SET python_enable_replacements = false")
        run("SET TimeZone = 'UTC'")
        # It would be in the middle of what a program or a command prints.
        run("SET enable_progress_bar = false")
        run(f"CREATE SCHEMA {BY_GROUP}")
        sketch_functions.register(self._connection, self._failed)
        for (operator, state), name in sql_names(self._snapshot).items():
            self._define_table(operator, state, name)
        for name, (schema, rows) in metadata.VIEWS.items():
            self._connection.register(name, MetadataDataset(self._snapshot, schema, rows))
        run("SET lock_configuration = true")

    def _failed(self, error: MillraceError) -> None:
        self._snapshot.failure = error

    def _define_table(self, operator: str, state: str, name: str) -> None:
        def table() -> StateTable:
            return tables(self._snapshot, operator)[state]

        scanned = f"millrace scan {len(self._tables)}"
        self._connection.register(scanned, StateDataset(table))
        run = self._connection.execute
        if state != MAIN:
            run(f"CREATE SCHEMA IF NOT EXISTS {self._tables_of[operator]}")
        run(f'CREATE VIEW {name} AS SELECT * EXCLUDE ({KEY_GROUP}) FROM "{scanned}"')
        if state == MAIN:
            self._tables_of[operator] = name
            run(f'CREATE VIEW {BY_GROUP}.{name} AS SELECT * FROM "{scanned}"')
        self._tables.append(name)

    @property
    def is_current(self) -> bool:
        """Whether the snapshot's operators are those that were defined."""
        return self._specs == self._snapshot.trail.specs

    def run(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pa.Table:
        """The result of a query."""
        with self._lock:
            self._snapshot.failure = None
            self._check(query)
            if re.search(rf"\b{VIEWS}\b", query, re.IGNORECASE):
                self._define_views()
            try:
                relation = self._connection.sql(query, params=parameters)
                found: pa.Table = relation.to_arrow_table()
                return found
            except duckdb.Error as error:
                raise self._explained(error) from error

    def _check(self, query: str) -> None:
        if not str(query).strip():
            raise SqlError(f"{query!r} is not a query: give SQL such as 'select * from ...'.")
        try:
            statements = duckdb.extract_statements(query)
        except duckdb.Error as error:
            raise self._explained(error) from error
        if len(statements) != 1:
            raise SqlError(f"give one query at a time: this has {len(statements)} statements.")
        if statements[0].type == duckdb.StatementType.EXPLAIN:
            # EXPLAIN ANALYZE runs what it explains.
            prefix = _EXPLAIN.match(query)
            if prefix is None:
                raise SqlError("begin the query with EXPLAIN, without a comment before it.")
            self._check(query[prefix.end() :])
        elif statements[0].type != duckdb.StatementType.SELECT:
            kind = str(statements[0].type).rpartition(".")[2].replace("_", " ")
            raise ReadOnlyError(
                f"{kind} is refused: state is read-only here, and changes by its stream alone. "
                "Give a query that begins with SELECT, WITH or FROM."
            )

    def _explained(self, error: duckdb.Error) -> MillraceError:
        if self._snapshot.failure is not None:
            # Reading failed under the query: say that, not that a query failed.
            return self._snapshot.failure
        text = str(error).strip()
        if isinstance(error, _NAMES_SOMETHING):
            text += f"\nThe tables are {', '.join([*self._tables, *metadata.VIEWS])}."
        return SqlError(text)

    def _define_views(self) -> None:
        """Have the results of the query's views as tables."""
        store = self._snapshot.journal.store
        run = self._connection.execute
        run(f"CREATE SCHEMA IF NOT EXISTS {VIEWS}")
        for name in results.names(store):
            if any(epoch <= self._snapshot.epoch for epoch in results.epochs_of(store, name)):
                found = results.read(store, name, self._snapshot.epoch)
                self._connection.register(f"millrace view {name}", found.rows)
                shown = f"{VIEWS}.{quoted(name)}"
                run(f'CREATE OR REPLACE VIEW {shown} AS FROM "millrace view {name}"')

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _close_all() -> None:
    # DuckDB complains on standard error about connections that outlive the interpreter.
    for session in list(_open):
        session.close()


atexit.register(_close_all)
