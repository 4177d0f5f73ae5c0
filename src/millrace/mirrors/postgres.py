"""A mirror in PostgreSQL: a table with a row per key, and one row that says what it shows.

    NAME                  the columns of the state, and _millrace_key, which identifies a row
    millrace_mirrors      name, operator, epoch, committed_at, mark

A step is one transaction: its rows are copied into a temporary table and merged from there, and the
row in `millrace_mirrors` is locked and changed with them. Readers see the state of one epoch in any
statement, and the epoch with it in a transaction of the level REPEATABLE READ.

A column of a state may be NULL in a key, so the primary key is a digest of the key's text. There is
an index on the key's own columns as well. A state whose columns changed keeps its table: columns
are dropped and added.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
from psycopg import sql

from millrace import hooks
from millrace.errors import (
    ForeignMirrorError,
    MirrorHistoryError,
    MirrorTargetError,
    MirrorUnreachableError,
    UnsupportedMirrorError,
)
from millrace.mirrors.contract import Mark, MirrorStep, check_mark, pieces
from millrace.mirrors.encoding import keys_of, text_of
from millrace.operators.process.convert import to_python
from millrace.reading.json_values import rows_to_json

MARKS = "millrace_mirrors"
KEY = "_millrace_key"
STAGED, GONE = "_millrace_staged", "_millrace_gone"
LONGEST_NAME = 63
"""Bytes; PostgreSQL cuts a longer name off."""
TOGETHER = 10_000
TIMEOUT = 30

_CREATING = 7_204_118_320
"""An advisory lock: of two mirrors that start at once, one makes the table of marks."""

Connection = psycopg.Connection[tuple[Any, ...]]


def column_type(data_type: pa.DataType) -> str:
    """PostgreSQL's type for an Arrow type; what it has no type for is JSON."""
    if pa.types.is_decimal(data_type):
        return f"numeric({data_type.precision},{data_type.scale})"
    if pa.types.is_timestamp(data_type):
        return "timestamptz" if data_type.tz is not None else "timestamp"
    for is_type, name in _TYPES:
        if is_type(data_type):
            return name
    return "jsonb"


_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_date32, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (pa.types.is_null, "text"),
)


