"""The PostgreSQL sink: a batch is one transaction, which also moves the marker.

The marker is a row of the table `millrace_batches`, beside the target. A transaction locks it
first, so of two drivers the second waits, sees that the batch is there, and writes nothing.

Rows arrive by COPY: appended to the target itself, or, to upsert, in a temporary table first, from
which the last row of each key goes into the target.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv

from millrace import hooks
from millrace.errors import SinkError
from millrace.spark.sinks import postgres_types
from millrace.spark.sinks.marked import (
    MarkedSink,
    check_key,
    check_upsert,
    require,
    without_password,
)
from millrace.spark.sinks.rows import BatchRows
from millrace.spark.sinks.text import hex_column, is_nested, json_column

if TYPE_CHECKING:
    import psycopg

MARKERS = "millrace_batches"
STAGED = "millrace_batch"
ORDER = "millrace_row"

NULLS_NOT_DISTINCT = 150_000
"""The first server version with unique constraints for which NULL equals NULL."""


class Postgres(MarkedSink):
    """Appends to a table, or keeps in it the newest row per key."""

    kind = "postgres"

    def __init__(
        self, url: str, table: str, mode: str = "append", key: Any = None, accept_gap: bool = False
    ) -> None:
        super().__init__()
        require(self.kind, "psycopg")
        self.accept_gap = accept_gap
        self.place = f"the table {table} at {without_password(url)}"
        self.target = ("table", f"{table} at {without_password(url)}")
        self._url = url
        self._parts = table.split(".")
        self._table = table
        self._key = check_upsert(self.kind, mode, key)
        if not all(self._parts) or len(self._parts) > 2:
            raise SinkError(f"the postgres sink's table= is NAME or SCHEMA.NAME, not {table!r}.")

    def _errors(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error,)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that commits when it is left, and rolls back if by an error."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        settings: dict[str, Any] = {"application_name": "millrace", "connect_timeout": 10}
        return psycopg.connect(**{**settings, **conninfo_to_dict(self._url)})

    def _name(self, last: str | None = None) -> Any:
        """The target's name, or that of another table beside it, quoted."""
        from psycopg import sql

        return sql.Identifier(*self._parts[:-1], last or self._parts[-1])

    def _claim(self) -> None:
        postgres_types.check_names(self.place, self._schema)
        check_key(self._key, self._schema)
        with self._connect() as connection:
            # Two queries that start at once would create the same tables.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [MARKERS])
            if not self._exists(connection, MARKERS):
                self._run(
                    connection,
                    "CREATE TABLE {} (table_name text PRIMARY KEY, query text NOT NULL, "
                    "batch_id bigint)",
                    self._name(MARKERS),
                )
            owner = self._marker(connection, "query")
            exists = self._exists(connection, self._parts[-1])
            if owner is None:
                self._take(connection, exists)
            elif owner[0] != self._query:
                raise self._belongs_to(owner[0])
            elif not exists:
                raise SinkError(
                    f"{self.place} is gone, but not its marker in {MARKERS}: the table was "
                    "dropped. Restore it, or delete the marker to begin again with an empty table."
                )
            self._check_columns(connection)

    def _take(self, connection: Any, exists: bool) -> None:
        if not exists:
            self._create(connection)
        elif self._run(connection, "SELECT 1 FROM {} LIMIT 1", self._name()).fetchone():
            raise self._unmarked(f"a row of {MARKERS}")
        self._run(
            connection,
            "INSERT INTO {} (table_name, query) VALUES (%s, %s)",
            self._name(MARKERS),
            values=[self._parts[-1], self._query],
        )

    def _create(self, connection: Any) -> None:
        from psycopg import sql

        columns = [
            sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(postgres_types.name_of(f.type)))
            for f in self._schema
        ]
        if self._key:
            new = connection.info.server_version >= NULLS_NOT_DISTINCT
            rule = "UNIQUE NULLS NOT DISTINCT ({})" if new else "PRIMARY KEY ({})"
            columns.append(sql.SQL(rule).format(self._list(self._key)))
        self._run(connection, "CREATE TABLE {} ({})", self._name(), sql.SQL(", ").join(columns))

    def _check_columns(self, connection: Any) -> None:
        import psycopg

        found = self._run(connection, postgres_types.COLUMNS, values=[self._regclass()]).fetchall()
        differences = postgres_types.differences(self._schema, found)
        if differences:
            raise self._other_schema(differences)
        if not self._key:
            return
        try:
            # Plans the statement, and runs nothing of it.
            self._run(connection, "EXPLAIN {}", self._upsert(self._name()))
        except psycopg.errors.InvalidColumnReference as error:
            raise SinkError(
                f"{self.place} has no unique constraint on {', '.join(self._key)}, by which rows "
                "could be replaced. Add one, or let Millrace create the table."
            ) from error

    def _regclass(self, last: str | None = None) -> str:
        """A table's name as PostgreSQL parses it."""
        names = [*self._parts[:-1], last or self._parts[-1]]
        return ".".join('"' + name.replace('"', '""') + '"' for name in names)

    def _exists(self, connection: Any, name: str) -> bool:
        found = connection.execute("SELECT to_regclass(%s)", [self._regclass(name)]).fetchone()
        return found[0] is not None

    def _marker(self, connection: Any, column: str, lock: str = "") -> Any:
        from psycopg import sql

        return self._run(
            connection,
            f"SELECT {{}} FROM {{}} WHERE table_name = %s {lock}",
            sql.Identifier(column),
            self._name(MARKERS),
            values=[self._parts[-1]],
        ).fetchone()

    def _find_last(self) -> int | None:
        with self._connect() as connection:
            return self._last_of(connection)

    def _last_of(self, connection: Any, lock: str = "") -> int | None:
        import psycopg

        try:
            found = self._marker(connection, "batch_id", lock)
        except psycopg.errors.UndefinedTable as error:
            raise self._unmarked(f"the table {MARKERS}") from error
        if found is None:
            raise self._unmarked(f"a row of {MARKERS}")
        last: int | None = found[0]
        return last

    def _commit(self, rows: BatchRows, batch_id: int, last: int | None) -> bool:
        with self._connect() as connection:
            if self._last_of(connection, "FOR UPDATE") != last:
                return False
            if self._key:
                self._stage(connection, rows)
            else:
                self._copy(connection, self._name(), rows)
            self._run(
                connection,
                "UPDATE {} SET batch_id = %s WHERE table_name = %s",
                self._name(MARKERS),
                values=[batch_id, self._parts[-1]],
            )
            hooks.reach(hooks.SINK_WRITTEN, batch_id)
        return True

    def _stage(self, connection: Any, rows: BatchRows) -> None:
        from psycopg import sql

        staged = sql.Identifier("pg_temp", STAGED)
        self._run(
            connection,
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA",
            sql.Identifier(STAGED),
            self._list(self._schema.names),
            self._name(),
        )
        # A batch may have several rows of a key, and the last one is to stay.
        self._run(
            connection,
            "ALTER TABLE {} ADD COLUMN {} bigint GENERATED ALWAYS AS IDENTITY",
            staged,
            sql.Identifier(ORDER),
        )
        self._copy(connection, staged, rows)
        last = sql.SQL(", {} DESC").format(sql.Identifier(ORDER))
        self._run(connection, "{}", self._upsert(staged, last))

    def _upsert(self, source: Any, last: Any = None) -> Any:
        from psycopg import sql

        others = [name for name in self._schema.names if name not in self._key]
        new = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others]
        change = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(new)) if new else None
        return sql.SQL(
            "INSERT INTO {target} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {source} "
            "ORDER BY {key}{last} ON CONFLICT ({key}) DO {change}"
        ).format(
            target=self._name(),
            columns=self._list(self._schema.names),
            key=self._list(self._key),
            source=source,
            last=last or sql.SQL(""),
            change=change or sql.SQL("NOTHING"),
        )

    def _copy(self, connection: Any, target: Any, rows: BatchRows) -> None:
        from psycopg import sql

        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            target, self._list(self._schema.names)
        )
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows:
                copy.write(as_csv(batch))

    def _list(self, names: Any) -> Any:
        from psycopg import sql

        return sql.SQL(", ").join(map(sql.Identifier, names))

    def _run(self, connection: Any, text: Any, *names: Any, values: Any = None) -> Any:
        from psycopg import sql

        return connection.execute(sql.SQL(text).format(*names), values)


def as_csv(batch: pa.RecordBatch) -> memoryview:
    """Rows as COPY reads them: a NULL is nothing at all, and an empty string is quoted."""
    columns = [_copyable(column) for column in batch.columns]
    text = pa.table(columns, names=[str(i) for i in range(len(columns))])
    sink = io.BytesIO()
    csv.write_csv(text, sink, csv.WriteOptions(include_header=False))
    return sink.getbuffer()


def _copyable(column: pa.Array) -> pa.Array:
    kind = column.type
    if is_nested(kind):
        return json_column(column)
    if pa.types.is_binary(kind):
        return hex_column(column, "\\x")
    if pa.types.is_duration(kind):
        micros = pc.cast(column.cast(pa.int64()), pa.string())
        return pc.binary_join_element_wise(micros, "microseconds", " ")
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    return column
