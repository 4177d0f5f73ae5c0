"""The settings of Spark's real-time trigger, while a query starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from millrace.errors import UsageError
from millrace.spark.pipeline import Pipeline
from millrace.spark.settings import configured

LEAST_MS = 1000

_SHARES = "in real time it says how long an epoch is, as in 'real time 10 seconds'"
_UNITS = {
    "second": 1000,
    "seconds": 1000,
    "minute": 60_000,
    "minutes": 60_000,
    "hour": 3_600_000,
    "hours": 3_600_000,
}
_DURATION = re.compile(r"real[ -_]?time\s+(\d+(?:\.\d+)?)\s+([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class RealTimeOptions:
    """What a real-time query is started with."""

    pipeline: Pipeline
    checkpoint: str
    duration_ms: int
    name: str | None
    memory_bytes: int
    ansi: bool

    @property
    def duration(self) -> str:
        """In Spark's words."""
        return f"{self.duration_ms} milliseconds"


def parse_duration(trigger: str) -> int | None:
    """How long an epoch of a real-time trigger is, in milliseconds; None for another trigger."""
    if not trigger.strip().lower().startswith("real"):
        return None
    found = _DURATION.fullmatch(trigger.strip())
    unit = _UNITS.get(found[2].lower()) if found is not None else None
    if found is None or unit is None:
        raise UsageError(f"trigger={trigger!r}: {_SHARES}.")
    milliseconds = round(float(found[1]) * unit)
    if milliseconds < LEAST_MS:
        raise UsageError(
            f"trigger={trigger!r}: a real-time epoch takes at least a second; rows do not wait for "
            "its end."
        )
    return milliseconds


@contextmanager
def settings(spark: SparkSession, duration_ms: int) -> Iterator[None]:
    """While this is open, queries that start may be real-time ones of Millrace.

    Spark's state stores are not used: the format of its logs stays that of micro-batches, and the
    provider that the trigger insists on holds nothing.
    """
    given = {
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
        "spark.sql.streaming.realTimeMode.minBatchDuration": str(duration_ms),
        "spark.sql.streaming.realTimeMode.dangerouslyAllowCheckpointV1.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    with configured(spark, given):
        yield
