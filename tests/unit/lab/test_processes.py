"""Finding executors and their Python workers among real processes, and what they use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from millrace_lab.processes import (
    anonymous_bytes,
    command_line,
    descendants,
    executor_processes,
    members,
    open_state_files,
    python_workers,
    usage,
)

IDLE = "import sys; print('ready', flush=True); sys.stdin.read()"
EXECUTOR = """
import subprocess, sys
daemon = '''
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(worker.pid, flush=True)
worker.wait()
'''
subprocess.run([sys.executable, "-c", daemon])
"""


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate()


def test_executors_are_found_by_their_id() -> None:
    # Other tests' executors may be in the same session, but not with this id.
    words = ("CoarseGrainedExecutorBackend", "--executor-id", "mine", "--app-id", "app-found-by-id")
    with running("-c", IDLE, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert executor_processes()["mine"] == process.pid
        assert executor_processes(below=os.getpid())["mine"] == process.pid
        assert executor_processes(below=process.pid) == {}
        assert executor_processes(application="app-found-by-id") == {"mine": process.pid}
        assert executor_processes(application="app-found-by-nobody") == {}
    assert "mine" not in executor_processes()


def test_workers_are_the_daemons_children() -> None:
    with running("-c", EXECUTOR) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert python_workers(process.pid) == [worker]


def test_open_files_of_state_stores_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "StateStoreId(opId=0,partId=1,name=default)"
    path.write_text("x")
    code = f"import sys; f = open({str(path)!r}); print('ready', flush=True); sys.stdin.read()"
    with running("-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert open_state_files(process.pid) == 1


def test_memory_and_cpu_time_are_the_processes_own() -> None:
    code = "import sys; x = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
    with running("-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 64 << 20 <= anonymous_bytes(process.pid) < 128 << 20
        found = usage(process.pid, memory=True)
        assert found is not None
        assert found.cpu_seconds > 0
        assert found.shared_bytes is not None
        assert 64 << 20 <= found.shared_bytes < 128 << 20
        without = usage(process.pid, memory=False)
        assert without is not None
        assert without.shared_bytes is None


def test_a_process_that_has_ended_is_absent() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert process.pid not in members()
    process.wait()
    assert process.pid not in members()
    assert command_line(process.pid) == ""
    assert descendants(process.pid) == python_workers(process.pid) == []
    assert usage(process.pid, memory=True) is None
    assert anonymous_bytes(process.pid) == 0
