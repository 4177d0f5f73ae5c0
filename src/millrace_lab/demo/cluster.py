"""The demonstration's Spark: executors in processes of their own, on this machine.

`local-cluster` starts real executors, so that one can be killed. Everything they write is in one
folder, but for their working directories, which Spark keeps below its own home: those are removed.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

import millrace as mr
from millrace.spark.executors import PREFIX
from millrace_lab.local_cluster import starting
from millrace_lab.local_session import local_settings
from millrace_lab.processes import executor_processes

EXECUTOR_MB = 512


def session(folder: Path, executors: int) -> SparkSession:
    """A session with executors of one core."""
    with starting():
        spark = mr.session(
            "millrace-demo",
            master=f"local-cluster[{executors},1,{EXECUTOR_MB}]",
            config={
                **local_settings("1g", folder),
                "spark.executor.memory": f"{EXECUTOR_MB}m",
                "spark.sql.streaming.numRecentProgressUpdates": "50",
            },
        )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def kill(executor: str) -> bool:
    """SIGKILL an executor of this process's session; False if it is gone already."""
    found = executor_processes(below=_gateway().proc.pid)
    pid = found.get(executor.removeprefix(PREFIX))
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def end(spark: SparkSession) -> None:
    """Stop Spark, and wait until its JVM is gone."""
    application = spark.sparkContext.applicationId
    spark.stop()
    gateway = _gateway()
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    process = gateway.proc
    if process.stdin:
        process.stdin.close()
    process.wait(30)
    shutil.rmtree(Path(_find_spark_home(), "work", str(application)), ignore_errors=True)


def _gateway() -> Any:
    return SparkContext._gateway
