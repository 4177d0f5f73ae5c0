"""Sinks with a marker: the id of the last batch, written in the same transaction as its rows.

What all of them share is here; a kind says how to claim its target, how to read the marker, and how
to write rows and marker in one transaction.

Invariant: the target holds the rows of a batch if and only if its marker is at that batch or a
later one. A marker moves only from the batch that the writer has seen, so that of two drivers one
writes. A marker that does not fit the query's next batch is an error, and nothing is written.

Rough edge: a target that is gone together with its marker looks like a new one.
"""

from __future__ import annotations

import importlib.util
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace import clock, hooks
from millrace.errors import MissingPackageError, SinkError
from millrace.spark.sinks.contract import Sink, first_line, run
from millrace.spark.sinks.rows import BatchRows, arrow_rows
from millrace.types import arrow_schema

ATTEMPTS = 5
"""How often a commit is tried while others change the table."""
PAUSE_SECONDS = 0.2

_PASSWORD = re.compile(r"password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)")


class MarkedSink(Sink):
    """Writes each batch once, in a transaction of its target's own."""

    kind = ""
    """The name in `.to(name)`, and of the extra that installs its package."""
    place = ""
    """The target, for people: without a password."""
    accept_gap = False
    """Whether to go on although batches before this one are missing in the target."""

    def __init__(self) -> None:
        self._query = ""
        self._schema = pa.schema([])
        self._last: int | None = None
        self._is_sure = False
        """Whether `_last` is known from this run's own batch."""

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        self._query = query
        self._schema = arrow_schema(schema)
        with self._failing("cannot be opened"):
            self._claim()

    def write(self, df: DataFrame, batch_id: int) -> None:
        if self.has(batch_id):
            run(df)
            return
        with arrow_rows(df) as rows:
            self.write_rows(rows, batch_id)

    def has(self, batch_id: int) -> bool:
        """Whether the batch is in the target; raises if it cannot be the next one there."""
        if not self._is_sure:
            with self._failing("cannot be read"):
                self._last = self._find_last()
        return self._has(batch_id)

    def write_rows(self, rows: BatchRows, batch_id: int) -> None:
        """Write the rows of a batch which the target does not have."""
        hooks.reach(hooks.SINK_BEGINS, batch_id)
        self._is_sure = False
        with self._failing(f"did not take batch {batch_id}"):
            while not self._commit(rows, batch_id, self._last):
                # Another driver was quicker: has it written this batch?
                before, self._last = self._last, self._find_last()
                if self._last is None and before is not None:
                    raise self._unmarked("its batch id")
                if self._has(batch_id):
                    break
        self._last, self._is_sure = batch_id, True
        hooks.reach(hooks.SINK_COMMITTED, batch_id)

    def _has(self, batch_id: int) -> bool:
        last = self._last
        if last is None or last == batch_id - 1:
            return False
        if last == batch_id:
            return True
        if last > batch_id:
            raise SinkError(
                f"{self.place} is at batch {last} already, and the query is at batch {batch_id}. "
                "Either another driver runs this query, or its location was restored from an older "
                "backup than the sink. Nothing was written: stop the other driver, restore the "
                "sink from the same backup, or choose an empty one."
            )
        if self.accept_gap:
            return False
        raise SinkError(
            f"{self.place} is at batch {last}, and the query is at batch {batch_id}: what comes "
            "between them is not in the sink. It was restored from a backup, or the query had "
            "another sink meanwhile. Nothing was written: choose an empty sink, or go on without "
            "these batches by accept_gap=True."
        )

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Say of the library's errors where they happened and what to do."""
        try:
            yield
        except self._errors() as error:
            raise SinkError(
                f"{self.place} {what}: {first_line(error)}. Nothing is lost: put it right and "
                "start the query again."
            ) from error

    def _belongs_to(self, owner: str) -> SinkError:
        return SinkError(
            f"{self.place} belongs to another query ({owner}; this one is {self._query}). Give "
            "each query, and each new checkpointLocation, one of its own."
        )

    def _unmarked(self, marker: str) -> SinkError:
        return SinkError(
            f"{self.place} holds rows but has no marker of its last batch ({marker}): it was "
            "written by something else, or the marker was deleted. Choose an empty one, or restore "
            "it from a backup."
        )

    def _other_schema(self, differences: Sequence[str]) -> SinkError:
        return SinkError(
            f"{self.place} has other columns than the output: {'; '.join(differences)}. Change the "
            "output with transform(), or choose another target."
        )

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """What the library raises if the target does not do what it should."""

    @abstractmethod
    def _claim(self) -> None:
        """Make the target this query's if it is nobody's, and check its columns."""

    @abstractmethod
    def _find_last(self) -> int | None:
        """The id of the last batch in the target; None before the first."""

    @abstractmethod
    def _commit(self, rows: BatchRows, batch_id: int, last: int | None) -> bool:
        """Write rows and marker at once; False, with nothing written, if it is not at `last`."""


def retried(attempt: Callable[[], bool], conflict: type[Exception]) -> bool:
    """What an attempt returns; one that another commit came before is tried again.

    If that commit was of this query, the next attempt sees its marker.
    """
    for number in range(1, ATTEMPTS):
        try:
            return attempt()
        except conflict:
            clock.sleep(PAUSE_SECONDS * number)
    return attempt()


def require(kind: str, package: str) -> None:
    """Raise unless the package of a kind of sink is installed."""
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(
            f"the {kind} sink needs the package {package}, which is not installed. Install "
            f"Millrace with its extra: millrace[{kind}]."
        )


def without_password(url: str) -> str:
    """A URL, or a list of settings such as libpq takes, as it may be shown."""
    url = _PASSWORD.sub("password=***", url)
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def columns_of(sink: str, option: str, value: Any) -> tuple[str, ...]:
    """An option that is a column's name or several."""
    names = (value,) if isinstance(value, str) else value
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise SinkError(
            f"the {sink} sink takes {option}= as a column's name or a list of them, not {value!r}."
        )
    return tuple(names)


def check_upsert(kind: str, mode: str, key: Any) -> tuple[str, ...]:
    """The key columns of a sink that appends or upserts; none if it appends."""
    if mode not in ("append", "upsert"):
        raise SinkError(f"the {kind} sink's mode= is append or upsert, not {mode!r}.")
    if (mode == "upsert") != (key is not None):
        raise SinkError(
            f"the {kind} sink needs key= with mode='upsert', and has no use for it otherwise: the "
            "columns by which a row replaces an earlier one."
        )
    return () if key is None else columns_of(kind, "key", key)


def check_key(key: Sequence[str], schema: pa.Schema) -> None:
    """Raise unless the output has the key columns."""
    missing = [name for name in key if name not in schema.names]
    if missing:
        raise SinkError(
            f"the output has no column {missing[0]!r}, which key= names. Its columns are "
            f"{', '.join(schema.names)}."
        )


def differences(output: pa.Schema, table: pa.Schema) -> list[str]:
    """What of a table's columns differs from the output's, for people."""
    said = []
    for name in output.names:
        if name not in table.names:
            said.append(f"column {name!r} is missing in the table")
        elif _type_of(output, name) != _type_of(table, name):
            mine, theirs = _type_of(output, name), _type_of(table, name)
            said.append(f"column {name!r} is {theirs} in the table, {mine} in the output")
    said += [f"column {name!r} is not in the output" for name in set(table.names) - {*output.names}]
    return said


def _type_of(schema: pa.Schema, name: str) -> str:
    # Nullability is only a hint, and large is only a layout.
    return str(schema.field(name).type).replace(" not null", "").replace("large_", "")
