"""A standalone Spark cluster of real processes on this machine: a master and some workers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_READY = "Successfully registered with master"


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int, memory: str = "1g") -> Iterator[str]:
    """Yields the master's URL; each worker has one core, so one executor of one core."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        processes.append(_start([*master, "--webui-port", "0"], log, folder))
        url = _await(log, _MASTER)
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", memory]
            work = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(folder / "work")]
            processes.append(_start([*worker, *work, url], log, folder))
        for number in range(workers):
            _await(folder / f"worker-{number}.log", re.compile(f"({_READY})"))
        yield url
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(arguments: list[str], log: Path, folder: Path) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _await(log: Path, pattern: re.Pattern[str], seconds: int = 120) -> str:
    for _ in range(seconds * 10):
        found = pattern.search(log.read_text(errors="replace"))
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"no {pattern.pattern!r} in {log}:\n{log.read_text()[-2000:]}")
