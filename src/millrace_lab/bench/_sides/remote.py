"""`millrace_remote`: Millrace on real executors, with its locations in a bucket or on HDFS.

Spark's logs are in the store as well. The store's requests are written down, and with them
Spark's files (`faults.recording`): the timeline is read from those, and waiting for a commit asks
nothing of the store that is being measured.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.log import open_store
from millrace.log.layout import SPARK
from millrace.log.store import Store
from millrace_lab.bench._openloop import ROOT
from millrace_lab.bench._sides.clusters import MillraceCluster
from millrace_lab.bench._timeline import SOURCES
from millrace_lab.faults import recording

COPIERS = 8


class RemoteCluster(MillraceCluster):
    """A side whose locations are below the URL that a variable has."""

    def url(self, name: str) -> str:
        return f"{os.environ[ROOT]}/{name}"

    def checkpoint(self, name: str) -> Path:
        """The files that Spark has written to its part of a location, on this machine."""
        return self._written(name) / SPARK

    def do_copy(self, name: str, to: str) -> None:
        source, target = self._store(name), self._store(to)

        def copy(path: str) -> None:
            target.put(path, source.read(path))

        with ThreadPoolExecutor(COPIERS) as pool:
            list(pool.map(copy, source.list("")))
        # With the times of the files, by which the timeline goes.
        shutil.copytree(self._written(name), self._written(to), dirs_exist_ok=True)

    def do_remove(self, name: str) -> None:
        store = self._store(name)
        with ThreadPoolExecutor(COPIERS) as pool:
            list(pool.map(store.delete, store.list("")))
        shutil.rmtree(self._written(name))

    def _set_start(self, name: str, started: float) -> None:
        store = self._store(name)
        for number in range(SOURCES):
            folder = f"{SPARK}/sources/{number + 1}"
            for path in store.list(folder):
                store.delete(path)
            store.put(f"{folder}/0", self.first_moment(started, number).encode())

    def _store(self, name: str) -> Store:
        return open_store(self.url(name))

    def _written(self, name: str) -> Path:
        return Path(os.environ[recording.VARIABLE], name)
