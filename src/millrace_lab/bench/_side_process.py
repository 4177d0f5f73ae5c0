"""A side in a process of its own, seen from the benchmark.

Each side has its own Python and its own JVM, so neither warms up, fills up or slows down the other.
A side answers one command at a time and is idle in between, so the sides can take turns.
Where starting takes longer than measuring, a side may have guests: sides in the same process.
A side may also be a program of another Python environment, see `_environments`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from millrace_lab import processes
from millrace_lab.bench._contract import BenchmarkError

COMMAND_TIMEOUT = 1800.0
"""Seconds after which a command that does not answer counts as failed."""


class SideProcess:
    """One side of a comparison."""

    def __init__(
        self,
        kind: str,
        workdir: Path,
        *,
        memory: str = "4g",
        guests: Sequence[str] = (),
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.workdir = workdir / kind
        self.workdir.mkdir(parents=True)
        self.sides: dict[str, SideHandle] = {kind: self}
        """Itself and its guests."""
        for guest in guests:
            self.sides[guest] = Guest(self, guest)
        self._turn = threading.Lock()
        self._closed = False
        self._log = self.workdir / "log.txt"
        own = (sys.executable, "-m", "millrace_lab.bench._sides", kind, str(self.workdir), memory)
        command = [*own, *guests] if program is None else [*program, kind, str(self.workdir)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.workdir,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        """The process session of the side and all that it starts."""
        return self._process.pid

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # It may be in the middle of something that takes long.
            self.kill()
        self.close()

    def call(self, command: str, **arguments: Any) -> Any:
        """Have the side do something, and wait for its answer."""
        return self.ask(self.kind, command, arguments)

    def ask(self, kind: str, command: str, arguments: dict[str, Any]) -> Any:
        """Have the side or a guest do something, when the one before is done."""
        with self._turn:
            return self._ask(kind, command, arguments)

    def _ask(self, kind: str, command: str, arguments: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(COMMAND_TIMEOUT, self.kill)
        watchdog.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps([kind, command, arguments]) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        answer = json.loads(line) if line else {"error": "it ended without an answer"}
        if "error" in answer:
            raise BenchmarkError(
                f"{kind} failed at {command!r}: {answer['error']}\n"
                f"The end of its log:\n{self._tail()}"
            )
        return answer["value"]

    def close(self) -> None:
        """End the side and everything it started."""
        if self._closed:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        # The JVM and the Python workers are in the side's session and may outlive it for a moment.
        processes.end_session(self._process.pid)
        # From here on, its number may be another's.
        self._closed = True
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """End the side and all it started, at once; who waits for an answer gets an error."""
        if self._closed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Some workers make process groups of their own, but stay in the session.
        processes.send(processes.members(self._process.pid), signal.SIGKILL)

    def _tail(self, lines: int = 25) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


class Guest:
    """A side in another's process."""

    def __init__(self, host: SideProcess, kind: str) -> None:
        self.kind = kind
        self.workdir = host.workdir.parent / kind
        self.workdir.mkdir()
        self._host = host

    def kill(self) -> None:
        self._host.kill()

    def call(self, command: str, **arguments: Any) -> Any:
        return self._host.ask(self.kind, command, arguments)


SideHandle = SideProcess | Guest

HandleT = TypeVar("HandleT", SideProcess, SideHandle)
T = TypeVar("T")


def all_at_once(sides: Mapping[str, HandleT], do: Callable[[HandleT], T]) -> dict[str, T]:
    """What sides do at the same time, because it is not timed."""
    pool = ThreadPoolExecutor(len(sides))
    try:
        started = {name: pool.submit(do, side) for name, side in sides.items()}
        return {name: future.result() for name, future in started.items()}
    except BaseException:
        # A thread that waits for a side's answer would keep the pool from ending.
        for side in sides.values():
            side.kill()
        raise
    finally:
        pool.shutdown()
