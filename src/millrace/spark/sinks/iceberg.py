"""The Iceberg sink: a batch is one commit of the table, with one snapshot.

The marker is a property of the table, `millrace-batch-id`, set in the same commit; the snapshot has
it too, so that a reader finds the snapshot of a batch. A commit is refused if the table has changed
since it was loaded.

Rows go through the driver as a stream; for a partitioned table, as a whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace import hooks
from millrace.errors import SinkError
from millrace.spark.sinks.contract import first_line
from millrace.spark.sinks.marked import MarkedSink, differences, require, retried
from millrace.spark.sinks.rows import BatchRows

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

OWNER = "millrace-query"
BATCH = "millrace-batch-id"
RETRIES = "commit.retry.num-retries"


class Iceberg(MarkedSink):
    """Appends to a table of a catalogue."""

    kind = "iceberg"

    def __init__(
        self,
        table: str,
        catalog: str | dict[str, str] = "default",
        accept_gap: bool = False,
    ) -> None:
        super().__init__()
        require(self.kind, "pyiceberg")
        if not isinstance(catalog, (str, dict)):
            raise SinkError(
                "the iceberg sink takes catalog= as the name of a catalogue that PyIceberg's "
                f"configuration has, or as a dict of its properties, not as {catalog!r}."
            )
        if "." not in table.strip("."):
            raise SinkError(f"the iceberg sink's table= is NAMESPACE.NAME, not {table!r}.")
        self.accept_gap = accept_gap
        self.place = f"the Iceberg table {table}"
        self.target = ("table", table)
        self._table = table
        self._options = catalog

    def _errors(self) -> tuple[type[Exception], ...]:
        from pyiceberg import exceptions

        return (OSError, ValueError, *_raised_by(exceptions), *_database_errors())

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        if isinstance(self._options, str):
            return load_catalog(self._options)
        options = dict(self._options)
        return load_catalog(options.pop("name", "default"), **options)

    def _load(self) -> Table:
        return self._catalog().load_table(self._table)

    def _claim(self) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._catalog()
        try:
            table = catalog.load_table(self._table)
        except NoSuchTableError:
            table = self._create(catalog)
        owner = table.properties.get(OWNER)
        if owner not in (None, self._query):
            raise self._belongs_to(owner)
        if table.current_snapshot() is not None and BATCH not in table.properties:
            raise self._unmarked(f"the property {BATCH}")
        differ = differences(_as_iceberg(self._schema), table.schema().as_arrow())
        if differ:
            raise self._other_schema(differ)
        if owner is None:
            with table.transaction() as transaction:
                transaction.set_properties({OWNER: self._query})

    def _create(self, catalog: Catalog) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
        try:
            return catalog.create_table(
                self._table, _as_iceberg(self._schema), properties={OWNER: self._query}
            )
        except TableAlreadyExistsError:
            return catalog.load_table(self._table)
        except TypeError as error:
            raise SinkError(
                f"{self.place} cannot be created: {first_line(error)}. Cast the column with "
                "transform()."
            ) from error

    def _find_last(self) -> int | None:
        return self._last_of(self._load())

    def _last_of(self, table: Table) -> int | None:
        if table.properties.get(OWNER) != self._query:
            raise self._unmarked(f"the property {OWNER}")
        last = table.properties.get(BATCH)
        if last is None and table.current_snapshot() is not None:
            raise self._unmarked(f"the property {BATCH}")
        if last is not None and not re.fullmatch(r"\d+", last):
            raise SinkError(
                f"{self.place} has {last!r} as its property {BATCH}, which is no batch id: it was "
                "changed by hand. Set it to the last batch in the table."
            )
        return None if last is None else int(last)

    def _commit(self, rows: BatchRows, batch_id: int, last: int | None) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        def attempt() -> bool:
            table = self._load()
            if self._last_of(table) != last:
                return False
            # PyIceberg itself would try again on top of whatever came first, maybe this batch.
            table.metadata.properties[RETRIES] = "0"
            self._append(table, rows, batch_id)
            return True

        return retried(attempt, CommitFailedException)

    def _append(self, table: Table, rows: BatchRows, batch_id: int) -> None:
        schema = _as_iceberg(rows.schema)
        data = pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in rows))
        with table.transaction() as transaction:
            transaction.set_properties({BATCH: str(batch_id)})
            transaction.append(
                data if table.spec().is_unpartitioned() else data.read_all(),
                snapshot_properties={OWNER: self._query, BATCH: str(batch_id)},
            )
            hooks.reach(hooks.SINK_WRITTEN, batch_id)


def _as_iceberg(schema: pa.Schema) -> pa.Schema:
    """Iceberg has no integers of less than four bytes."""
    small = (pa.int8(), pa.int16())
    fields = [f.with_type(pa.int32()) if f.type in small else f for f in schema]
    return pa.schema(fields)


def _raised_by(module: Any) -> list[type[Exception]]:
    """The exceptions of a module; PyIceberg's have no common base."""
    found = [value for value in vars(module).values() if isinstance(value, type)]
    return [each for each in found if issubclass(each, Exception) and each is not Exception]


def _database_errors() -> tuple[type[Exception], ...]:
    """Those of an SQL catalogue's database, which PyIceberg hands on."""
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return ()
    return (SQLAlchemyError,)
