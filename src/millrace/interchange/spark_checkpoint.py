"""Import the state of a Spark query from its checkpoint, for a Millrace query to continue.

The state is read at the last batch that Spark committed, together with Spark's offsets, so the
Millrace query processes the next batch exactly as the Spark query would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from millrace import fields
from millrace.api.origin import origin
from millrace.api.stream import Stream
from millrace.api.writer import StreamWriter, branches
from millrace.epoch.rows import decode
from millrace.errors import MalformedError, SparkStateError, UsageError
from millrace.fields import MOST_TIME_MS, Fields
from millrace.ids import Epoch
from millrace.interchange import spark_state
from millrace.interchange.offsets import Files, read_offsets, with_more_sources
from millrace.interchange.spark_state import TIMERS, Filled, SparkOperator
from millrace.interchange.transfer import Transfer
from millrace.interchange.writing import OperatorState, Reached, StateWriter
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.keygroups.scheme import Scheme
from millrace.log import OperatorLog, open_store
from millrace.log.segment import HI, LO, OWNER_FIELDS, OWNER_HI, OWNER_LO, SYSTEM_FIELDS
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Moment
from millrace.operators.process.convert import encode_key, from_us
from millrace.operators.process.handles import ListHandle, MapHandle
from millrace.operators.process.keyed import KeyedOperator, Schemas
from millrace.operators.process.layout import EXPIRES
from millrace.operators.process.operator import ProcessOperator
from millrace.operators.process.processor import INITIAL, Processor, declarations, timers
from millrace.operators.spark_processor.operator import SparkProcessorOperator
from millrace.spark.graph import upstream
from millrace.spark.pipeline import Pipeline
from millrace.spark.steps import OperatorStep
from millrace.state.replica import Replica


def import_spark(
    checkpoint: str,
    stream: Stream | StreamWriter,
    location: str,
    *,
    operators: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    key_groups: int = DEFAULT_KEY_GROUPS,
    parallelism: int = 1,
    fresh_source: bool = False,
) -> Transfer:
    """Fill a new location with the state of a stopped Spark query.

    `stream` is the Millrace query that continues from it. `operators` has the number of Spark's
    operator for each of its own, if there are several; `states` has Spark's name of a state where a
    processor calls it otherwise. With `fresh_source`, Spark's offsets are left behind.
    """
    spark = _session(stream)
    targets = _operators(stream)
    store = open_store(checkpoint)
    batch_id = _last_batch(store.list("commits"), checkpoint)
    files: Files = {} if fresh_source else read_offsets(store, "", batch_id)
    beats = any(op.runs_without_rows for op in targets.values())
    files = with_more_sources(files, int(beats))
    scheme = Scheme.fresh()
    stateful = spark_state.operators(spark, checkpoint, batch_id, scheme)
    found = {op.number: op for op in stateful}
    chosen = _chosen(targets, found, operators)
    read = {
        name: _state(chosen[name], target, dict(states or {})) for name, target in targets.items()
    }
    writer = StateWriter(location, key_groups, parallelism, scheme)
    rows = sum(writer.operator(targets[name].name, state) for name, state in read.items())
    writer.put_offsets(files)
    writer.commit(Reached(batch_id, *_times(files, batch_id)) if files else Reached())
    return Transfer(writer.url, 1, tuple(targets), rows, bool(files))


def _session(stream: Stream | StreamWriter) -> SparkSession:
    if not isinstance(stream, Stream | StreamWriter):
        raise UsageError(
            f"import_spark() takes the stream that continues from the state, not "
            f"{type(stream).__name__}: what aggregate() or process() returned."
        )
    return (branches(stream) if isinstance(stream, StreamWriter) else origin(stream)).spark


def _operators(stream: Stream | StreamWriter) -> dict[str, Any]:
    if isinstance(stream, StreamWriter):
        return {str(op.name): op for op in Pipeline(branches(stream).paths).operators}
    steps = [point.step for point in upstream([origin(stream).point])]
    return {str(s.operator.name): s.operator for s in steps if isinstance(s, OperatorStep)}


def _last_batch(paths: list[str], checkpoint: str) -> int:
    names = [path.rsplit("/", 1)[-1] for path in paths]
    batches = [int(name) for name in names if name.isascii() and name.isdigit()]
    if not batches:
        raise SparkStateError(
            f"{checkpoint} is not the checkpoint of a Spark query with a committed batch: it has "
            "no commits. Give what was its checkpointLocation."
        )
    return max(batches)


def _times(files: Files, batch_id: int) -> tuple[int | None, int]:
    """The watermark and the processing time of a batch, as Spark's offset log has them."""
    try:
        lines = files[f"offsets/{batch_id}"].split(b"\n")
        times = Fields(fields.parse(lines[1] if len(lines) > 1 else b""), "the second line")
        watermark, processing = (
            times.integer(name, 0, MOST_TIME_MS) if times.has(name) else 0
            for name in ("batchWatermarkMs", "batchTimestampMs")
        )
    except MalformedError as error:
        raise SparkStateError(
            f"Spark's offsets of batch {batch_id} are malformed: {error}. Restore the checkpoint "
            "from a backup."
        ) from error
    return watermark or None, processing


