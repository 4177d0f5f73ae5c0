"""Kafka as a source: what would end a query in its first batch is refused at its start.

Spark asks the brokers when it plans a batch, so an address that nobody listens at, credentials that
are refused and a topic that is not there end a query that seemed to run, with an error of Java's.
The same questions, asked before anything is written, have an answer that says what to do.

Rough edge: only sources of Spark's own connector are seen, by the options they were made with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.errors import RealTimeError, SourceError
from millrace.spark import jvm
from millrace.spark.kafka import CLIENT, coordinates, is_on_class_path, reason

SERVERS = "bootstrap.servers"
_RELATION = "StreamingRelationV2"
_NAME = "kafka"


@dataclass(frozen=True)
class KafkaSource:
    """What a source of Spark's connector was told."""

    topics: tuple[str, ...]
    """Those it names; none if it has a pattern."""
    client: Mapping[str, str]
    """Options of Kafka's own client, as the client calls them."""

    @property
    def servers(self) -> str:
        return self.client.get(SERVERS, "")


def declared(options: Mapping[str, str]) -> KafkaSource:
    """The source that Spark makes of some options, whose names may be of any case."""
    client = {
        name[len(CLIENT) :]: value
        for name, value in options.items()
        if name.lower().startswith(CLIENT)
    }
    given = {name.lower(): value for name, value in options.items()}
    topics: Sequence[str] = ()
    if "subscribe" in given:
        topics = [topic.strip() for topic in given["subscribe"].split(",") if topic.strip()]
    elif "assign" in given:
        try:
            topics = list(json.loads(given["assign"]))
        except ValueError:
            # Spark says what is wrong with it.
            topics = ()
    return KafkaSource(tuple(topics), client)


def check_sources(spark: SparkSession, frames: Sequence[DataFrame]) -> None:
    """Raise unless the brokers of all Kafka sources answer, and have the topics."""
    for source in _sources(frames):
        package = jvm.load_kafka(spark)
        try:
            missing = [
                topic
                for topic in source.topics
                if package.KafkaTopics.partitions(dict(source.client), topic) == 0
            ]
            if not source.topics:
                package.KafkaTopics.reach(dict(source.client))
        except Exception as error:
            what = f"the topic {source.topics[0]!r}" if source.topics else "its topics"
            raise SourceError(
                f"Kafka at {source.servers} cannot be asked for {what}: {reason(error)}. Check "
                "kafka.bootstrap.servers of the source, the network, and credentials if it wants "
                "any."
            ) from error
        if missing:
            raise SourceError(
                f"the topic {missing[0]!r} does not exist on {source.servers}. Create it, or "
                "correct the source's 'subscribe' or 'assign', and start the query again."
            )


def check_real_time(spark: SparkSession, frames: Sequence[DataFrame]) -> None:
    """Raise if Kafka is read in real time with a connector that came after the JVM's start."""
    if _sources(frames) and not is_on_class_path(spark):
        raise RealTimeError(
            "to read Kafka in real time, Spark's connector must be there when the JVM starts, and "
            "this session got it later. Download the jars into a folder and give it to the first "
            "session of the program, mr.session(kafka='jars'), or to spark-submit --jars: "
            f"{', '.join(coordinates())}."
        )


def _sources(frames: Sequence[DataFrame]) -> list[KafkaSource]:
    found = []
    for frame in frames:
        plan: Any = frame._jdf.queryExecution().analyzed()
        leaves = plan.collectLeaves()
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            is_relation = leaf.getClass().getSimpleName() == _RELATION
            if is_relation and leaf.sourceName() == _NAME:
                found.append(declared(dict(leaf.extraOptions().asCaseSensitiveMap())))
    return found
