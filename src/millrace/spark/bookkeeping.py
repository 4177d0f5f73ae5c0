"""Spark's own bookkeeping of a query: how its offset and commit logs are written.

On a local file system Spark spends most of a small epoch starting processes that set permission
bits. Elsewhere it would reach the location through Hadoop, with a client and credentials of its
own. Millrace gives Spark a file manager that does neither, for its own queries only. A checkpoint
can be continued with or without it: the files are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import clock
from millrace.errors import AlreadyExistsError, MissingFileError
from millrace.log.layout import SPARK
from millrace.log.store import Store
from millrace.spark import jvm
from millrace.spark.settings import configured

KEY = "spark.sql.streaming.checkpointFileManagerClass"

POLL_SECONDS = 0.01


@contextmanager
def checkpoint_files(spark: SparkSession, store: Store) -> Iterator[None]:
    """While this is open, queries that start use Millrace's file manager for a store.

    A file manager that the user chose is left alone. One start at a time: the setting is the
    session's.
    """
    with _starting:
        if spark.conf.get(KEY, None) is not None:
            yield
            return
        package = jvm.load(spark)
        kind = "LocalCheckpointFiles"
        if store.local_path("") is None:
            kind = "StoreCheckpointFiles"
            gateway: Any = spark.sparkContext._gateway
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            package.StoreCheckpointFiles.attach(store.url, StoreFiles(store))
        with configured(spark, {KEY: f"{jvm.PACKAGE}.{kind}"}):
            yield


_starting = threading.RLock()


def wait_for_sources(query: StreamingQuery) -> None:
    """Return when Spark has made a query's sources, or the query has ended.

    A query has a copy of the session's settings, but its sources look at the session itself, in a
    thread that goes on after the start: until then the file manager must be set there. On a local
    location they may as well use Spark's.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        clock.sleep(POLL_SECONDS)


class StoreFiles:
    """A store, for the file manager in the JVM.

    Spark asks for lists and for what is not there in every batch. It is the only writer here, so
    what there is at first and what it has written since is known. If there is another driver, its
    files are found when one of them is to be created.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: set[str] | None = None

    def write(self, path: str, data: bytes, overwrite: bool) -> bool:
        if overwrite:
            self._store.put(path, bytes(data))
        else:
            try:
                self._store.create(path, bytes(data))
            except AlreadyExistsError:
                return False
        with self._lock:
            self._there().add(path)
        return True

    def read(self, path: str) -> bytearray | None:
        try:
            # py4j sends this type as an array of bytes.
            return bytearray(self._store.read(path))
        except MissingFileError:
            return None

    def exists(self, path: str) -> bool:
        return bool(self._below(path))

    def names(self, folder: str) -> str:
        """The files and the folders (with a slash) that are in a folder, a line each."""
        parts = [path[len(folder) + 1 :].partition("/") for path in self._below(folder)]
        return "\n".join(sorted({name + slash for name, slash, _ in parts}))

    def remove(self, path: str) -> None:
        for each in self._below(path):
            self._store.delete(each)
            with self._lock:
                self._there().discard(each)

    def _below(self, path: str) -> list[str]:
        """The file of this path, or those in this folder."""
        with self._lock:
            return [each for each in self._there() if each == path or each.startswith(f"{path}/")]

    def _there(self) -> set[str]:
        if self._known is None:
            self._known = set(self._store.list(SPARK))
        return self._known

    class Java:
        implements: Any = [f"{jvm.PACKAGE}.StoreCheckpointFiles$Files"]  # noqa: RUF012
