"""The file sink: a directory per batch, which appears whole and once."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace import clock
from millrace.errors import SinkError
from millrace.spark.jvm import java_class
from millrace.spark.sinks.contract import Sink, first_line, run


class Files(Sink):
    """A directory per batch, `batch_id=12`, which appears whole and once.

    A batch is written beside its place and renamed into it, which fails if the place is taken. A
    batch that already exists is not written again: the driver died after the rename, or another
    driver took the location over while this one was writing.
    """

    FORMATS = ("parquet", "orc", "json", "csv")
    OWNER = "_millrace.json"
    PARTITION = "batch_id"

    def __init__(self, file_format: str, path: str, options: dict[str, Any]) -> None:
        self.target = ("path", path)
        self._format = file_format
        self._path = path
        self._options = options
        self._run = clock.fresh_id()[:12]
        self._fs: Any = None
        self._context: Any = None
        self._gateway: Any = None
        self._spark: Any = None

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        if self.PARTITION in schema.names:
            raise SinkError(
                f"the output has a column {self.PARTITION!r}, which the file sink uses for its "
                "directories. Rename it with transform()."
            )
        self._spark = spark
        self._gateway = spark.sparkContext._gateway
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        root = self._jpath(self._path)
        try:
            self._fs = root.getFileSystem(configuration)
            self._context = java_class(spark, "org.apache.hadoop.fs.FileContext").getFileContext(
                self._fs.getUri(), configuration
            )
            self._fs.mkdirs(root)
            self._claim(query)
            self._fs.delete(self._jpath(f"{self._path}/_staging"), True)
        except SinkError:
            raise
        except Exception as error:
            raise SinkError(
                f"the sink's path {self._path} cannot be written to: {first_line(error)}. Check "
                "the path and its permissions."
            ) from error

    def _jpath(self, path: str) -> Any:
        return java_class(self._spark, "org.apache.hadoop.fs.Path")(path)

    def _claim(self, query: str) -> None:
        mark = self._jpath(f"{self._path}/{self.OWNER}")
        if self._fs.exists(mark):
            stream = self._fs.open(mark)
            try:
                utils = java_class(self._spark, "org.apache.commons.io.IOUtils")
                text = utils.toString(stream, "UTF-8")
            finally:
                stream.close()
            owner = json.loads(text)["query"]
            if owner != query:
                raise SinkError(
                    f"the sink's path {self._path} belongs to another query ({owner}; this one is "
                    f"{query}). Give each query, and each new checkpointLocation, a path of its "
                    "own."
                )
            return
        present = [s.getPath().getName() for s in self._fs.listStatus(self._jpath(self._path))]
        if any(name != "_staging" for name in present):
            raise SinkError(
                f"the sink's path {self._path} is not empty and was not written by Millrace. "
                "Choose an empty directory."
            )
        # Written aside and renamed: a crash in between leaves no half-written owner.
        draft = self._jpath(f"{self._path}/_staging/{self._run}-owner")
        stream = self._fs.create(draft, False)
        try:
            stream.write(json.dumps({"query": query}).encode())
        finally:
            stream.close()
        if not self._fs.rename(draft, mark):
            raise SinkError(f"could not create {mark}. Check the path and its permissions.")

    def write(self, df: DataFrame, batch_id: int) -> None:
        final = self._jpath(f"{self._path}/{self.PARTITION}={batch_id}")
        if self._fs.exists(final):
            run(df)
            return
        staging = f"{self._path}/_staging/{self._run}-{batch_id}"
        df.write.format(self._format).options(**self._options).mode("overwrite").save(staging)
        try:
            self._move(self._jpath(staging), final)
        except Exception as error:
            if self._fs.exists(final):
                self._fs.delete(self._jpath(staging), True)
                return
            raise SinkError(
                f"could not move batch {batch_id} into {final}: {first_line(error)}. Nothing is "
                "lost: fix the path and start the query again."
            ) from error

    def _move(self, source: Any, target: Any) -> None:
        # FileSystem.rename would move the directory into an existing one.
        mode = java_class(self._spark, "org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(mode, 0)
        self._context.rename(source, target, options)
