"""Settings of a small session that is all on one machine: for the demonstration, soaks,
measurements and tests. A query's own session needs none of them.
"""

from __future__ import annotations

from pathlib import Path

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that is to start quickly rather than run quickly."""


def one_machine(memory: str, folder: Path | None = None, *, partitions: int = 2) -> dict[str, str]:
    """No page of Spark's, loopback only, few partitions; with a folder, all of it is in there."""
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
