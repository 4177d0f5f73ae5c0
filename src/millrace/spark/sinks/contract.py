"""What a sink is, and what all of them share.

A sink is called with the output frame and the batch id, before the manifest is written. If the
driver dies in between, it is called again with the same batch id and the same rows. The built-in
sinks still write a batch once; a user's function can do so with the batch id.

A sink must run the frame completely, because running it is what updates the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.errors import RealTimeError
from millrace.log.store import Store
from millrace.spark.template import rows_of


@dataclass(frozen=True)
class RealTimeTarget:
    """Where the rows of a real-time query go as soon as they are computed."""

    rows: DataFrame
    """In the form that the target takes."""
    table: Any
    """One of Spark's, in the JVM, that streams can write to."""
    options: dict[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Takes one batch at a time."""

    target: tuple[str, str] | None = None
    """What it writes to, such as ("path", "/out"): two sinks of one query may not share it."""

    def locate(self, store: Store) -> None:
        """Learn, before it is opened, where the query keeps its files, and so may a sink."""
        return

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        """Check, once and before the query starts, that the sink can be written to."""
        return

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, once however often this is called with its id."""

    def check_real_time(self) -> None:
        """Raise unless rows can go out while their batch is still running."""
        raise RealTimeError(
            f"the sink {type(self).__name__.lower()!r} writes whole batches, so it cannot be used "
            "in real time. Use .to('kafka', ..., exactly_once=False), .to('memory', ...) or "
            ".to('noop'), or a trigger such as '1 second'. State can be read or mirrored from the "
            "location whatever the sink."
        )

    def real_time(self, rows: DataFrame) -> RealTimeTarget:
        """Where the rows of a streaming frame go. Called after `open`."""
        raise RealTimeError(f"the sink {type(self).__name__.lower()!r} has no real-time target.")


def run(df: DataFrame) -> None:
    """Run a frame to its end and drop its rows."""
    rows_of(df).count()


def first_line(error: Exception) -> str:
    """What an error says, without the stack that Java adds."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
