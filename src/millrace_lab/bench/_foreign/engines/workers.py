"""Jobs in processes of their own, for engines that cannot be stopped and started in one.

A job is this environment's interpreter running `python -m engines.<engine> {arguments}`. It says
how far it is by `Marks`; a job that is to end by itself writes its counts to a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .job import Marks, measure


def arguments() -> dict[str, Any]:
    """What a job was started with."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


class Jobs:
    """The jobs of one engine, one at a time, each of one or more processes."""

    def __init__(self, engine: str, workdir: Path) -> None:
        self._engine = engine
        self._workdir = workdir
        self._started = 0

    def folder(self) -> Path:
        """A new one, for what a job keeps."""
        self._started += 1
        folder = self._workdir / f"job-{self._started}"
        folder.mkdir()
        return folder

    def finish(self, jobs: list[dict[str, Any]], environment: dict[str, str]) -> None:
        """Run the processes of a job to their end."""
        with self._running(jobs, environment) as running:
            codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError(f"the job ended with {codes}")

    def timed(
        self,
        jobs: list[dict[str, Any]],
        environment: dict[str, str],
        marks: Marks,
        **measured: Any,
    ) -> list[dict[str, Any]]:
        """Windows of a job that does not end by itself."""
        with self._running(jobs, environment) as running:
            return measure(
                marks.get, lambda: all(process.poll() is None for process in running), **measured
            )

    @contextmanager
    def _running(
        self, jobs: list[dict[str, Any]], environment: dict[str, str]
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        command = [sys.executable, "-m", f"engines.{self._engine}"]
        running = [
            subprocess.Popen(
                [*command, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
            for given in jobs
        ]
        try:
            yield running
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()
