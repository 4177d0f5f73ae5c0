"""The Spark session: the settings that matter to Millrace, and a check of those a session lacks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import pandas
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millrace.errors import SessionError, UnsupportedVersionError, UsageError
from millrace.log.store.objects import SETTINGS as OBJECT_STORES
from millrace.log.store.retries import REQUEST, TOTAL
from millrace.log.store.webhdfs import USER
from millrace.spark.kafka import add_connector, jars
from millrace.spark.tables import register

DAEMON_MODULE = "millrace.spark.daemon"

SETTINGS: dict[str, tuple[str, str]] = {
    "spark.python.worker.reuse": ("true", "workers keep their replicas between epochs"),
    "spark.python.daemon.module": (
        DAEMON_MODULE,
        "workers are forked from a process that has loaded the kernels",
    ),
    "spark.python.unix.domain.socket.enabled": (
        "true",
        "the hand-over of an epoch's rows to Python takes less time",
    ),
    "spark.shuffle.reduceLocality.enabled": (
        "false",
        "a shard runs where its state is, not where most of its input is",
    ),
}
"""Settings and why they matter. All are fixed when the session starts."""

REAL_TIME_SETTINGS: dict[str, tuple[str, str]] = {
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": (
        "2",
        "a row waits at most two milliseconds for others before it is sent on, not fifty",
    ),
}
"""Settings that only real-time queries need, fixed when the session starts too."""

ANSWER_SECONDS = "spark.millrace.realTime.answerSeconds"
"""How long a real-time task waits for its shard before it takes the shard's process for stuck."""
ANSWER_SECONDS_DEFAULT = "120"

STORE_SETTINGS = (*OBJECT_STORES, USER, TOTAL, REQUEST)
"""Variables of the driver's environment that executors need too, to reach the location."""

BATCH_SETTINGS: dict[str, str] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.adaptive.enabled": "false",
    # The combiner is an aggregate in one step, which Spark takes for a final one: without these it
    # would not use its fast hash map, or only for the first 65,536 keys of a partition.
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
}
"""Settings of the session inside an epoch; the user's own session keeps its values."""

FIXED_WIDTH_SETTINGS: dict[str, str] = {
    # With a limit Spark adds up the sizes of all columns after every row that it sends to Python,
    # which takes longer than sending it. This number stands for no limit.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
"""More of them for epochs whose rows are all of one width: their number limits a batch's bytes."""

_SPARKS_SECRETS = "(?i)secret|password|token|access[.]?key"
"""Spark's own `spark.redaction.regex`."""
_SECRETS_UNKNOWN_TO_SPARK = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)


def session(
    app_name: str = "millrace",
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    kafka: bool | str | os.PathLike[str] = False,
) -> SparkSession:
    """A Spark session with the settings that matter to Millrace, and its format "millrace".

    `config` is added last and wins. If a session is already running, it is returned unchanged, and
    a warning says what it lacks. `kafka` adds Spark's connector for Kafka to it: with True from
    Maven Central, with a path from that folder.
    """
    check_versions()
    if master is not None and master.startswith("local"):
        # One machine: bind to loopback, and run workers in this very Python.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, (value, _) in {**SETTINGS, **REAL_TIME_SETTINGS}.items():
        builder = builder.config(key, value)
    for key, text in executor_environment(os.environ).items():
        builder = builder.config(key, text)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    if isinstance(kafka, str | os.PathLike) and SparkContext._gateway is None:
        # No JVM yet: it starts with the connector, which real time needs.
        given = [str(jar) for jar in [(config or {}).get("spark.jars")] if jar]
        builder = builder.config("spark.jars", ",".join([*given, *jars(kafka)]))
    spark: SparkSession = builder.getOrCreate()
    check_session(spark)
    register(spark)
    if kafka is not False:
        add_connector(spark, kafka)
    return spark


def executor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings by which executors reach the store as this process does.

    They are part of the session's properties, which Spark's page and event log show unless their
    names look secret. Spark does not know all of these names.
    """
    given = {name: environment[name] for name in STORE_SETTINGS if name in environment}
    found = {f"spark.executorEnv.{name}": value for name, value in given.items()}
    if any(name in given for name in _SECRETS_UNKNOWN_TO_SPARK):
        found["spark.redaction.regex"] = "|".join((_SPARKS_SECRETS, *_SECRETS_UNKNOWN_TO_SPARK))
    return found


def check_session(spark: SparkSession) -> list[str]:
    """Warn about settings that a session lacks; returns them."""
    if not hasattr(spark, "_jsparkSession"):
        raise SessionError(
            "this is a Spark Connect session. Millrace runs in the driver: use a classic session, "
            "for example mr.session(master='local[*]') or spark-submit."
        )
    if spark._jsc.sc().isStopped():
        raise SessionError("the Spark session is stopped. Make a new one with mr.session().")
    conf = spark.sparkContext.getConf()
    lacking = [key for key, (value, _) in SETTINGS.items() if conf.get(key) != value]
    # Spark reuses workers unless told otherwise.
    if conf.get("spark.python.worker.reuse") is None:
        lacking.remove("spark.python.worker.reuse")
    if lacking:
        advice = "; ".join(f"{k}={SETTINGS[k][0]} ({SETTINGS[k][1]})" for k in lacking)
        warnings.warn(
            f"this Spark session runs Millrace slower than it could. Use mr.session(...), or set "
            f"before the session starts: {advice}.",
            stacklevel=3,
        )
    return lacking


def check_real_time(spark: SparkSession) -> list[str]:
    """Warn about settings that a session lacks for real-time queries; returns them."""
    conf = spark.sparkContext.getConf()
    lacking = [key for key in REAL_TIME_SETTINGS if conf.get(key) is None]
    for key in lacking:
        value, why = REAL_TIME_SETTINGS[key]
        warnings.warn(
            f"real-time rows of this session take longer than they could. Use mr.session(...), or "
            f"set before the session starts: {key}={value} ({why}).",
            stacklevel=3,
        )
    return lacking


def check_versions() -> None:
    """Raise if a library's version is one Millrace does not run on."""
    if not (4, 3) <= _version(pyspark.__version__) < (5, 0):
        raise UnsupportedVersionError(
            f"PySpark {pyspark.__version__} is installed; Millrace needs 4.3 or later, below 5. "
            "Install it with: pip install 'pyspark>=4.3,<5'"
        )
    if _version(pandas.__version__) >= (3, 0):
        raise UnsupportedVersionError(
            f"pandas {pandas.__version__} is installed; PySpark 4.3 works with pandas below 3. "
            "Install it with: pip install 'pandas>=2.2,<3'"
        )


def _version(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def check_one_session(one: SparkSession, other: SparkSession, where: str) -> None:
    """Raise if streams that are to be in one query are of two Spark sessions."""
    if one is not other and not one._jsparkSession.equals(other._jsparkSession):
        raise UsageError(
            f"{where}: the streams are of two Spark sessions, and a query runs in one. Read both "
            "sources with the same session."
        )
