"""The processes of a Spark application on this machine, and what they use.

A driver that was started as the head of a process session has its JVM, the executors of a local
cluster and their Python workers in it, and nobody else's.

Invariant: a process that ends while it is looked at counts as absent; none of these functions
raises because of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from millrace import clock


def members(session: int | None = None) -> list[int]:
    """The living processes of a session; of this process's own if none is named."""
    wanted = os.getsid(0) if session is None else session
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == wanted and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def executor_processes(
    session: int | None = None, *, below: int | None = None, application: str | None = None
) -> dict[str, int]:
    """Spark's executor id -> process id: in a session, below a process, or of an application."""
    if application is not None:
        pids = psutil.pids()
    else:
        pids = members(session) if below is None else descendants(below)
    found = {}
    for pid in pids:
        command = command_line(pid)
        if "CoarseGrainedExecutorBackend" in command and (application or "") in command:
            match = re.search(r"--executor-id (\S+)", command)
            if match:
                found[match.group(1)] = pid
    return found


def python_workers(executor: int) -> list[int]:
    """The Python workers of an executor: children of its daemon, which is left alone."""
    try:
        daemons = psutil.Process(executor).children()
    except psutil.NoSuchProcess:
        return []
    found = []
    for daemon in daemons:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [worker.pid for worker in daemon.children()]
    return sorted(found)


def send(pids: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to those that are still there; how many were."""
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def end_session(session: int) -> None:
    """Kill all processes of a session, and wait until none is left."""
    while left := members(session):
        send(left, signal.SIGKILL)
        clock.sleep(0.02)


def command_line(pid: int) -> str:
    """A process's command; empty if it is gone."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


@dataclass(frozen=True)
class Usage:
    """What a process uses."""

    cpu_seconds: float
    """Of the process and of those children of it that have ended, in user and system."""
    shared_bytes: int | None
    """Memory in which a page that several have mapped counts in parts (PSS), if asked for."""


def usage(pid: int, *, memory: bool) -> Usage | None:
    """What a process uses; None if that cannot be seen, mostly because it is gone."""
    try:
        process = psutil.Process(pid)
        cpu = process.cpu_times()
        spent = cpu.user + cpu.system + cpu.children_user + cpu.children_system
        return Usage(spent, process.memory_full_info().pss if memory else None)
    except psutil.Error:
        return None


def written_bytes(session: int) -> int:
    """What the living processes of a session have written to storage, shuffled rows included."""
    total = 0
    for pid in members(session):
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).io_counters().write_bytes
    return total


def anonymous_bytes(pid: int) -> int:
    """A process's resident memory without mapped files; 0 if it is gone."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(found.rss - found.shared)


def open_state_files(pid: int) -> int:
    """How many files of Spark's state stores a process has open."""
    return sum("StateStoreId" in file.path for file in psutil.Process(pid).open_files())
