"""Spark's RocksDB state store with its changelog, inside Spark's JVM and without Python on the way.

Lists are several values of a key, maps an entry per element, as `transformWithState` keeps them. A
commit uploads the changelog of the version. To restore is to load a version in a provider of its
own; to divide and unite is to write every row to other stores, as Spark's offline repartition does.
"""

from __future__ import annotations

import uuid
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from millrace.arrays import Int64Array
from millrace.spark import jvm
from millrace_lab.bench._backends import LIVE, MERGED, RESTORED
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS
from millrace_lab.local_session import local_settings

RUN_ID = "sql.streaming.runId"
_SCHEMAS = {
    "value": ("key LONG", "value LONG"),
    "list": ("key LONG", "value LONG"),
    "map": ("key LONG, entry LONG", "value LONG"),
    "nested": ("key LONG", "tags ARRAY<STRING>, limits MAP<STRING, ARRAY<DOUBLE>>"),
}
"""Kind -> the columns of a row's key and value."""
_AT_ONCE = 1_000_000


class Store:
    """`spark_store`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._spark = _session(folder)
        self._drivers = {LIVE: self._open("state", 0)}
        self._parts: list[Any] = []

    def _open(self, name: str, partition: int, version: int = 0) -> Any:
        spark: Any = self._spark
        hadoop = spark._jsc.hadoopConfiguration()
        hadoop.set(RUN_ID, str(uuid.uuid4()))
        folder = str(self._folder / name)
        settings = spark._jsparkSession.sessionState().conf()
        driver = spark._jvm.io.millrace.lab.StateStoreDriver
        schemas = _SCHEMAS[self._kind]
        return driver(settings, hadoop, folder, partition, self._kind, *schemas, version)

    @property
    def _state(self) -> Any:
        return self._drivers[LIVE]

    def fill(self, keys: Int64Array) -> None:
        for first in range(0, len(keys), _AT_ONCE):
            self._state.fill(self._longs(keys[first : first + _AT_ONCE]))
            self._state.commit()

    def update(self, keys: Int64Array) -> None:
        self._state.update(self._longs(keys))

    def read(self, keys: Int64Array) -> int:
        return int(self._state.read(self._longs(keys)))

    def _longs(self, keys: Int64Array) -> Any:
        """The keys as an array in the JVM, which py4j hands over as bytes."""
        spark: Any = self._spark
        data = bytearray(keys.astype(">i8").tobytes())
        longs = spark.sparkContext._gateway.new_array(spark._jvm.long, len(keys))
        spark._jvm.java.nio.ByteBuffer.wrap(data).asLongBuffer().get(longs)
        return longs

    def scan(self) -> int:
        return int(self._state.scan())

    def checkpoint(self) -> int:
        before = _bytes(self._folder / "state")
        self._state.commit()
        return _bytes(self._folder / "state") - before

    def restore(self) -> None:
        self._drivers[RESTORED] = self._open("state", 0, self._state.version())

    def repartition(self, parts: int) -> None:
        spark: Any = self._spark
        self._parts = [self._open("parts", part) for part in range(parts)]
        kind = spark._jvm.io.millrace.lab.StateStoreDriver
        array = spark.sparkContext._gateway.new_array(kind, parts)
        for number, part in enumerate(self._parts):
            array[number] = part
        self._state.divide(array)
        for part in self._parts:
            part.commit()

    def merge(self) -> None:
        spark: Any = self._spark
        merged = self._open("merged", 0)
        kind = spark._jvm.io.millrace.lab.StateStoreDriver
        array = spark.sparkContext._gateway.new_array(kind, 1)
        array[0] = merged
        for part in self._parts:
            part.divide(array)
        merged.commit()
        self._drivers[MERGED] = merged

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        path = self._folder / "totals.bin"
        self._drivers[state].totals(int(keys.max()) + 1, str(path))
        found: Int64Array = np.fromfile(path, ">i8").astype(np.int64)[keys]
        return found

    def close(self) -> None:
        for driver in (*self._drivers.values(), *self._parts):
            driver.close()
        self._spark.stop()


def _session(folder: Path) -> SparkSession:
    builder: Any = SparkSession.builder.appName("state-store").master("local[1]")
    for key, value in {**local_settings("2g", folder), **STATE_SETTINGS}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm.load(spark)
    source = resources.files("millrace_lab.bench._backends").joinpath("StateStoreDriver.java")
    jvm.install(spark, [source.read_text()])
    return spark


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