class PostgresTarget:
    """A mirror in PostgreSQL."""

    def __init__(self, url: str, name: str, *, read_only: bool = False) -> None:
        parts = urlsplit(url)
        self.title = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"
        self._url = url
        self.name = name
        self._check_names([name])
        self._opened: Connection | None = None
        self._table = sql.Identifier(name)

    @property
    def _connection(self) -> Connection:
        if self._opened is None or self._opened.closed or self._opened.broken:
            self._opened = psycopg.connect(self._url, autocommit=True, connect_timeout=TIMEOUT)
        return self._opened

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if len(name.encode()) > LONGEST_NAME or "\0" in name:
                raise UnsupportedMirrorError(
                    f"{name!r} is longer than the {LONGEST_NAME} bytes that PostgreSQL has for a "
                    "name. Choose another --name, or rename the column."
                )

    def mark(self) -> Mark | None:
        with self._explained():
            return self._mark(self._connection)

    def _mark(self, connection: Connection, *, lock: bool = False) -> Mark | None:
        exists = self._exists(connection, self.name)
        found = None
        if self._exists(connection, MARKS):
            asked = sql.SQL("SELECT mark FROM {} WHERE name = %s {}").format(
                sql.Identifier(MARKS), sql.SQL("FOR UPDATE" if lock else "")
            )
            found = connection.execute(asked, [self.name]).fetchone()
        if found is None:
            if exists:
                raise ForeignMirrorError(
                    f"{self.title} has a table {self.name!r} that is not a mirror's: {MARKS} has "
                    "no row for it. Mirror under another name (--name), or drop it."
                )
            return None
        mark = Mark.from_json(found[0], f"{MARKS} in {self.title}")
        if not exists:
            raise MirrorHistoryError(
                f"table {self.name!r} in {self.title} is gone, though {MARKS} says that it shows "
                f"epoch {mark.epoch}. To mirror again: DELETE FROM {MARKS} WHERE name = "
                f"'{self.name}'."
            )
        return mark

    def _exists(self, connection: Connection, table: str) -> bool:
        asked = "SELECT to_regclass(quote_ident(%s)) IS NOT NULL"
        (found,) = connection.execute(asked, [table]).fetchone() or (False,)
        return bool(found)

    def apply(self, step: MirrorStep) -> None:
        self._check_names([*step.schema.names])
        with self._explained():
            connection = self._connection
            if not self._exists(connection, MARKS):
                self._make_marks(connection)
            with connection.transaction():
                found = self._mark(connection, lock=True)
                check_mark(self.title, found, step)
                self._make_table(connection, step, found)
                self._stage(connection, step)
                hooks.reach(hooks.STAGED_STEP, step.after.epoch)
                self._merge(connection, step)
                self._note(connection, step.after, found)

    def _make_marks(self, connection: Connection) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATING])
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, operator text NOT NULL, "
                    "epoch bigint NOT NULL, committed_at timestamptz NOT NULL, mark text NOT NULL)"
                ).format(sql.Identifier(MARKS))
            )

    def _make_table(self, connection: Connection, step: MirrorStep, found: Mark | None) -> None:
        if found is None:
            columns = _declared(step.schema)
            made = sql.SQL("CREATE TABLE {} ({} uuid PRIMARY KEY, {})")
            connection.execute(
                made.format(self._table, sql.Identifier(KEY), sql.SQL(", ").join(columns))
            )
        elif step.before is not None and step.before.columns != step.after.columns:
            new = self._alter(connection, step, dict(step.before.columns))
            if new.isdisjoint(step.keys):
                return
        else:
            return
        indexed = [n for n in step.keys if column_type(step.schema.field(n).type) != "jsonb"]
        if indexed:
            listed = sql.SQL(", ").join(map(sql.Identifier, indexed))
            index = sql.SQL("CREATE INDEX ON {} ({})").format(self._table, listed)
            connection.execute(index)

    def _alter(self, connection: Connection, step: MirrorStep, before: dict[str, str]) -> set[str]:
        """Give the table the columns of a state that has others than before; returns the new."""
        after = dict(step.after.columns)
        gone = [name for name, kind in before.items() if after.get(name) != kind]
        new = [name for name, kind in after.items() if before.get(name) != kind]
        changes = [sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in gone]
        added = pa.schema([step.schema.field(name) for name in new])
        changes += [sql.SQL("ADD COLUMN {}").format(column) for column in _declared(added)]
        if changes:
            altered = sql.SQL("ALTER TABLE {} {}")
            connection.execute(altered.format(self._table, sql.SQL(", ").join(changes)))
        return set(new)

    def _stage(self, connection: Connection, step: MirrorStep) -> None:
        """Copy the step's rows into temporary tables."""
        names = [KEY, *step.schema.names]
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        for table, columns in ((STAGED, listed), (GONE, sql.Identifier(KEY))):
            connection.execute(
                sql.SQL(
                    "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
                ).format(sql.Identifier(table), columns, self._table)
            )
        self._copy(connection, STAGED, names, _rows(step.upserts, step, step.schema.names))
        self._copy(connection, GONE, [KEY], _rows(step.deletes, step, []))

    def _copy(
        self,
        connection: Connection,
        table: str,
        names: Sequence[str],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        command = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), listed)
        with connection.cursor() as cursor, cursor.copy(command) as copying:
            for row in rows:
                copying.write_row(row)

    def _merge(self, connection: Connection, step: MirrorStep) -> None:
        key, table = sql.Identifier(KEY), self._table
        gone, staged = sql.Identifier(GONE), sql.Identifier(STAGED)
        if step.is_copy:
            connection.execute(
                sql.SQL(
                    "DELETE FROM {0} AS shown WHERE NOT EXISTS "
                    "(SELECT FROM {1} AS staged WHERE staged.{2} = shown.{2})"
                ).format(table, staged, key)
            )
        else:
            connection.execute(
                sql.SQL(
                    "DELETE FROM {0} AS shown USING {1} AS gone WHERE gone.{2} = shown.{2}"
                ).format(table, gone, key)
            )
        columns = [sql.Identifier(name) for name in step.schema.names]
        values = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(column) for column in columns
        )
        listed = sql.SQL(", ").join([key, *columns])
        connection.execute(
            sql.SQL(
                "INSERT INTO {0} ({1}) SELECT {1} FROM {2} ON CONFLICT ({3}) DO UPDATE SET {4}"
            ).format(table, listed, staged, key, values)
        )

    def _note(self, connection: Connection, mark: Mark, found: Mark | None) -> None:
        if found is None:
            asked = "INSERT INTO {} (operator, epoch, committed_at, mark, name) VALUES (%s, %s, "
            asked += "to_timestamp(%s), %s, %s)"
        else:
            asked = "UPDATE {} SET operator = %s, epoch = %s, committed_at = to_timestamp(%s), "
            asked += "mark = %s WHERE name = %s"
        values = [mark.operator, mark.epoch, mark.committed_ms / 1000, mark.to_json(), self.name]
        connection.execute(sql.SQL(asked).format(sql.Identifier(MARKS)), values)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.ProgramLimitExceeded as error:
            raise MirrorTargetError(
                f"{self.title} cannot index a key of table {self.name!r}: {_text(error)}. Drop the "
                "index on the key's columns; the mirror does not need it, and does not make it "
                "again."
            ) from error
        except psycopg.OperationalError as error:
            if error.sqlstate is not None and error.sqlstate[:2] not in ("08", "57"):
                raise MirrorTargetError(f"{self.title} failed: {_text(error)}.") from error
            if "authentication failed" in str(error) or "does not exist" in str(error):
                raise MirrorTargetError(
                    f"{self.title} refused the connection: {_text(error)}. Check the user, the "
                    "password and the database in the URL."
                ) from error
            raise MirrorUnreachableError(
                f"{self.title} does not answer: {_text(error)}. Check the address, and that "
                "PostgreSQL runs."
            ) from error
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise MirrorTargetError(
                f"{self.title} refused a step for table {self.name!r}: {_text(error)}. Nothing of "
                "it was written. PostgreSQL has no text with the character NUL and none that is "
                "not UTF-8; of such rows, and of other states, Redis and RocksDB hold any."
            ) from error


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _declared(schema: pa.Schema) -> list[sql.Composed]:
    """Columns and their types."""
    return [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field.type)))
        for field in schema
    ]


def _rows(
    batches: Iterable[pa.RecordBatch], step: MirrorStep, columns: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """Rows with their digests, for COPY."""
    for batch in pieces(batches, TOGETHER):
        digests = [digest(key) for key in keys_of(batch, step.keys)]
        listed = [_listed(batch, name) for name in columns]
        yield from zip(digests, *listed, strict=True)


def digest(key: bytes) -> uuid.UUID:
    """The primary key of a row, from its key's text."""
    return uuid.UUID(bytes=hashlib.blake2b(key, digest_size=16).digest())


def _listed(batch: pa.RecordBatch, name: str) -> list[Any]:
    """A column's values as psycopg takes them."""
    column = batch.column(name)
    if column_type(column.type) != "jsonb":
        return to_python(column)
    rows = rows_to_json(batch.select([name]))
    return [None if row[name] is None else text_of(row[name]).decode() for row in rows]
