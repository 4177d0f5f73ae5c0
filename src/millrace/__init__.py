"""Millrace: elastic, fast, queryable state for streams that run on Spark through PySpark."""

from millrace._version import __version__
from millrace.api import KeyedStream, Query, Reader, Sinked, Stream, stream
from millrace.api import open_location as open
from millrace.errors import MillraceError
from millrace.operators.functions import (
    Aggregate,
    count,
    first,
    last,
    max,
    mean,
    min,
    stddev,
    sum,
    variance,
)
from millrace.spark.session import session

__all__ = [
    "Aggregate",
    "KeyedStream",
    "MillraceError",
    "Query",
    "Reader",
    "Sinked",
    "Stream",
    "__version__",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "open",
    "session",
    "stddev",
    "stream",
    "sum",
    "variance",
]