def _chosen(
    targets: Mapping[str, Any],
    found: Mapping[int, SparkOperator],
    given: Mapping[str, int] | None,
) -> dict[str, SparkOperator]:
    listed = "; ".join(op.title for op in found.values()) or "none"
    numbers = dict(given or {})
    if not numbers and len(targets) == len(found) == 1:
        numbers = dict.fromkeys(targets, next(iter(found)))
    for name in targets:
        if numbers.get(name) not in found:
            raise SparkStateError(
                f"which of Spark's operators does {name!r} continue? Name it with "
                f"operators={{{name!r}: number}}. There are: {listed}."
            )
    return {name: found[numbers[name]] for name in targets}


def _state(source: SparkOperator, target: Any, names: dict[str, str]) -> OperatorState:
    if isinstance(target, AggregateOperator):
        rows = spark_state.aggregate_rows(source, target)
        return OperatorState(target.spec(), {MAIN: rows})
    assert isinstance(target, KeyedOperator)
    if isinstance(target, SparkProcessorOperator):
        names = {d.column: d.name for d in target.program.declared} | names
    filled = spark_state.processor_rows(source, target, names)
    return OperatorState(target.spec(), _tables(target, filled, source.scheme))


def _tables(target: Any, filled: Filled, scheme: Scheme) -> dict[str, pa.Table]:
    """A processor's tables, made by a processor with the same states that only fills them."""
    body: dict[str, Any] = dict(declarations(target.processor))
    is_own = not isinstance(target, SparkProcessorOperator)
    body[INITIAL] = _filling([column.name for column in filled.columns], is_own)
    processor = type("Filling", (Processor,), body)()
    schemas = Schemas(target.keys, (), T.StructType(), initial=filled.columns)
    operator = ProcessOperator(target.name, schemas, processor)
    assert operator.spec()["states"] == target.spec()["states"]
    count = 2
    store = open_store("memory://millrace-filling")
    replicas = {
        table: Replica(store, layout.schema, count, owned=layout.owned, scheme=scheme)
        for table, layout in operator.tables.items()
    }
    for replica in replicas.values():
        replica.follow(OperatorLog(count), Epoch(0), np.arange(count))
    # Before all times, so that no timer is due and nothing has expired: Spark had not done so yet.
    moment = Moment(1, 0, None)
    change = operator.apply(replicas, _arriving(filled), np.arange(count), moment)
    until = _Until(filled)
    tables = {}
    for table, layout in operator.tables.items():
        owned = OWNER_FIELDS if layout.owned else ()
        schema = pa.schema([*SYSTEM_FIELDS, *owned, *layout.schema])
        changed = change.tables.get(table)
        rows = schema.empty_table()
        if changed is not None:
            rows = pa.Table.from_batches([changed.rows])
        tables[table] = until.applied(rows, table)
    return tables


