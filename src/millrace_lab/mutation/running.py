"""Runs tests in a fork of this process, in which one module has a fault.

The work tree stays as it is: an importer in front of the others gives the one module its changed
source. This process has the libraries loaded but not the package, so a fork starts at once.

Compiled kernels come from a cache of their own, without those that the fault is compiled into.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

LIBRARIES = (
    *("numpy", "numba", "llvmlite.ir", "numba.extending", "pyarrow.parquet", "pyarrow.compute"),
    *("pyarrow.fs", "pandas", "duckdb", "fsspec", "xxhash", "click", "rich.console"),
    *("pyspark.sql", "pyspark.sql.functions", "pyspark.sql.streaming.stateful_processor"),
    *("pytest", "hypothesis.stateful", "hypothesis.extra.numpy", "xdist", "pytest_timeout"),
)
SECONDS = 30.0
"""CPU time that tests may take beside five times what they took without a fault."""
DEADLINE = 600.0
"""Time by the clock, likewise: only tests that wait for something run into it."""
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def preload(root: Path) -> None:
    """Load what the tests need, but for the package that is tested and the tests."""
    os.environ.update(ENVIRONMENT)
    sys.dont_write_bytecode = True
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for name in LIBRARIES:
        importlib.import_module(name)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._mutated = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutated, self.path, "exec", dont_inherit=True)


@dataclass(frozen=True)
class Fault(importlib.abc.MetaPathFinder):
    """A module by name, and the source that it has in place of its own."""

    name: str
    path: Path
    source: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        folders = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname,
            self.path,
            loader=_Loader(fullname, str(self.path), self.source),
            submodule_search_locations=folders,
        )


@dataclass
class Fork:
    """A running fork, the head of a process group of its own."""

    pid: int
    log: Path
    ends_by: float
    temporary: str
    """A folder for its temporary files."""
    timed_out: bool = False

    def poll(self) -> int | None:
        """Its exit code; negative for a signal; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            shutil.rmtree(self.temporary, ignore_errors=True)
            code = os.waitstatus_to_exitcode(status)
            self.timed_out |= code == -signal.SIGXCPU
            return code
        if time.monotonic() > self.ends_by and not self.timed_out:
            self.timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return None

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code


def fork(action: Callable[[], int], log: Path, seconds: float) -> Fork:
    """Run a function in a fork, for some CPU time at most; its result is the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Not below the work folder: some tests read theirs as a user who may see little.
    temporary = tempfile.mkdtemp(prefix="millrace-mutation-")
    os.chmod(temporary, 0o755)
    pid = os.fork()
    if pid:
        return Fork(pid, log, time.monotonic() + DEADLINE + seconds, temporary)
    code = 70
    try:
        os.setsid()
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        resource.setrlimit(resource.RLIMIT_CPU, (round(seconds), round(seconds) + 60))
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = action()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def pytest_in(
    root: Path,
    work: Path,
    tests: Sequence[str],
    plugins: Sequence[object] = (),
    options: Sequence[str] = (),
) -> int:
    """Run tests in this process, which is a fork."""
    import pytest

    os.chdir(root)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(work / "hypothesis")
    quiet = ("-x", "-q", "--no-header", "--tb=short", "--durations=0", "-p", "no:cacheprovider")
    return int(pytest.main([*quiet, *options, *tests], plugins=list(plugins)))


def use_kernels(cache: Path) -> None:
    """Load and keep compiled kernels in a folder from now on, in this process and its children."""
    import numba

    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    # Numba has read the variable when it was imported.
    config: Any = numba.config
    config.CACHE_DIR = str(cache)


def kernel_cache(base: Path, to: Path, affected: set[str]) -> None:
    """A cache with the kernels of another one, but for those of some modules."""
    stems = {Path(module).stem for module in affected}
    to.mkdir(parents=True, exist_ok=True)
    for path in base.rglob("*.nb[ic]"):
        if path.name.partition(".")[0] not in stems:
            copy = to / path.relative_to(base)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
