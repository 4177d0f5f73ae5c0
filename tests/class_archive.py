"""How the JVMs of the tests start: quickly, from an archive of Spark's loaded classes.

    python -m tests.class_archive

makes the archive. A run of the tests starts some hundred JVMs, and few live for long. The archive
is of one version of Java and of PySpark; a JVM that it does not fit does without.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from millrace_lab.local_session import SHORT_LIFE, local_settings

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def options() -> str:
    """For all JVMs; of the archive, if it was made."""
    if not ARCHIVE.exists():
        return SHORT_LIFE
    return f"{SHORT_LIFE} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def make() -> None:
    """Run a query, and have its JVM write down the classes it has loaded when it ends."""
    # Those who only use the archive need no Spark.
    from pyspark import SparkContext
    from tests.faults import driver
    from tests.spark import support

    import millrace as mr

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        exit_options = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
        spark = mr.session(
            "millrace-class-archive",
            master="local[2]",
            config={
                **local_settings("512m", scratch),
                "spark.driver.extraJavaOptions": exit_options,
            },
        )
        folder = support.Folder(scratch / "in", "k string, g int, v long, d decimal(9,2), s string")
        folder.drop([("a", 1, 2, None, "b")])
        spark.sparkContext.setLogLevel("OFF")
        for sink in driver.SINKS:
            sinked = driver.build(spark, folder.path, sink, scratch / sink)
            driver.finish(sinked, scratch / f"location-{sink}")
        support.batch_state(folder.batch(spark), list(driver.KEYS), driver.AGGREGATES)
        spark.stop()
        # The JVM writes the archive when it ends.
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    ARCHIVE.unlink(missing_ok=True)
    make()
