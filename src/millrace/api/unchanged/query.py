"""A query of an unchanged program: Millrace's, with Spark's ids and Spark's way of failing."""

from __future__ import annotations

import shutil
from typing import Any

from pyspark.errors import StreamingQueryException

from millrace.api.query import Query
from millrace.spark.idle_batches import IdleBatches


class UnchangedQuery(Query):
    """What `writeStream.start()` returns for a query that runs on Millrace."""

    _idle_batches: IdleBatches | None = None
    _temporary: str | None = None

    def with_extras(self, idle_batches: IdleBatches, temporary: str | None) -> UnchangedQuery:
        """What ends with the query: its idle batches, and a location that it does not keep."""
        self._idle_batches = idle_batches
        self._temporary = temporary
        return self

    @property
    def id(self) -> str:
        """Spark's: `spark.streams.get(id)` finds it, and listeners see it."""
        return self.spark_query.id

    def exception(self) -> BaseException | None:
        """Why the query failed, as Spark says it; the cause is Millrace's error, if it is one."""
        error = super().exception()
        if error is None or isinstance(error, StreamingQueryException):
            return error
        spark_error = self.spark_query.exception()
        if spark_error is None:
            return error
        spark_error.__cause__ = error
        return spark_error

    def _raise_failure(self, error: StreamingQueryException | None = None) -> None:
        """Raise what a program for Spark expects; why it failed is the cause."""
        reason = self._run.reason(error)
        if reason is None:
            return
        raised = error or self.spark_query.exception()
        if raised is None or raised is reason:
            raise reason
        raise raised from reason

    def await_termination(self, timeout: float | None = None) -> bool:
        try:
            ended = super().await_termination(timeout)
        except Exception:
            self.stop(0.0)
            raise
        if ended:
            # A program for Spark need not stop what has ended.
            self.stop(0.0)
        return ended

    def stop(self, timeout: float = 60.0) -> None:
        super().stop(timeout)
        if self._idle_batches is not None:
            self._idle_batches.detach(self._session)
        if self._temporary is not None and self.exception() is None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def _session(self) -> Any:
        return self._run.spark
