"""State as Spark tables: `spark.read.format("millrace")`, and its change feed as a stream.

A read is pinned to one epoch when it is planned, so all its partitions see the same. A partition is
a range of key groups. Options are called as in Spark's own `statestore` source where they mean the
same.

With the option `pushFilters`, a filter that gives the key leaves only the key groups, pages and
rows of those keys. It has to be asked for: Spark 4.3 keeps the reader of a Python source with the
DataFrame that was loaded, so a DataFrame that was filtered once would stay filtered if it is used
again without a filter. With it, load the DataFrame again for every query.

A stream's offset is an epoch. From 0 it starts with the whole state as of the first batch's epoch,
and continues with the rows that every later epoch changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from millrace.errors import StateTypeError, UsageError
from millrace.ids import Epoch, table_name
from millrace.keygroups import format_ranges, groups_of, parse_ranges
from millrace.log import Journal, open_store
from millrace.operators.operator import MAIN
from millrace.operators.process.convert import to_arrow
from millrace.reading.changes import CHANGE, EPOCH, UPSERT
from millrace.reading.epochs import epoch_of_batch, no_epoch_yet
from millrace.reading.reader import Reader, open_location
from millrace.reading.state_table import StateTable
from millrace.reading.tables import TimerTable, tables

FORMAT = "millrace"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
MOST_KEYS = 10_000
"""A filter that stands for more keys than this is left to Spark."""

_NAMES = (
    "path",
    "operator",
    "stateVarName",
    "readRegisteredTimers",
    "batchId",
    "epoch",
    "numPartitions",
    "pushFilters",
    "readChangeFeed",
    "changeStartBatchId",
    "changeEndBatchId",
    "maxEpochsPerTrigger",
)


@dataclass(frozen=True)
class Options:
    """The options of a read, checked."""

    path: str
    operator: str | None
    state: str | None
    batch_id: int | None
    epoch: int | None
    partitions: int | None
    push_filters: bool
    change_feed: bool
    start_batch: int | None
    end_batch: int | None
    epochs_per_trigger: int | None

    @staticmethod
    def parse(given: Mapping[str, str]) -> Options:
        known = {name.lower(): name for name in _NAMES}
        options = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise UsageError(
                    f"format {FORMAT!r} has no option {name!r}; it has {', '.join(_NAMES)}."
                )
            options[known[name.lower()]] = value
        if not options.get("path"):
            raise UsageError(f"format {FORMAT!r} needs a location: .load('/data/totals').")
        timers = _flag(options, "readRegisteredTimers")
        state = options.get("stateVarName")
        if timers and state:
            raise UsageError("stateVarName and readRegisteredTimers name two tables: give one.")
        found = Options(
            path=options["path"],
            operator=options.get("operator"),
            state=TimerTable.NAME if timers else state,
            batch_id=_number(options, "batchId"),
            epoch=_number(options, "epoch"),
            partitions=_number(options, "numPartitions"),
            push_filters=_flag(options, "pushFilters"),
            change_feed=_flag(options, "readChangeFeed"),
            start_batch=_number(options, "changeStartBatchId"),
            end_batch=_number(options, "changeEndBatchId"),
            epochs_per_trigger=_number(options, "maxEpochsPerTrigger"),
        )
        if found.batch_id is not None and found.epoch is not None:
            raise UsageError("batchId and epoch both name an epoch: give one of them.")
        return found

    def open(self, epoch: int, *, lease: bool) -> Reader:
        return open_location(self.path, epoch=epoch, lease=lease)

    def pinned(self) -> Epoch:
        """The epoch of a batch read."""
        journal = Journal.open(open_store(self.path))
        if self.epoch is not None:
            return Epoch(self.epoch)
        batch = self.end_batch if self.change_feed else self.batch_id
        if batch is not None:
            return epoch_of_batch(journal, batch)
        head = journal.head()
        if not head:
            raise no_epoch_yet(self.path)
        return head


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"option {name}={text!r}: give true or false.")
    return text == "true"


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise UsageError(f"option {name}={text!r}: give a whole number.")
    return int(text)


class StateSource(DataSource):
    """`spark.read.format("millrace")` and `spark.readStream.format("millrace")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        options = Options.parse(self.options)
        reader = options.open(options.pinned(), lease=False)
        return _spark_schema(_arrow_schema(reader, options))

    def reader(self, schema: T.StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        if options.change_feed and options.start_batch is None:
            raise UsageError(
                "readChangeFeed needs changeStartBatchId, the first batch of the feed."
            )
        return FilteringReader(options) if options.push_filters else StateReader(options)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        options = Options.parse(self.options)
        if not options.change_feed:
            raise UsageError(
                "a state can only be streamed as changes: add .option('readChangeFeed', 'true')."
            )
        return ChangeReader(options)


def _arrow_schema(reader: Reader, options: Options) -> pa.Schema:
    if options.change_feed:
        return reader.changes_schema(options.operator, state=options.state, every=True)
    return reader.schema(options.operator, state=options.state)


def _spark_schema(schema: pa.Schema) -> T.StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


@dataclass
class KeyGroups(InputPartition):
    """Some key groups at an epoch; of a feed, what changed after another."""

    groups: str
    until: int
    since: int | None = None

    def __init__(self, groups: str, until: int, since: int | None = None) -> None:
        self.groups, self.until, self.since = groups, until, since


def _table(reader: Reader, options: Options) -> StateTable:
    # Raises for an operator or a state that is not there.
    reader.schema(options.operator, state=options.state)
    snapshot = reader.snapshot
    name = snapshot.description(options.operator).name
    return tables(snapshot, name)[options.state or MAIN]


def _ranges(reader: Reader, options: Options, groups: Sequence[int]) -> list[str]:
    """Key groups in as many parts as requested; by default, one per shard."""
    snapshot = reader.snapshot
    operator = snapshot.description(options.operator).name
    assignment = snapshot.trail.operator(table_name(operator)).assignment
    wanted = options.partitions or (assignment.shards if assignment is not None else 1)
    parts = np.array_split(np.asarray(groups, np.int64), min(wanted, max(len(groups), 1)))
    return [format_ranges(part.tolist()) for part in parts if len(part)]


class StateReader(DataSourceReader):
    """A batch read of a state, or of its change feed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._epoch = options.pinned()
        self._keys: pa.Table | None = None
        """The only keys to read; None for all."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        reader = options.open(self._epoch, lease=False)
        groups: Sequence[int] = range(reader.key_groups)
        if self._keys is not None:
            table = _table(reader, options)
            hi, _ = table.fingerprints([c.combine_chunks() for c in self._keys.columns])
            groups = np.unique(groups_of(hi, reader.key_groups)).tolist()
        since = None
        if options.change_feed:
            assert options.start_batch is not None
            since = _before(Journal.open(open_store(options.path)), options.start_batch)
        return [KeyGroups(part, self._epoch, since) for part in _ranges(reader, options, groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyGroups)
        options = self._options
        with options.open(partition.until, lease=True) as reader:
            if partition.since is not None:
                yield from _changes(reader, options, partition)
            elif self._keys is not None:
                yield _found(reader, options, self._keys, partition)
            else:
                yield from reader.to_batches(
                    options.operator, state=options.state, key_groups=partition.groups
                )


class FilteringReader(StateReader):
    """A batch read of the keys that its filters give."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what gives the whole key. Spark still applies all filters, so more rows are fine."""
        if not self._options.change_feed:
            reader = self._options.open(self._epoch, lease=False)
            table = _table(reader, self._options)
            if table.can_find:
                self._keys = _wanted_keys(filters, table)
        return filters


def _before(journal: Journal, batch_id: int) -> int:
    """The epoch that the changes of a batch and those after it build on."""
    if batch_id == 0:
        first = journal.epochs()[:1]
        if first and journal.read(first[0])[0].batch_id is None:
            # The state was imported before the first batch.
            return int(first[0])
        return 0
    return int(epoch_of_batch(journal, batch_id - 1))


def _changes(reader: Reader, options: Options, partition: KeyGroups) -> Iterator[pa.RecordBatch]:
    assert partition.since is not None
    rows = reader.changes(
        partition.since,
        None,
        options.operator,
        state=options.state,
        key_groups=partition.groups,
        every=True,
    )
    yield from rows.to_batches()


def _found(
    reader: Reader, options: Options, keys: pa.Table, partition: KeyGroups
) -> pa.RecordBatch:
    """The rows of the wanted keys that are in a partition's key groups."""
    table = _table(reader, options)
    hi, lo = table.fingerprints([column.combine_chunks() for column in keys.columns])
    mine = np.isin(groups_of(hi, reader.key_groups), parse_ranges(partition.groups))
    return table.find(list(table.schema.names), (hi[mine], lo[mine]))


def _wanted_keys(filters: Iterable[Filter], table: StateTable) -> pa.Table | None:
    """The keys that filters leave, if every key column has a filter."""
    values: dict[str, list[Any]] = {}
    for given in filters:
        if not isinstance(given, EqualTo | EqualNullSafe | In) or len(given.attribute) != 1:
            continue
        column = given.attribute[0]
        if column in table.keys and column not in values:
            values[column] = list(given.value) if isinstance(given, In) else [given.value]
    if set(values) != set(table.keys):
        return None
    if np.prod([len(v) for v in values.values()]) > MOST_KEYS:
        return None
    rows = list(dict.fromkeys(itertools.product(*(values[name] for name in table.keys))))
    columns = {}
    for i, field in enumerate(table.description.key_schema):
        try:
            columns[field.name] = to_arrow([row[i] for row in rows], field.type, field.name)
        except StateTypeError:
            # Spark compares values of other types in its own way: let it.
            return None
    return pa.table(columns)


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of changes, by epoch."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._target: int | None = None

    def _journal(self) -> Journal:
        return Journal.open(open_store(self._options.path))

    def initialOffset(self) -> dict[str, int]:
        start = self._options.start_batch
        return {"epoch": 0 if start is None else _before(self._journal(), start)}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = int(self._journal().head())

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:
        head = self._target if self._target is not None else int(self._journal().head())
        most = self._options.epochs_per_trigger
        if most and start["epoch"]:
            head = min(head, start["epoch"] + most)
        return {"epoch": max(head, start["epoch"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        options, until, since = self._options, end["epoch"], start["epoch"]
        if until == since:
            return []
        reader = options.open(until, lease=False)
        every = range(reader.key_groups)
        return [KeyGroups(part, until, since) for part in _ranges(reader, options, every)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyGroups)
        options = self._options
        with options.open(partition.until, lease=True) as reader:
            if partition.since:
                yield from _changes(reader, options, partition)
                return
            schema = reader.changes_schema(options.operator, state=options.state, every=True)
            names = [name for name in schema.names if name not in (CHANGE, EPOCH)]
            for batch in reader.to_batches(
                options.operator, state=options.state, columns=names, key_groups=partition.groups
            ):
                change = pa.array([UPSERT] * batch.num_rows, pa.string())
                epoch = pa.array(np.full(batch.num_rows, partition.until, np.int64))
                columns = [*batch.columns, change, epoch]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def register(spark: SparkSession) -> None:
    """Make `format("millrace")` known to a session."""
    spark.dataSource.register(StateSource)
    # Without it Spark refuses sources that take filters.
    spark.conf.set(PUSHDOWN, "true")


def register_active() -> None:
    """Register with the session that is running, if there is one."""
    spark = SparkSession.getActiveSession()
    if spark is not None and hasattr(spark, "_jsparkSession"):
        register(spark)
