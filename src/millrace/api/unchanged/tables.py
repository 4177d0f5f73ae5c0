"""`toTable`: the folder of a table of files in the session's catalog, made if it is not there."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from millrace.api.unchanged.writing import Wanted
from millrace.errors import UnsupportedPlanError


def table_path(df: DataFrame, wanted: Wanted, table: str) -> str:
    """Where a table's rows are; creates the table as Spark's `toTable` does."""
    spark = df.sparkSession
    java: Any = spark._jsparkSession
    identifier = java.sessionState().sqlParser().parseTableIdentifier(table)
    if not identifier.catalog().isEmpty() and identifier.catalog().get() != "spark_catalog":
        raise UnsupportedPlanError(f"toTable({table!r}): a table of another catalog.")
    if not spark.catalog.tableExists(table):
        empty = spark.createDataFrame([], df.schema).write.format(wanted.source)
        if wanted.partitions:
            empty = empty.partitionBy(*wanted.partitions)
        path = wanted.option("path")
        if path is not None:
            empty = empty.option("path", path)
        empty.saveAsTable(table)
    found = java.sessionState().catalog().getTableMetadata(identifier)
    provider = found.provider()
    if provider.isEmpty() or str(provider.get()).lower() != wanted.source.lower():
        raise UnsupportedPlanError(
            f"toTable({table!r}): the table is not of the format {wanted.source!r}."
        )
    return str(found.location().toString())
