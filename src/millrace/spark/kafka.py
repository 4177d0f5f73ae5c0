"""Spark's connector for Kafka: which jars it is made of, and how a session gets them.

The jars come by Spark's own `ADD JAR`, which fetches them from Maven Central, keeps them in Ivy's
cache, and sends them to the executors. So a session that is running can get them too.

Rough edge: of Spark 4.3 Maven Central may lack the connector, or a part of it. The parts that are
named here were tested together on 4.3; a later Spark gets the connector of its own version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from millrace.errors import InstallationError, UsageError

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TESTED: dict[str, tuple[str, ...]] = {
    "4.3": (
        f"{CONNECTOR}:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
}
"""Spark's minor version -> all jars of the connector, as Maven names them."""

SESSION_ADVICE = (
    "Make the session with mr.session(kafka=True), or with kafka='/folder' where the jars of "
    "Spark's connector for Kafka are."
)

CLIENT = "kafka."
"""What options of Kafka's own client begin with, in the connector and in the sink."""

_CLIENT = "org.apache.kafka.clients.producer.KafkaProducer"
_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_KAFKAS = re.compile(r"(org\.apache\.kafka\.[\w.$]+: .*)")
_PACKAGE = re.compile(r"^(\w+\.)+")


def coordinates(version: str = pyspark.__version__) -> tuple[str, ...]:
    """The jars for a version of Spark; of one that was not tested, the connector alone."""
    minor = ".".join(version.split(".")[:2])
    return TESTED.get(minor, (f"{CONNECTOR}:{version}",))


def jars(kafka: object, version: str = pyspark.__version__) -> list[str]:
    """What `ADD JAR` takes: Ivy's URLs for True, the jars of a folder for its path."""
    if kafka is True:
        names = coordinates(version)
        # Of one jar Ivy has to find what it needs; of several, nothing is missing.
        transitive = "true" if len(names) == 1 else "false"
        return [f"ivy://{name}?transitive={transitive}" for name in names]
    if not isinstance(kafka, str | os.PathLike):
        raise UsageError(
            f"kafka={kafka!r}: it is True, or the folder with the jars of Spark's connector."
        )
    found = sorted(str(path.resolve()) for path in Path(kafka).glob("*.jar"))
    if not found:
        raise UsageError(
            f"kafka={os.fspath(kafka)!r}: there are no jars in this folder. It must have those of "
            f"Spark's connector for Kafka: {', '.join(coordinates())}."
        )
    return found


def add_connector(spark: SparkSession, kafka: object) -> None:
    """Give a session the connector, unless it has one."""
    wanted = jars(kafka)
    if has_client(spark) and _has(spark, _SOURCE):
        return
    add(spark, wanted)
    missing = [name for name in (_CLIENT, _SOURCE) if not _has(spark, name)]
    if missing:
        raise InstallationError(
            f"the jars of kafka={kafka!r} lack {', '.join(missing)}. They must be those of Spark's "
            f"connector for Kafka: {', '.join(coordinates())}."
        )


def add(spark: SparkSession, urls: Sequence[str]) -> None:
    """Give a session some jars."""
    for url in urls:
        try:
            spark.sql(f"ADD JAR '{url}'")
        except Exception as error:
            raise InstallationError(
                f"Spark could not get {url}: {_first_line(error)}. Give the session access to "
                "Maven Central, or download the jars elsewhere and name their folder: "
                "mr.session(kafka='/folder')."
            ) from error


def has_client(spark: SparkSession) -> bool:
    """Whether the session can talk to Kafka."""
    return _has(spark, _CLIENT)


def is_on_class_path(spark: SparkSession) -> bool:
    """Whether the JVM has had the connector from its start.

    `ADD JAR` comes too late for the driver's threads that read the results of tasks, and in real
    time the connector's offsets are among these.
    """
    loader: Any = spark._jsparkSession.sharedState().jarClassLoader()
    return _finds(loader.getParent(), _SOURCE)


def reason(error: Exception) -> str:
    """What Kafka says, of all that Java says about it."""
    return last_cause(str(error)) or _first_line(error)


def last_cause(text: str) -> str | None:
    """The last error of Kafka's own in what Java prints."""
    causes = _KAFKAS.findall(text)
    return _PACKAGE.sub("", causes[-1]) if causes else None


def _has(spark: SparkSession, name: str) -> bool:
    return _finds(spark._jsparkSession.sharedState().jarClassLoader(), name)


def _finds(loader: Any, name: str) -> bool:
    return loader.getResource(name.replace(".", "/") + ".class") is not None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
