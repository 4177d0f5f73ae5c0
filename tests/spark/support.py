"""What the tests with a real Spark share: file sources, recorded outputs, exact comparison.

Input is Parquet files that a test drops into a folder: all files dropped between two calls of
`process_all_available` are one epoch, and each file is one input partition. The oracle is always
Spark's own batch `groupBy().agg()` over the same files.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import millrace as mr
from millrace.types import arrow_type

Rows = Sequence[Sequence[Any]]
Outputs = dict[int, pa.Table]

_FIRST_DROP = 1_700_000_000


class Folder:
    """A folder of Parquet files: a streaming source, and the oracle's input.

    Every row carries `_epoch`, the drop it came with, and `_seq`, its position in the whole stream.
    """

    def __init__(self, path: Path, schema: T.StructType | str) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)
        plain = T._parse_datatype_string(schema) if isinstance(schema, str) else schema
        assert isinstance(plain, T.StructType)
        self.columns = plain.names
        self.schema = T.StructType(
            [
                *plain.fields,
                T.StructField("_epoch", T.IntegerType()),
                T.StructField("_seq", T.LongType()),
            ]
        )
        self.drops = 0
        self._rows = 0

    def drop(self, rows: Rows, files: int = 1) -> None:
        """One epoch's rows, spread over some files that appear together, in a folder of their own.

        Renamed one by one, a part of them could be all that an epoch sees.
        """
        self.drops += 1
        share = -(-len(rows) // files) if rows else 1
        staging = self.path.parent / f".{self.path.name}" / f"{self.drops:05d}"
        staging.mkdir(parents=True)
        for number in range(0, max(len(rows), 1), share):
            part = rows[number : number + share]
            name = f"{self.drops:05d}-{number:06d}.parquet"
            pq.write_table(self._table(part), staging / name)
            # Spark takes files in the order of their times; those of one second tie.
            os.utime(staging / name, (_FIRST_DROP + self.drops, _FIRST_DROP + self.drops))
        staging.rename(self.path / staging.name)

    def _table(self, rows: Rows) -> pa.Table:
        arrays = []
        for i, field in enumerate(self.schema.fields[:-2]):
            arrays.append(_parquet_array([row[i] for row in rows], field.dataType))
        arrays.append(pa.array([self.drops] * len(rows), pa.int32()))
        arrays.append(pa.array(range(self._rows, self._rows + len(rows)), pa.int64()))
        self._rows += len(rows)
        return pa.Table.from_arrays(arrays, names=self.schema.names)

    def stream(self, spark: SparkSession, **options: str) -> DataFrame:
        source = spark.readStream.schema(self.schema).options(**options)
        return source.parquet(f"{self.path}/*")

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(self.schema).parquet(f"{self.path}/*")


def _parquet_array(values: list[Any], data_type: T.DataType) -> pa.Array:
    """As Spark itself writes it: an interval is its microseconds."""
    if isinstance(data_type, T.DayTimeIntervalType):
        micros = [None if v is None else v // dt.timedelta(microseconds=1) for v in values]
        return pa.array(micros, pa.int64())
    return pa.array(values, arrow_type(data_type, "a test's column"))


def record(outputs: Outputs) -> Callable[[DataFrame, int], None]:
    """A function for `for_each_batch` that keeps every epoch's output."""

    def keep(df: DataFrame, batch_id: int) -> None:
        outputs[batch_id] = df.toArrow()

    return keep


def oracle_column(name: str, aggregate: mr.Aggregate) -> Column:
    """The same aggregate in Spark's batch API; the order of rows is that of `_seq`."""
    if aggregate.column is None:
        return F.count(F.lit(1)).alias(name)
    column = F.col(aggregate.column) if isinstance(aggregate.column, str) else aggregate.column
    options = aggregate.options
    if aggregate.function in ("first", "last"):
        order = F.col("_seq")
        if options["ignore_nulls"]:
            order = F.when(column.isNotNull(), order)
        pick = F.min_by if aggregate.function == "first" else F.max_by
        return pick(column, order).alias(name)
    plain: dict[str, Callable[[Column], Column]] = {
        "count": F.count,
        "sum": F.sum,
        "min": F.min,
        "max": F.max,
        "mean": F.avg,
        "variance": F.var_samp if options.get("sample", True) else F.var_pop,
        "stddev": F.stddev_samp if options.get("sample", True) else F.stddev_pop,
    }
    return plain[aggregate.function](column).alias(name)


def batch_state(
    df: DataFrame, keys: Sequence[str], aggregates: dict[str, mr.Aggregate]
) -> pa.Table:
    """One Spark batch over all input."""
    columns = [oracle_column(name, a) for name, a in aggregates.items()]
    return df.groupBy(*keys).agg(*columns).toArrow()


