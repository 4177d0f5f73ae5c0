"""The Delta Lake sink: a batch is one commit of the table's log.

The marker is Delta's own: a commit has the batch id as the version of an application's transaction,
and the application is the query. The log refuses a commit if another one of the same application
came meanwhile. The property `millrace-query` says whose table it is.

Appended rows go through the driver as a stream. An upsert holds a batch in the driver's memory, to
find the last row of each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace import hooks
from millrace.errors import SinkError
from millrace.spark.sinks.contract import first_line
from millrace.spark.sinks.marked import (
    MarkedSink,
    check_key,
    check_upsert,
    differences,
    require,
    retried,
)
from millrace.spark.sinks.rows import BatchRows

if TYPE_CHECKING:
    from deltalake import DeltaTable

OWNER = "millrace-query"


class Delta(MarkedSink):
    """Appends to a table, or keeps in it the newest row per key."""

    kind = "delta"

    def __init__(
        self,
        path: str,
        mode: str = "append",
        key: Any = None,
        storage_options: dict[str, str] | None = None,
        accept_gap: bool = False,
    ) -> None:
        super().__init__()
        require(self.kind, "deltalake")
        self.accept_gap = accept_gap
        self.place = f"the Delta table {path}"
        self.target = ("path", path)
        self._path = path
        self._key = check_upsert(self.kind, mode, key)
        self._storage = storage_options

    def _errors(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return (DeltaError, OSError)

    def _load(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self._path, storage_options=self._storage)

    @property
    def _application(self) -> str:
        return f"millrace-{self._query}"

    def _claim(self) -> None:
        from deltalake import DeltaTable

        check_key(self._key, self._schema)
        if not DeltaTable.is_deltatable(self._path, self._storage):
            self._create()
        table = self._load()
        owner = table.metadata().configuration.get(OWNER)
        if owner not in (None, self._query):
            raise self._belongs_to(owner)
        differ = differences(self._schema, pa.schema(table.schema().to_arrow()))
        if differ:
            raise self._other_schema(differ)
        self._check_marked(table)
        if owner is None:
            table.alter.set_table_properties({OWNER: self._query}, raise_if_not_exists=False)

    def _create(self) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable.create(
                self._path,
                self._schema,
                mode="ignore",
                storage_options=self._storage,
                configuration={OWNER: self._query},
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            raise
        except Exception as error:
            # Delta's own word for a type that it does not have is a plain Exception.
            raise SinkError(
                f"{self.place} cannot be created: {first_line(error)}. Cast the column with "
                "transform(), or choose another path."
            ) from error

    def _find_last(self) -> int | None:
        return self._last_of(self._load())

    def _last_of(self, table: DeltaTable) -> int | None:
        if table.metadata().configuration.get(OWNER) != self._query:
            raise self._unmarked(f"the property {OWNER}")
        return self._check_marked(table)

    def _check_marked(self, table: DeltaTable) -> int | None:
        last = table.transaction_version(self._application)
        if last is None and table.get_add_actions().num_rows > 0:
            raise self._unmarked(f"a transaction of {self._application}")
        return last

    def _commit(self, rows: BatchRows, batch_id: int, last: int | None) -> bool:
        from deltalake.exceptions import CommitFailedError

        def attempt() -> bool:
            table = self._load()
            if self._last_of(table) != last:
                return False
            self._change(table, rows, batch_id)
            return True

        return retried(attempt, CommitFailedError)

    def _change(self, table: DeltaTable, rows: BatchRows, batch_id: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        marker = CommitProperties(
            custom_metadata={OWNER: self._query, "millrace-batch-id": batch_id},
            app_transactions=[Transaction(self._application, batch_id)],
        )
        if not self._key:
            data = pa.RecordBatchReader.from_batches(rows.schema, _announced(rows, batch_id))
            write_deltalake(table, data, mode="append", commit_properties=marker)
            return
        newest = newest_per_key(rows, self._key)
        hooks.reach(hooks.SINK_WRITTEN, batch_id)
        if newest.num_rows == 0:
            # A merge of nothing would commit nothing, and so no marker.
            write_deltalake(table, newest, mode="append", commit_properties=marker)
            return
        names = [_quoted(name) for name in self._key]
        same = " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in names)
        merge = table.merge(
            newest, same, source_alias="s", target_alias="t", commit_properties=marker
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _announced(rows: BatchRows, batch_id: int) -> Iterator[pa.RecordBatch]:
    """The rows; Delta writes and commits in one call, and is about to commit after the last."""
    yield from rows
    hooks.reach(hooks.SINK_WRITTEN, batch_id)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def newest_per_key(rows: BatchRows, key: tuple[str, ...]) -> pa.Table:
    """The last row of each key."""
    table = pa.Table.from_batches(list(rows), rows.schema)
    names = [f"k{i}" for i in range(len(key))]
    keys = table.select(list(key)).rename_columns(names)
    numbered = keys.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(names).aggregate([("row", "max")])["row_max"]
    return table.take(last.combine_chunks().sort())