def _filling(columns: list[str], is_own: bool) -> Any:
    def on_initial_state(self: Any, key: Any, rows: Any, ctx: Any) -> None:
        (row,) = rows
        for name, value in zip(columns, row, strict=True):
            if value is None:
                continue
            if name == TIMERS:
                _set_timers(self, value, is_own)
                continue
            state = getattr(self, name)
            if isinstance(state, MapHandle):
                for entry in value:
                    state.set(entry["key"], entry["value"])
            elif isinstance(state, ListHandle):
                state.extend(entry["value"] for entry in value)
            else:
                state.set(value["value"])

    return on_initial_state


def _set_timers(processor: Any, times: list[int], is_own: bool) -> None:
    (name,) = timers(processor)
    handle = getattr(processor, name)
    for ms in times:
        # A class of Spark's knows its timers by their times; one of ours has one without a label.
        label = "" if is_own and len(times) == 1 else str(ms)
        handle.set(from_us(ms * 1000), label)


def _arriving(filled: Filled) -> Input:
    """Rows as an exchange delivers those of an initial state."""
    count = filled.rows.num_rows
    return replace(
        decode(filled.rows),
        part=np.zeros(count, np.int32),
        initial=tuple(filled.rows.column(column.name) for column in filled.columns),
        is_initial=pa.array(np.ones(count, np.bool_)),
    )


class _Until:
    """When what Spark gave a time to live expires: exactly when it would have there."""

    def __init__(self, filled: Filled) -> None:
        self._of: dict[str, dict[Any, int | None]] = {}
        hi = filled.rows.column(HI).to_numpy().view(np.uint64).tolist()
        lo = filled.rows.column(LO).to_numpy().view(np.uint64).tolist()
        for column in filled.columns:
            if column.name == TIMERS:
                continue
            found: dict[Any, int | None] = {}
            values = filled.rows.column(column.name).to_pylist()
            for owner, value in zip(zip(hi, lo, strict=True), values, strict=True):
                if isinstance(value, list):
                    for place, entry in enumerate(value):
                        token = encode_key(entry["key"]) if "key" in entry else place
                        found[owner, token] = _us(entry["until"])
                    ends = [_us(entry["until"]) for entry in value]
                    found[owner] = max((e for e in ends if e is not None), default=None)
                elif value is not None:
                    found[owner] = _us(value["until"])
            self._of[column.name] = found

    def applied(self, rows: pa.Table, table: str) -> pa.Table:
        if table == MAIN:
            owners = _pairs(rows, HI, LO)
            for name, found in self._of.items():
                if f"{name}.{EXPIRES}" in rows.schema.names:
                    rows = _replaced(rows, f"{name}.{EXPIRES}", [found.get(o) for o in owners])
            return rows
        found = self._of.get(table, {})
        if EXPIRES not in rows.schema.names:
            return rows
        tokens: list[Any]
        if "position" in rows.schema.names:
            tokens = rows.column("position").to_pylist()
        else:
            tokens = [encode_key(key) for key in rows.column("key").to_pylist()]
        owners = _pairs(rows, OWNER_HI, OWNER_LO)
        ends = [found.get(pair) for pair in zip(owners, tokens, strict=True)]
        return _replaced(rows, EXPIRES, ends)


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000


def _pairs(rows: pa.Table, hi: str, lo: str) -> list[tuple[int, int]]:
    return list(zip(rows.column(hi).to_pylist(), rows.column(lo).to_pylist(), strict=True))


def _replaced(rows: pa.Table, name: str, values: list[int | None]) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(name), pa.array(values, pa.int64()))
