"""Small Java classes of Millrace's own, compiled in the driver's JVM when a query starts.

Spark ships the Janino compiler, so there is no build step, no JDK is needed, and a session that is
already running will do. The classes are zipped into a jar that Spark distributes to its executors.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from importlib import resources
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

PACKAGE = "io.millrace"
SOURCES = (
    *("Executors", "Fingerprints", "KeptRows", "LateRows", "LocalCheckpointFiles"),
    *(
        "IdleBatches",
        "MomentRdd",
        "PlanCuts",
        "PlanTemplate",
        "StoreCheckpointFiles",
        "StreamSinks",
    ),
)

REAL_TIME_SOURCES = (
    *("ShardProcesses", "ShardSession", "ShardBridge", "RealTimeSink", "RealTimeOffsets"),
    *("RowPartials",),
)
"""Classes of real-time queries, each after those that it refers to."""

KAFKA_SOURCES = ("KafkaTopics", "KafkaTransactions")
"""Classes that refer to Kafka's client, which most sessions do not have."""

_installed: dict[str, tuple[Any, Any, Any]] = {}
"""Class loader, `Thread` and package, as py4j sees them, of applications that have the jar."""


_added: set[tuple[str, str]] = set()
"""Spark applications, and the further sources that each has."""


def java_class(spark: SparkSession, name: str) -> Any:
    """A class by its full name, without asking the JVM.

    `spark._jvm.org.apache.spark` asks whether there is a class `org`, then `org.apache`, and so on,
    in every jar: a millisecond for each part of the name.
    """
    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


class _Package:
    """The classes of `io.millrace`, by name."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return java_class(self._spark, f"{PACKAGE}.{name}")


def load(spark: SparkSession) -> Any:
    """The package `io.millrace`, with its classes as attributes."""
    application = spark.sparkContext.applicationId
    if application not in _installed:
        _install(spark, SOURCES)
        loader = spark._jsparkSession.sharedState().jarClassLoader()
        _installed[application] = loader, java_class(spark, "java.lang.Thread"), _Package(spark)
    loader, thread, package = _installed[application]
    # py4j looks classes up through the calling thread's loader, and so does Spark's reflection.
    thread.currentThread().setContextClassLoader(loader)
    return package


def load_kafka(spark: SparkSession) -> Any:
    """The package with its classes for Kafka, in a session that has Kafka's client."""
    return _load_more(spark, KAFKA_SOURCES)


def load_real_time(spark: SparkSession) -> Any:
    """The package with the classes of real-time queries."""
    return _load_more(spark, REAL_TIME_SOURCES)


def _load_more(spark: SparkSession, names: Sequence[str]) -> Any:
    package = load(spark)
    key = (spark.sparkContext.applicationId, names[0])
    if key not in _added:
        _install(spark, names)
        _added.add(key)
    return package


def _install(spark: SparkSession, names: Sequence[str]) -> None:
    folder = resources.files("millrace.spark")
    install(spark, [folder.joinpath(f"java/{name}.java").read_text() for name in names])


def install(spark: SparkSession, sources: Sequence[str]) -> None:
    """Give a session the classes of some Java sources."""
    digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:12]
    # Spark removes this folder when the application ends.
    jar = os.path.join(str(spark.sparkContext._temp_dir), f"millrace-{digest}.jar")
    loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    loader = loader or spark._jsparkSession.getClass().getClassLoader()
    with zipfile.ZipFile(jar, "w") as archive:
        for source in sources:
            code, loader = _compile(spark, source, loader)
            for name, bytecode in code.items():
                archive.writestr(name.replace(".", "/") + ".class", bytecode)
    spark.sql(f"ADD JAR '{jar}'")


def _compile(spark: SparkSession, source: str, parent: Any) -> tuple[dict[str, bytes], Any]:
    """The classes of a source, and a loader of them and of all that it could refer to."""
    compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(parent)
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook(source)
    # An array: py4j notices the end of a Java iterator by an exception, and PySpark looks a dozen
    # classes up to convert it.
    entries = compiler.getBytecodes().entrySet().toArray()
    code = {str(entry.getKey()): bytes(entry.getValue()) for entry in entries}
    return code, compiler.getClassLoader()
