"""Settings of a small Spark session on one machine: for demonstration, soaks, benchmarks, tests."""

from __future__ import annotations

from pathlib import Path

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that should start quickly rather than run quickly."""


def local_settings(
    memory: str, folder: Path | None = None, *, partitions: int = 2
) -> dict[str, str]:
    """No web page of Spark's, loopback only, few partitions; with a folder, all files in there."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if folder is not None:
        settings["spark.local.dir"] = str(folder / "spark-local")
        settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    return settings
