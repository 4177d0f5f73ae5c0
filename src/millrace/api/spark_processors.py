"""Spark's call on Millrace's state: `mr.transform_with_state(df.groupBy("k"), processor, ...)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.api.columns import named
from millrace.api.origin import grouping, origin, then
from millrace.api.stream import Stream, stream
from millrace.errors import MillraceError, UnknownColumnError, UsageError
from millrace.operators.operator import Column
from millrace.operators.process.keyed import Schemas
from millrace.operators.spark_processor.handle import EVENT, TIME_MODES, DeclaringHandle, Parse
from millrace.operators.spark_processor.operator import Program, SparkProcessorOperator
from millrace.operators.spark_processor.row_formats import Settings
from millrace.spark.exchange import RowExchange, StreamColumns
from millrace.spark.initial import InitialExchange, InitialRows
from millrace.spark.steps import OperatorStep

_WATERMARK = "spark.watermarkDelayMs"
"""Spark's mark, in a column's metadata, of the one that `withWatermark` was called with."""

_COLUMNS = ("UnresolvedAttribute", "AttributeReference")


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: T.StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    name: str = "transform-with-state",
) -> Stream:
    """Run a processor written for `GroupedData.transformWithState`, unchanged.

    `grouped` is what `df.groupBy("k")` returns for a streaming DataFrame; the rest is as in Spark.
    `name` identifies the state in the location, across restarts.
    """
    call = _Call(outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
    return _transform(grouped, statefulProcessor, call, name, in_pandas=False)


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: T.StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    name: str = "transform-with-state",
) -> Stream:
    """Run a processor written for `GroupedData.transformWithStateInPandas`, unchanged."""
    call = _Call(outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
    return _transform(grouped, statefulProcessor, call, name, in_pandas=True)


@dataclass(frozen=True)
class _Call:
    """What both calls take, as in Spark."""

    output: T.StructType | str
    output_mode: str
    time_mode: str
    initial: GroupedData | None
    event_time_column: str


def _transform(
    grouped: GroupedData,
    processor: StatefulProcessor,
    call: _Call,
    name: str,
    *,
    in_pandas: bool,
) -> Stream:
    df, key_names = _grouping(grouped, "the first argument")
    time_mode = _one_of("timeMode", call.time_mode, ("None", "ProcessingTime", "EventTime"))
    _check_output_mode(call.output_mode)
    schema = _output_schema(df.sparkSession, call.output, call.event_time_column)
    late_column = _event_time(df.schema) if time_mode == EVENT else None
    return run_processor(
        stream(df),
        key_names,
        processor,
        Running(schema, time_mode, in_pandas, late_column, call.initial, call.event_time_column),
        name,
    )


@dataclass(frozen=True)
class Running:
    """How a processor runs: checked, and in Spark's words."""

    output: T.StructType
    time_mode: str
    in_pandas: bool
    late_column: tuple[str, SparkColumn] | None = None
    """The name of the event time, and the time that late rows are known by."""
    initial: GroupedData | None = None
    event_time_column: str = ""


def run_processor(
    upstream: Stream,
    key_names: Sequence[str],
    processor: StatefulProcessor,
    running: Running,
    name: str,
) -> Stream:
    """A processor over a stream, by the columns that its state belongs to."""
    assert running.time_mode in TIME_MODES
    spark = origin(upstream).spark
    keys = grouping(upstream.key_by(*key_names)).keys
    operator_name = origin(upstream).new_name("transform-with-state", name)
    handle = _declare(processor, running.time_mode, list(key_names), spark)
    initial_df, initial_names = _initial(running.initial, keys)
    initial_fields = (
        () if initial_df is None else tuple(Column(f.name, f.dataType) for f in initial_df.schema)
    )
    dumps: Any = cloudpickle.dumps
    program = Program(
        processor=dumps(processor),
        class_name=type(processor).__name__,
        declared=handle.declared,
        deleted=handle.deleted,
        time_mode=running.time_mode,
        in_pandas=running.in_pandas,
        settings=_settings(spark),
        event_time_column=running.event_time_column,
    )
    fields = [Column(f.name, f.dataType) for f in upstream.schema.fields]
    event_time, event = (None, None) if running.late_column is None else running.late_column
    schemas = Schemas(keys, fields, running.output, event_time, initial_fields)
    operator = SparkProcessorOperator(operator_name, schemas, program)
    key_columns = [(named(k.name), k.type) for k in keys]
    field_columns = [(named(f.name), f.type) for f in fields]
    columns = StreamColumns(key_columns, field_columns, event)
    exchange = RowExchange(columns)
    first = None
    if initial_df is not None:
        given = [(named(f.name), f) for f in initial_fields]
        initial_rows = InitialRows(initial_df, [named(n) for n in initial_names], given)
        first = InitialExchange(columns, initial_rows)
    step = OperatorStep(operator, exchange, operator.code(), first)
    return then(upstream, running.output, step, event_time=running.event_time_column or None)


