"""Where a benchmark ran: the machine and the versions, for the result's file."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from millrace._version import __version__


def machine(load: float) -> dict[str, Any]:
    """`load` is the load average when the benchmark began: what others were doing meanwhile."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_at_start": round(load, 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    names = ("pyspark", "pyarrow", "numpy", "numba", "pandas")
    return {
        "millrace": __version__,
        **({"commit": commit} if (commit := _commit()) else {}),
        "python": platform.python_version(),
        "java": _java(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "unknown"


@functools.cache
def _commit() -> str | None:
    """The commit of the source this runs from; None if it was installed, or is in no repository."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        folder = Path(__file__).parent
        asked = [git, *arguments]
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if ask("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = ask("rev-parse", "--short=12", "HEAD")
    return f"{commit}+changes" if ask("status", "--porcelain", "--", "../..") else commit


@functools.cache
def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java:
        return "unknown"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found.group(1) if found else "unknown"