def batch_outputs(
    df: DataFrame, keys: Sequence[str], aggregates: dict[str, mr.Aggregate], epochs: int
) -> dict[int, pa.Table]:
    """Per epoch, the keys it touched with their values over all input so far: one Spark batch."""
    columns = [oracle_column(name, a) for name, a in aggregates.items()]
    prefixes = df.withColumn("_prefix", F.explode(F.sequence("_epoch", F.lit(epochs))))
    found = (
        prefixes.groupBy("_prefix", *keys)
        .agg(*columns, F.max("_epoch").alias("_last"))
        .where("_last = _prefix")
        .drop("_last")
        .toArrow()
    )
    prefix = found.column("_prefix").to_numpy()
    rest = found.drop_columns(["_prefix"])
    return {e: rest.filter(pa.array(prefix == e)) for e in range(1, epochs + 1)}


def frozen(value: Any) -> Any:
    """A key as something to look up by: exact, but hashable, and NaN equal to itself."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1.0, value))
    if isinstance(value, dict):
        return tuple((name, frozen(v)) for name, v in value.items())
    if isinstance(value, list):
        return (
            "list",
            *(tuple(map(frozen, v)) if isinstance(v, tuple) else frozen(v) for v in value),
        )
    return value


def assert_same_value(actual: Any, expected: Any, where: str) -> None:
    """Doubles within a tight relative tolerance, everything else exactly."""
    if isinstance(actual, float) and isinstance(expected, float):
        if math.isnan(expected) or math.isinf(expected):
            assert repr(actual) == repr(expected), f"{where}: {actual!r}, Spark has {expected!r}"
        else:
            close = math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-9)
            assert close, f"{where}: {actual!r}, Spark has {expected!r}"
    else:
        assert frozen(actual) == frozen(expected), f"{where}: {actual!r}, Spark has {expected!r}"


def by_key(table: pa.Table, keys: Sequence[str], where: str) -> dict[Any, dict[str, Any]]:
    """A table as a dictionary; fails if a key is there twice."""
    found: dict[Any, dict[str, Any]] = {}
    for row in table.to_pylist():
        key = tuple(frozen(row.pop(name)) for name in keys)
        assert key not in found, f"{where}: key {key} twice"
        found[key] = row
    return found


def assert_same(actual: pa.Table, expected: pa.Table, keys: Sequence[str], where: str) -> None:
    """The same keys with the same values, and the same types."""
    assert actual.column_names == expected.column_names, where
    for name in actual.column_names:
        mine, theirs = _type_of(actual, name), _type_of(expected, name)
        assert mine == theirs, f"{where}: column {name} is {mine}, in Spark {theirs}"
    have, want = by_key(actual, keys, where), by_key(expected, keys, f"{where} (Spark)")
    missing, extra = want.keys() - have.keys(), have.keys() - want.keys()
    assert not missing, f"{where}: {len(missing)} of {len(want)} keys missing: {list(missing)[:3]}"
    assert not extra, f"{where}: {len(extra)} keys too many: {list(extra)[:3]}"
    for key, values in want.items():
        for name, value in values.items():
            assert_same_value(have[key][name], value, f"{where}: {name} of {key}")


def _type_of(table: pa.Table, name: str) -> str:
    # The session's time zone is only a label here, and nullability only a hint.
    return str(table.schema.field(name).type).replace("Etc/UTC", "UTC").replace(" not null", "")


def last_per_key(tables: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """What a reader of all outputs, in order, ends up with."""
    found: dict[Any, dict[str, Any]] = {}
    schema: pa.Schema | None = None
    for table in tables:
        schema = table.schema
        for row in table.to_pylist():
            found[tuple(frozen(row[name]) for name in keys)] = row
    assert schema is not None
    return pa.Table.from_pylist(list(found.values()), schema=schema)


def files_of(location: Path | str) -> dict[str, str]:
    """Every file of a location with the checksum of its bytes."""
    found = {}
    for directory, _, names in os.walk(location):
        for name in names:
            path = Path(directory) / name
            found[str(path.relative_to(location))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def segments_of(location: Path | str, operator: str, epoch: int) -> list[str]:
    """The segments an epoch left on disk, whether or not a manifest names them."""
    folder = Path(location) / "segments" / operator
    return sorted(p.name for p in folder.glob(f"{epoch:012d}-*"))


def number(text: str | int, scale: int) -> decimal.Decimal:
    return decimal.Decimal(text).scaleb(-scale)
