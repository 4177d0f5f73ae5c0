"""Whether a batch took all that its sources may give at once, of sources that do not say what they
have left.

Such a source, of files above all, gives as many files or rows as its options allow, and the rest
stays where nobody counts it. A batch at the limit therefore says that more may wait; a smaller one
says that nothing does.

Known rough edge: a limit in bytes is not looked at. In a batch at which Spark compacts its list of
files, every tenth unless set, the number of files is not read: it counts as the batch before did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.errors import MissingFileError
from millrace.log import spark_logs
from millrace.log.store import Store
from millrace.spark.lag import parsed, rows_behind

_LIMITED = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"


@dataclass(frozen=True)
class ReadLimit:
    """What a source gives at once, at most; None for all it has."""

    files: int | None = None
    rows: int | None = None


class SourceLimits:
    """The limits of a query's sources, which are asked for once."""

    def __init__(self, store: Store, ask: Callable[[], list[ReadLimit]]) -> None:
        self._store = store
        self._ask = ask
        self._limits: list[ReadLimit] | None = None
        self._was_full: dict[int, bool] = {}

    def is_full(self, progress: Mapping[str, Any]) -> bool:
        """Whether a source that does not say what it has left gave as much as it may."""
        if self._limits is None:
            self._limits = self._ask()
        sources = progress["sources"]
        return any(
            rows_behind(source) is None and self._is_at_limit(number, limit, source)
            for number, (source, limit) in enumerate(zip(sources, self._limits, strict=False))
        )

    def _is_at_limit(self, number: int, limit: ReadLimit, source: Mapping[str, Any]) -> bool:
        if source["numInputRows"] <= 0:
            return False
        if limit.rows is not None:
            return bool(source["numInputRows"] >= limit.rows)
        if limit.files is None:
            return False
        files = self._files(number, source["endOffset"])
        if files is not None:
            self._was_full[number] = files >= limit.files
        return self._was_full.get(number, False)

    def _files(self, number: int, offset: object) -> int | None:
        """How many files a batch read, as Spark has listed them; None if that is not known."""
        given = parsed(offset)
        entry = given.get("logOffset") if isinstance(given, Mapping) else None
        if type(entry) is not int:
            return None
        try:
            listed = self._store.read(f"{spark_logs.SOURCES}/{number}/{entry}")
        except MissingFileError:
            return None
        # The version, then a line for each file.
        return listed.count(b"\n")


def read_limits(spark: SparkSession, query: StreamingQuery) -> list[ReadLimit]:
    """The limits of the sources of a query that has run a batch, in the order of its progress."""
    java: Any = query._jsq
    sources = java.streamingQuery().sources()
    return [_limit(spark, sources.apply(number)) for number in range(sources.size())]


def _limit(spark: SparkSession, source: Any) -> ReadLimit:
    if not is_instance_of(spark.sparkContext._gateway, source, _LIMITED):
        return ReadLimit()
    return _read(source.getDefaultReadLimit())


def _read(limit: Any) -> ReadLimit:
    kind = str(limit.getClass().getSimpleName())
    if kind == "ReadMaxFiles":
        return ReadLimit(files=int(limit.maxFiles()))
    if kind == "ReadMaxRows":
        return ReadLimit(rows=int(limit.maxRows()))
    if kind == "CompositeReadLimit":
        parts = [_read(part) for part in limit.getReadLimits()]
        files = [part.files for part in parts if part.files is not None]
        rows = [part.rows for part in parts if part.rows is not None]
        return ReadLimit(min(files, default=None), min(rows, default=None))
    return ReadLimit()
