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

from pyspark.sql import SparkSession

PACKAGE = "io.millrace"
SOURCES = (
    *("Executors", "Fingerprints", "KeptRows", "LateRows", "LocalCheckpointFiles"),
    *("MomentRdd", "PlanTemplate", "StoreCheckpointFiles"),
)

KAFKA_SOURCES = ("KafkaTopics", "KafkaTransactions")
"""Classes that refer to Kafka's client, which most sessions do not have."""

_installed: dict[str, tuple[Any, Any, Any]] = {}
"""Class loader, `Thread` and package, as py4j sees them, of Spark applications that have the jar.
Looking a package up takes py4j a millisecond, because it first looks for a class of that name."""


_with_kafka: set[str] = set()
"""Spark applications that have the classes for Kafka."""


def load(spark: SparkSession) -> Any:
    """The `io.millrace` package, as py4j sees it."""
    application = spark.sparkContext.applicationId
    if application not in _installed:
        _install(spark, SOURCES)
        jvm: Any = spark._jvm
        loader = spark._jsparkSession.sharedState().jarClassLoader()
        _installed[application] = loader, jvm.java.lang.Thread, jvm.io.millrace
    loader, thread, package = _installed[application]
    # py4j looks classes up through the calling thread's loader, and so does Spark's reflection.
    thread.currentThread().setContextClassLoader(loader)
    return package


def load_kafka(spark: SparkSession) -> Any:
    """The package with its classes for Kafka, in a session that has Kafka's client."""
    package = load(spark)
    application = spark.sparkContext.applicationId
    if application not in _with_kafka:
        _install(spark, KAFKA_SOURCES)
        _with_kafka.add(application)
    return package


def _install(spark: SparkSession, names: Sequence[str]) -> None:
    sources = {
        name: resources.files("millrace.spark").joinpath(f"java/{name}.java").read_text()
        for name in names
    }
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:12]
    # Spark removes this folder when the application ends.
    jar = os.path.join(str(spark.sparkContext._temp_dir), f"millrace-{digest}.jar")
    with zipfile.ZipFile(jar, "w") as archive:
        for source in sources.values():
            for name, code in _compile(spark, source).items():
                archive.writestr(name.replace(".", "/") + ".class", code)
    spark.sql(f"ADD JAR '{jar}'")


def _compile(spark: SparkSession, source: str) -> dict[str, bytes]:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(parent or spark._jsparkSession.getClass().getClassLoader())
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook(source)
    return {name: bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
