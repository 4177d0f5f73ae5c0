"""The processes of a Spark application on this machine, found in /proc.

Only those of one process session: a driver that was started as the head of a session has its JVM,
the executors of a local cluster and their Python workers in it, and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path


def members(session: int | None = None) -> list[int]:
    """The living processes of a session; of this process's own if none is named."""
    wanted = os.getsid(0) if session is None else session
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, its = _fields(int(entry))[:4]
                if int(its) == wanted and state != "Z":
                    found.append(int(entry))
    return sorted(found)


def executor_processes(
    session: int | None = None, *, below: int | None = None, application: str | None = None
) -> dict[str, int]:
    """Spark's executor id -> process id: in a session, below a process, or of an application."""
    if application is not None:
        pids = sorted(_parents())
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
    parents = _parents()
    daemons = {pid for pid, parent in parents.items() if parent == executor}
    return sorted(pid for pid, parent in parents.items() if parent in daemons)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    parents = _parents()
    found, last = set[int](), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last} - found
        found |= last
    return sorted(found)


def send(pids: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to those that are still there; how many were."""
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def command_line(pid: int) -> str:
    """A process's command; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def resident_bytes(pid: int) -> dict[str, int]:
    """A process's resident memory: its own (`anon`), and mapped files (`file`)."""
    found = {"anon": 0, "file": 0}
    names = {"RssAnon:": "anon", "RssFile:": "file", "RssShmem:": "file"}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        words = line.split()
        if words and words[0] in names:
            found[names[words[0]]] += int(words[1]) * 1024
    return found


def proportional_bytes(pid: int) -> int:
    """A process's memory, in which a page that several have mapped counts in parts (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those children of it that have ended, in user and system."""
    # Fields 14 to 17 of the file; the first two are not among those returned.
    return sum(int(ticks) for ticks in _fields(pid)[11:15]) / os.sysconf("SC_CLK_TCK")


def open_state_files(pid: int) -> int:
    """How many files of Spark's state stores a process has open."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "StateStoreId" in os.readlink(entry)
    return count


def _fields(pid: int) -> list[str]:
    # After the command's name, which is in parentheses and may have any character: state, parent,
    # process group, session.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry)] = int(_fields(int(entry))[1])
    return found
