"""Finding executors and their Python workers among real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.processes import executor_processes, open_state_files, python_workers

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
    words = ("CoarseGrainedExecutorBackend", "--executor-id", "7", "--app-id", "app-found-by-id")
    with running("-c", IDLE, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert executor_processes() == {"7": process.pid}
        assert executor_processes(below=os.getpid()) == {"7": process.pid}
        assert executor_processes(below=process.pid) == {}
        assert executor_processes(application="app-found-by-id") == {"7": process.pid}
        assert executor_processes(application="app-found-by-nobody") == {}
    assert executor_processes() == {}


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
