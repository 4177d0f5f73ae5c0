"""Columns that a program names or computes, resolved against a stream before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.errors import DuplicateNameError, UnknownColumnError, UsageError
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column


def named(name: str) -> SparkColumn:
    """The column of this name, whatever characters are in it."""
    plain = name.replace("_", "").isalnum() and name.isascii()
    return F.col(name) if plain else F.col(f"`{name.replace('`', '``')}`")


def data_type(df: DataFrame, name: str, where: str) -> T.DataType:
    """The type of a column; `where` is for the error if there is none."""
    for field in df.schema.fields:
        if field.name == name:
            return field.dataType
    raise UnknownColumnError(
        f"{where}: there is no column {name!r}. The columns are {', '.join(df.columns)}."
    )


def resolve(df: DataFrame, column: str | SparkColumn, where: str) -> tuple[Column, SparkColumn]:
    """A column or an expression: its name and type, and the expression."""
    if isinstance(column, str):
        return Column(column, data_type(df, column, where)), named(column)
    if not isinstance(column, SparkColumn):
        raise UsageError(f"{where} takes the names of columns and Spark Columns, not {column!r}.")
    try:
        field = df.select(column).schema[0]
    except AnalysisException as error:
        raise UnknownColumnError(
            f"{where}: Spark cannot resolve {column}: {str(error).strip().splitlines()[0]}"
        ) from error
    return Column(field.name, field.dataType), column


def resolve_aggregates(
    df: DataFrame, aggregates: Mapping[str, Aggregate]
) -> tuple[list[AggregateSpec], list[SparkColumn]]:
    """The aggregates of an operator, and the expressions that they are over."""
    if not aggregates:
        raise UsageError(
            "aggregate() needs at least one aggregate, for example aggregate(n=mr.count())."
        )
    specs, inputs = [], []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise UsageError(
                f"aggregate({name}=...) takes a function such as mr.sum('value'), not "
                f"{aggregate!r}."
            )
        if aggregate.column is None:
            column, over = Column(name, T.IntegerType()), F.lit(1)
        else:
            where = f"{aggregate.function}() for {name!r}"
            column, over = resolve(df, aggregate.column, where)
            if aggregate.second is not None:
                column, over = _pair((column, over), resolve(df, aggregate.second, where))
            elif aggregate.others is not None:
                others = [resolve(df, other, where) for other in aggregate.others]
                column, over = _row([(column, over), *others], where)
        inputs.append(over)
        specs.append(
            AggregateSpec(
                name,
                aggregate.function,
                aggregate.describe(),
                column.type,
                tuple(sorted(aggregate.options.items())),
            )
        )
    return specs, inputs


def _pair(
    first: tuple[Column, SparkColumn], second: tuple[Column, SparkColumn]
) -> tuple[Column, SparkColumn]:
    """Two inputs of one aggregate, as one struct."""
    both = F.struct(first[1].alias("first"), second[1].alias("second"))
    kind = T.StructType().add("first", first[0].type).add("second", second[0].type)
    return Column(first[0].name, kind), both


def _row(columns: Sequence[tuple[Column, SparkColumn]], where: str) -> tuple[Column, SparkColumn]:
    """Several inputs of one aggregate, as one struct with their names."""
    names = [column.name for column, _ in columns]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateNameError(f"{where} names the column {name!r} twice.")
    whole = F.struct(*(over.alias(column.name) for column, over in columns))
    kind = T.StructType([T.StructField(column.name, column.type) for column, _ in columns])
    return Column(names[0], kind), whole


def is_ansi(df: DataFrame) -> bool:
    """Whether Spark's ANSI mode is on."""
    return df.sparkSession.conf.get("spark.sql.ansi.enabled", "true") == "true"
