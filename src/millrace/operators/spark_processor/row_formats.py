"""Rows and output as a processor sees them: `Row` by `Row`, or as pandas DataFrames.

Everything is converted for the whole shard at once, and cut by key: a conversion per key would cost
more than the user's code.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from millrace import types
from millrace.errors import StateTypeError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Settings:
    """What Spark's configuration says about pandas; the names are Spark's."""

    session_time_zone: str = "UTC"
    max_records_per_batch: int = 10_000
    assign_columns_by_name: bool = True
    convert_safely: bool = False
    prefer_int_extension_dtype: bool = False
    int_to_decimal_coercion: bool = False


class RowFormat(Protocol):
    """How input is shown to a processor, and how its output is taken."""

    def keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Grouping keys, one row of the table each."""

    def rows(self, table: pa.Table) -> Callable[[int, int], Iterator[Any]]:
        """A function that gives what a processor gets of the rows from one number to another."""

    def output(self, emitted: list[Any], schema: T.StructType) -> pa.RecordBatch:
        """Everything that was emitted, in the output schema."""


class RowObjectFormat:
    """`transformWithState`: rows come as `Row`, timestamps in the session's time zone."""

    def keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        return list(zip(*map(_objects, table.columns), strict=True))

    def rows(self, table: pa.Table) -> Callable[[int, int], Iterator[Row]]:
        names = tuple(table.column_names)
        columns = [_objects(column) for column in table.columns]
        every = [_row(names, values) for values in zip(*columns, strict=True)]
        return lambda first, last: iter(every[first:last])

    def output(self, emitted: list[Any], schema: T.StructType) -> pa.RecordBatch:
        names = schema.names
        columns = list(zip(*[_by_name(row, names) for row in emitted], strict=True))
        arrays = []
        for number, field in enumerate(schema.fields):
            arrow = types.arrow_type(field.dataType, f"output column {field.name!r}")
            values = columns[number] if columns else ()
            if pa.types.is_nested(arrow):
                values = tuple(map(_as_dicts, values))
            try:
                arrays.append(pa.array(values, arrow))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise _misfit(values, arrow, field.name, emitted, error) from error
        return pa.RecordBatch.from_arrays(arrays, names=names)


class PandasFormat:
    """`transformWithStateInPandas`: rows come as DataFrames of at most a batch each."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _frame(self, table: pa.Table) -> pd.DataFrame:
        import pandas as pd
        from pyspark.sql.conversion import ArrowBatchTransformer

        series = ArrowBatchTransformer.to_pandas(
            table,
            timezone=self._settings.session_time_zone,
            prefer_int_ext_dtype=self._settings.prefer_int_extension_dtype,
        )
        return pd.concat(series, axis=1)

    def keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        if not table.num_rows:
            return []
        return list(self._frame(table).itertuples(index=False, name=None))

    def rows(self, table: pa.Table) -> Callable[[int, int], Iterator[pd.DataFrame]]:
        if not table.num_rows:
            return lambda first, last: iter(())
        import pandas as pd

        frame = self._frame(table)
        # Spark's frames come from named tuples: a column whose name cannot be an attribute has
        # the name of its place.
        make: Any = namedtuple
        frame.columns = list(make("Pandas", table.column_names, rename=True)._fields)
        most = self._settings.max_records_per_batch
        most = most if most > 0 else len(frame)
        mixed = any(
            pa.types.is_boolean(field.type) and table.column(field.name).null_count
            for field in table.schema
        )

        def cut(first: int, last: int) -> Iterator[pd.DataFrame]:
            for start in range(first, last, most):
                # A copy with an index of its own, like Spark's: the user may change it.
                part = frame.iloc[start : min(start + most, last)].copy()
                part.index = pd.RangeIndex(len(part))
                yield part.infer_objects() if mixed else part

        return cut

    def output(self, emitted: list[Any], schema: T.StructType) -> pa.RecordBatch:
        import pandas as pd

        for frame in emitted:
            if not isinstance(frame, pd.DataFrame):
                raise StateTypeError(
                    f"the processor emitted {frame!r}; in pandas mode it must emit "
                    "pandas.DataFrames."
                )
        frames = [frame for frame in emitted if len(frame)]
        kinds = {(tuple(f.columns), tuple(map(str, f.dtypes))) for f in frames}
        if len(kinds) == 1 and len(frames) > 1:
            frames = [pd.concat(frames, ignore_index=True)]
        batches = [self._batch(frame, schema) for frame in frames]
        arrow = types.arrow_schema(schema)
        table = pa.Table.from_batches(batches, arrow).combine_chunks()
        arrays = [types.conform(column, column.type) for column in table.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def _batch(self, frame: pd.DataFrame, schema: T.StructType) -> pa.RecordBatch:
        from pyspark.sql.conversion import PandasToArrowConversion

        settings = self._settings
        try:
            batch = PandasToArrowConversion.convert(
                [frame],
                T.StructType([T.StructField("_0", schema)]),
                timezone=settings.session_time_zone,
                safecheck=settings.convert_safely,
                arrow_cast=True,
                assign_cols_by_name=settings.assign_columns_by_name,
                int_to_decimal_coercion_enabled=settings.int_to_decimal_coercion,
            )
        except Exception as error:
            raise StateTypeError(
                f"the processor emitted a DataFrame with the columns "
                f"{dict(zip(frame.columns, map(str, frame.dtypes), strict=True))}, which does not "
                f"fit the output schema {schema.simpleString()}: {error}"
            ) from error
        arrow = types.arrow_schema(schema)
        columns = batch.column(0).flatten()
        arrays = [types.conform(c, f.type) for c, f in zip(columns, arrow, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _objects(column: pa.ChunkedArray) -> list[Any]:
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if plain and column.null_count == 0:
        listed: list[Any] = column.to_numpy().tolist()
        return listed
    objects: list[Any] = column.to_pylist()
    return objects


_new_row: Any = functools.partial(tuple.__new__, Row)


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    """A Row as `Row(*names)(*values)` makes it, without its checks: there is one per input row."""
    row: Any = _new_row(values)
    row.__fields__ = names
    return row  # type: ignore[no-any-return]


def _by_name(row: Any, names: Sequence[str]) -> Sequence[Any]:
    """An emitted row's values in the schema's order; a field it lacks is NULL."""
    fields = getattr(row, "__fields__", None)
    if not isinstance(row, Row) or fields is None:
        raise StateTypeError(
            f"the processor emitted {row!r}; it must emit pyspark.sql.Row objects with named "
            f"fields: Row({', '.join(f'{name}=...' for name in names)})."
        )
    if list(fields) == names:
        return row
    given = dict(zip(fields, row, strict=False))
    return [given.get(name) for name in names]


def _as_dicts(value: Any) -> Any:
    """Rows within rows as dicts, as `Row.asDict(recursive=True)` makes them."""
    if isinstance(value, Row):
        return {k: _as_dicts(v) for k, v in zip(value.__fields__, value, strict=False)}
    if isinstance(value, list):
        return [_as_dicts(v) for v in value]
    if isinstance(value, dict):
        return {k: _as_dicts(v) for k, v in value.items()}
    return value


def _misfit(
    values: Sequence[Any], arrow: pa.DataType, name: str, emitted: list[Any], error: Exception
) -> StateTypeError:
    for value, row in zip(values, emitted, strict=True):
        try:
            pa.array([value], arrow)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            return StateTypeError(
                f"the processor emitted {row!r}, whose {name!r} does not fit {arrow}: {reason}"
            )
    return StateTypeError(f"output column {name!r} does not fit {arrow}: {error}")