def _grouping(grouped: object, what: str) -> tuple[DataFrame, list[str]]:
    """The DataFrame and the names of the columns it is grouped by."""
    if not isinstance(grouped, GroupedData):
        raise UsageError(
            f"{what} must be a grouped DataFrame, such as df.groupBy('k'), not "
            f"{type(grouped).__name__}."
        )
    df, java = grouped._df, cast(Any, grouped)._jgd
    if "type: GroupBy]" not in java.toString():
        raise UsageError(f"{what} must come from groupBy(), not from rollup(), cube() or pivot().")
    expressions = java.groupingExprs()
    names = []
    for i in range(expressions.size()):
        expression = expressions.apply(i)
        column = expression.name() if _class(expression) in _COLUMNS else None
        column = column.strip("`") if column not in df.columns and column else column
        if column not in df.columns:
            raise UsageError(
                f"{what} is grouped by {expression.toString()}, which is not a column. Compute "
                "it first: df.withColumn('k', ...).groupBy('k')."
            )
        names.append(column)
    if not names:
        raise UsageError(f"{what} is grouped by no column; state belongs to a key.")
    return df, names


def _class(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _one_of(what: str, value: object, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.lower() in [a.lower() for a in allowed]:
        return value.lower()
    raise UsageError(f"{what}={value!r}: it is one of {', '.join(map(repr, allowed))}.")


def _check_output_mode(mode: object) -> None:
    if _one_of("outputMode", mode, ("Append", "Update", "Complete")) == "complete":
        raise UsageError(
            "outputMode='Complete' needs an aggregation, in Spark as well. A processor emits what "
            "it yields: use 'Update' or 'Append'."
        )


def _parser(spark: SparkSession) -> Parse:
    def parse(text: str) -> T.StructType:
        return cast(T.StructType, cast(Any, spark)._parse_ddl(text))

    return parse


def _output_schema(
    spark: SparkSession, output: T.StructType | str, event_time_column: str
) -> T.StructType:
    schema = _parser(spark)(output) if isinstance(output, str) else output
    if not isinstance(schema, T.StructType):
        raise UsageError(f"outputStructType={output!r}: it is a StructType, or 'k string, n long'.")
    if event_time_column:
        if event_time_column not in schema.names:
            raise UnknownColumnError(
                f"eventTimeColumnName={event_time_column!r} is not in the output schema "
                f"{schema.simpleString()}."
            )
        if not isinstance(schema[event_time_column].dataType, T.TimestampType):
            raise UsageError(f"eventTimeColumnName={event_time_column!r} is not a timestamp.")
    return schema


def _declare(
    processor: StatefulProcessor, time_mode: str, key_names: list[str], spark: SparkSession
) -> DeclaringHandle:
    """Run a copy's `init` and `close`, as Spark does before the first batch."""
    if isinstance(processor, type) or not isinstance(processor, StatefulProcessor):
        raise UsageError(
            f"transform_with_state() takes an instance of a StatefulProcessor, not {processor!r}."
        )
    pickler: Any = cloudpickle
    copy = pickler.loads(pickler.dumps(processor))
    handle = DeclaringHandle(time_mode, key_names, _parser(spark))
    try:
        copy.init(handle)
        copy.close()
    except MillraceError:
        raise
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__}.init() or close() raised {type(error).__name__}: {error}. "
            "Both run once on the driver, before the query starts, to find the states they declare."
        ) from error
    return handle


def _event_time(schema: T.StructType) -> tuple[str, Any] | None:
    """The column with a watermark: its name, and the time to compare."""
    for field in schema.fields:
        if _WATERMARK in (field.metadata or {}):
            column = named(field.name)
            is_window = isinstance(field.dataType, T.StructType)
            return field.name, column.getField("end") if is_window else column
    return None


def _initial(
    initial: GroupedData | None, keys: tuple[Column, ...]
) -> tuple[DataFrame | None, list[str]]:
    if initial is None:
        return None, []
    df, names = _grouping(initial, "initialState")
    if df.isStreaming:
        raise UsageError("initialState must be a batch DataFrame, not a stream.")
    types_of = [df.schema[name].dataType for name in names]
    if types_of != [k.type for k in keys]:
        raise UsageError(
            f"initialState is grouped by {_described(names, types_of)}, and the stream by "
            f"{_described([k.name for k in keys], [k.type for k in keys])}. The types must agree."
        )
    return df, names


def _described(names: list[str], types_of: list[T.DataType]) -> str:
    pairs = zip(names, types_of, strict=True)
    return "(" + ", ".join(f"{name} {t.simpleString()}" for name, t in pairs) + ")"


def _settings(spark: SparkSession) -> Settings:
    def flag(name: str) -> bool:
        return str(spark.conf.get(name)).lower() == "true"

    python = "spark.sql.execution.pythonUDF.pandas"
    return Settings(
        session_time_zone=str(spark.conf.get("spark.sql.session.timeZone")),
        max_records_per_batch=int(
            str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
        ),
        assign_columns_by_name=flag(
            "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
        ),
        convert_safely=flag("spark.sql.execution.pandas.convertToArrowArraySafely"),
        prefer_int_extension_dtype=flag(f"{python}.preferIntExtensionDtype"),
        int_to_decimal_coercion=flag(f"{python}.intToDecimalCoercionEnabled"),
    )
