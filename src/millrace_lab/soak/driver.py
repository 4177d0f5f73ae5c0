"""A driver of a soak: one life of the query, until it is asked to stop, is killed, or fails.

    python -m millrace_lab.soak.driver FOLDER LIFE

FOLDER/lives/LIFE.json says how; FOLDER/lives/LIFE.end.json is how it ended, unless it was killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import millrace as mr
from millrace_lab.faults import crashes
from millrace_lab.local_session import SHORT_LIFE, local_settings
from millrace_lab.soak import workload
from millrace_lab.soak.cluster import die_with_parent, standalone_cluster
from millrace_lab.soak.events import event_log


@dataclass(frozen=True)
class Orders:
    """How a life is to be lived."""

    executors: int
    parallelism: int | None
    """None: as it was."""
    speculation: bool
    standby: int
    chosen_keys: bool

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Orders:
        return Orders(**json.loads(path.read_text()))


def settings(folder: Path, life: str, orders: Orders) -> dict[str, str]:
    """Small, quick to notice a death, and with a log of every task for the supervisor."""
    return {
        **local_settings("512m", folder),
        **event_log(folder / "events" / life),
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": SHORT_LIFE,
        "spark.executor.extraJavaOptions": SHORT_LIFE,
        # The oracle reads the times of all batches.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        # Kills come faster here than a real cluster would forgive.
        "spark.task.maxFailures": "16",
        "spark.stage.maxConsecutiveAttempts": "16",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.heartbeatInterval": "2s",
        "spark.network.timeout": "15s",
        "spark.network.timeoutInterval": "5s",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "200ms",
        "spark.speculation": str(orders.speculation).lower(),
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "2",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
    }


def main() -> None:
    folder, life = Path(sys.argv[1]), sys.argv[2]
    # If the supervisor dies, this dies too, and with it the JVM and the executors.
    die_with_parent()
    # The supervisor asks a driver that hangs where it is; a JVM answers SIGQUIT by itself.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    crashes.register_driver()
    orders = Orders.read(folder / "lives" / f"{life}.json")
    end = {"error": "", "text": ""}
    try:
        with standalone_cluster(folder / "clusters" / life, orders.executors) as master:
            _live(folder, life, orders, master)
    except Exception as error:
        end = {"error": type(error).__name__, "text": str(error)}
    temporary = folder / "lives" / f".{life}.end.json"
    temporary.write_text(json.dumps(end))
    temporary.replace(folder / "lives" / f"{life}.end.json")
    # Sessions that lost their cluster may hang in their shutdown hooks; there is nothing to save.
    os._exit(1 if end["error"] else 0)


def _live(folder: Path, life: str, orders: Orders, master: str) -> None:
    spark = mr.session(
        "millrace-soak",
        master=master,
        config=settings(folder, life, orders),
    )
    spark.sparkContext.setLogLevel("ERROR")
    disk = folder / "disk"
    query = workload.build(spark, disk / "sinks", orders.chosen_keys).start(
        str(disk / "location"),
        parallelism=orders.parallelism,
        key_groups=workload.KEY_GROUPS,
        # No interval: Spark waits for it by the time of day, however far that is set back.
        trigger=None,
        standby=orders.standby,
        retain_epochs=20,
    )
    stop = folder / "lives" / f"{life}.stop"
    while not stop.exists():
        if query.await_termination(1) or not query.is_active:
            raise query.exception() or mr.MillraceError("the query ended by itself")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
