"""The processes of a side's executors, found in /proc. Only those of this process's own session."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path


def _mine() -> Iterator[tuple[int, str]]:
    """Process ids and command lines of this session."""
    session = os.getsid(0)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) == session:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield int(entry.name), command


def executor_processes() -> dict[str, int]:
    """Spark's executor id -> process id."""
    found = {}
    for pid, command in _mine():
        if "CoarseGrainedExecutorBackend" in command:
            match = re.search(r"--executor-id (\S+)", command)
            if match:
                found[match.group(1)] = pid
    return found


def _parent(pid: int) -> int:
    # The command's name is in parentheses and may have any character.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def python_workers(executor: int) -> list[int]:
    """The Python workers of an executor: children of its daemon, which is left alone."""
    parents = {}
    for pid, _ in _mine():
        with contextlib.suppress(OSError):
            parents[pid] = _parent(pid)
    daemons = {pid for pid, parent in parents.items() if parent == executor}
    return [pid for pid, parent in parents.items() if parent in daemons]


def open_state_files(pid: int) -> int:
    """How many files of state stores a process has open."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "StateStoreId" in os.readlink(entry)
    return count
