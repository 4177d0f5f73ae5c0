"""A standalone Spark cluster of real processes on this machine: a master and some workers.

Unlike the executors of `local-cluster`, each worker is on a host of its own as far as Spark can
tell (127.0.0.1, 127.0.0.2 and so on): Spark runs the copy of a slow task only on another host than
the original, so without this there would be no speculative execution.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from millrace import clock
from millrace.errors import MillraceError
from millrace_lab.local_session import SHORT_LIFE

START_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_READY = re.compile(r"(Successfully registered with master)")


class ClusterError(MillraceError):
    """A standalone cluster could not be started."""


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int, memory: str = "1g") -> Iterator[str]:
    """Yields the master's URL; each worker has one core, so one executor of one core.

    Everything ends with the block, and with this process however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        processes.append(_start("master.Master", "127.0.0.1", log, folder, "--port", "0"))
        url = _await(processes[0], log, _MASTER)
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        for number, log in enumerate(logs):
            size = ("--cores", "1", "--memory", memory, "--work-dir", str(folder / "work"))
            host = f"127.0.0.{number + 1}"
            processes.append(_start("worker.Worker", host, log, folder, *size, url))
        for process, log in zip(processes[1:], logs, strict=True):
            _await(process, log, _READY)
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _start(
    role: str, host: str, log: Path, folder: Path, *arguments: str
) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIFE,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "--host", host, "--webui-port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=die_with_parent,
        )


def _await(process: subprocess.Popen[bytes], log: Path, pattern: re.Pattern[str]) -> str:
    until = clock.stopwatch() + START_SECONDS
    while process.poll() is None and clock.stopwatch() < until:
        found = pattern.search(log.read_text(errors="replace"))
        if found:
            return found.group(1)
        clock.sleep(0.1)
    what = "is not ready" if process.poll() is None else "has ended"
    raise ClusterError(
        f"a process of the standalone cluster {what}; its log {log} ends with:\n"
        f"{log.read_text(errors='replace')[-2000:]}"
    )
