"""Programs in processes of their own: start one, wait for its end, and find what it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import DEADLINE, until

from millrace_lab.processes import command_line, members

ROOT = Path(__file__).parent.parent


@dataclass
class Program:
    """A running Python program, the head of a process session of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"the program did not end:\n{self.output()}") from None

    def output(self) -> str:
        """What it printed; of much, the beginning and the end.

        The reason of a failure comes first, and the traces of what failed because of it follow.
        """
        text = self.log.read_text(errors="replace")
        return text if len(text) < 12_000 else f"{text[:6000]}\n[...]\n{text[-6000:]}"

    def others(self) -> list[int]:
        """The JVM, the Python daemon and its workers, whatever process group they made."""
        return [pid for pid in members(self.process.pid) if pid != self.process.pid]

    def assert_nobody_survives(self) -> None:
        """The JVM notices that its driver is gone, and the workers that their JVM is."""
        try:
            until(lambda: not self.others(), "all processes of a dead driver gone")
        except AssertionError as error:
            left = {pid: command_line(pid)[:200] for pid in self.others()}
            self.kill_all()
            raise AssertionError(f"{error}: {left}") from None

    def kill_all(self) -> None:
        """SIGKILL to every process of the session, as when a machine loses power."""
        for pid in [self.process.pid, *self.others()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def start(module: str, *arguments: object, log: Path, **environment: str) -> Program:
    """Run `python -m module arguments`."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Program(process, log)
