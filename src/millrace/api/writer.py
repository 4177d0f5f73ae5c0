"""A stream with a sink, or several: what `start` starts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from millrace.api.autoscaling import check_autoscale
from millrace.api.origin import origin
from millrace.api.query import Query
from millrace.api.starting import parse_bytes, start_query
from millrace.errors import UsageError
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.cluster import DirectorOptions
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.session import check_one_session
from millrace.spark.sinks import Sink, check_targets

if TYPE_CHECKING:
    from millrace.api.stream import Stream


@dataclass(frozen=True, eq=False)
class Branches:
    """What a writer starts."""

    spark: SparkSession
    paths: tuple[Path, ...]


class StreamWriter:
    """A stream with a sink, or several: ready to start."""

    def __init__(self, upstream: Stream, sink: Sink) -> None:
        path = Path(origin(upstream).point, upstream.schema, sink)
        self._branches = Branches(origin(upstream).spark, (path,))

    def also(self, *others: StreamWriter) -> StreamWriter:
        """Run other branches in the same query: further sinks, side outputs, more operators.

        Whatever branches share, be it a source or an operator, runs once an epoch.
        """
        both = copy.copy(self)
        for other in others:
            if not isinstance(other, StreamWriter):
                raise UsageError(
                    f"also() takes branches that have a sink, such as visits.side('alerts').to("
                    f"'parquet', path=...), not {type(other).__name__}."
                )
            mine, theirs = both._branches, other._branches
            check_one_session(mine.spark, theirs.spark, "also()")
            both._branches = Branches(mine.spark, mine.paths + theirs.paths)
        return both

    def start(
        self,
        checkpointLocation: str,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        trigger: str | None = None,
        key_groups: int = DEFAULT_KEY_GROUPS,
        retain_epochs: int = 100,
        memory: str | int = "2 GiB",
        query_name: str | None = None,
        standby: int = 0,
        elastic: bool = False,
        spare_executors: int = 0,
        follow_rate: str | int = "256 MB",
        autoscale: Settings | None = None,
    ) -> Query:
        """Start the query, new or from where the location left off.

        - `parallelism`: shards per operator, or a dict by operator; may differ at every start, and
          while the query runs. Default: what the query last had; for a new location, Spark's
          default parallelism.
        - `trigger`: an interval such as `"1 second"`, `"available_now"`, or None: back to back.
          `"real time 10 seconds"` has rows answered within milliseconds, in epochs of that length.
        - `key_groups`: a power of two; fixed when a location is first used.
        - `retain_epochs`: how many epochs stay readable.
        - `memory`: the budget of one Python worker for its index of recent changes.
        - `standby`: how many other executors follow each key group, ready to take it over.
        - `elastic`: ask Spark for executors when rescaling, and give idle ones back; with
          `spare_executors` of them kept warm.
        - `follow_rate`: bytes per second that a move may take in the background.
        - `autoscale`: what `mr.autoscale(...)` returns; shards and executors then follow the load.
        """
        scaling = check_autoscale(autoscale, parallelism)
        check_targets([path.sink for path in self._branches.paths])
        pipeline = Pipeline(self._branches.paths)
        if not pipeline.operators:
            raise UsageError(
                "the query has no operator, so there is no state to keep. Add one, for example "
                ".key_by('device').aggregate(n=mr.count()), or use Spark's writeStream."
            )
        return start_query(
            pipeline,
            checkpointLocation,
            parallelism=parallelism,
            trigger=trigger,
            key_groups=key_groups,
            retain_epochs=retain_epochs,
            memory=memory,
            query_name=query_name,
            director_options=DirectorOptions(
                standby=_natural("standby", standby),
                elastic=bool(elastic) or scaling is not None,
                spare_executors=_natural("spare_executors", spare_executors),
                follow_bytes_per_second=parse_bytes(follow_rate, "follow_rate"),
            ),
            autoscale=scaling,
        )


def _natural(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"{name}={value!r}: it must be a whole number, 0 or more.")
    return value


def branches(writer: StreamWriter) -> Branches:
    """What a writer starts, for the modules above."""
    return writer._branches
