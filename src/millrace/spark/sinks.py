"""Where an epoch's output goes.

A sink is called with the output frame and the batch id, before the manifest is written. If the
driver dies in between, it is called again with the same batch id and the same rows. The built-in
sinks still write a batch once; a user's function can do so with the batch id.

A sink must run the frame completely, because running it is what updates the state. `ForEachBatch`
makes sure of that for functions that do not, and that a function which uses the frame several times
does not run the epoch several times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace import clock
from millrace.errors import SinkError
from millrace.spark.template import rows_of

BatchFunction = Callable[[DataFrame, int], None]


class Sink(Protocol):
    """Takes one batch at a time."""

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        """Check, once and before the query starts, that the sink can be written to."""
        return

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, once however often this is called with its id."""


def run(df: DataFrame) -> None:
    """Run a frame to its end and drop its rows."""
    rows_of(df).count()


class Noop(Sink):
    """Drops the output; the state is what counts."""

    def write(self, df: DataFrame, batch_id: int) -> None:
        run(df)


class ForEachBatch(Sink):
    """Hands the batch to a function, at least once, with its batch id."""

    def __init__(self, function: BatchFunction) -> None:
        if not callable(function):
            raise SinkError(
                f"for_each_batch() takes a function of (df, batch_id), not {function!r}."
            )
        self._function = function

    def write(self, df: DataFrame, batch_id: int) -> None:
        df.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._function(df, batch_id)
            # What the function has run is cached by now; this runs what it left out.
            run(df)
        finally:
            df.unpersist()


class Console(Sink):
    """Prints each batch."""

    def __init__(self, rows: int = 20, truncate: bool = True) -> None:
        self._rows = rows
        self._truncate = truncate

    def write(self, df: DataFrame, batch_id: int) -> None:
        table = df.toArrow()
        shown = df.sparkSession.createDataFrame(table)
        print(f"-------- batch {batch_id}: {table.num_rows} rows --------")
        shown.show(self._rows, truncate=self._truncate)


class Memory:
    """Appends each batch to a table in the driver's memory, for trying things out."""

    def __init__(self, name: str) -> None:
        self.target = ("table", name)
        self._name = name
        self._sink: Any = None

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        jvm: Any = spark._jvm
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        self._sink = sources.MemorySink()
        empty: Any = spark.createDataFrame([], schema)._jdf
        plan = sources.MemoryPlan(self._sink, empty.queryExecution().analyzed().output())
        frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
        frame.createOrReplaceTempView(self._name)

    def write(self, df: DataFrame, batch_id: int) -> None:
        # Spark's own memory sink; it ignores a batch id it has seen.
        self._sink.write(batch_id, False, df._jdf.collect())


class Files:
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
        self._jvm: Any = None

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        if self.PARTITION in schema.names:
            raise SinkError(
                f"the output has a column {self.PARTITION!r}, which the file sink uses for its "
                "directories. Rename it with transform()."
            )
        self._jvm = spark._jvm
        self._gateway = spark.sparkContext._gateway
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        root = self._jpath(self._path)
        try:
            self._fs = root.getFileSystem(configuration)
            self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._fs.getUri(), configuration
            )
            self._fs.mkdirs(root)
            self._claim(query)
            self._fs.delete(self._jpath(f"{self._path}/_staging"), True)
        except SinkError:
            raise
        except Exception as error:
            raise SinkError(
                f"the sink's path {self._path} cannot be written to: {_first_line(error)}. Check "
                "the path and its permissions."
            ) from error

    def _jpath(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _claim(self, query: str) -> None:
        mark = self._jpath(f"{self._path}/{self.OWNER}")
        if self._fs.exists(mark):
            stream = self._fs.open(mark)
            try:
                text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
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
                f"could not move batch {batch_id} into {final}: {_first_line(error)}. Nothing is "
                "lost: fix the path and start the query again."
            ) from error

    def _move(self, source: Any, target: Any) -> None:
        # FileSystem.rename would move the directory into an existing one.
        mode = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._gateway.new_array(mode, 0)
        self._context.rename(source, target, options)


def check_targets(sinks: Sequence[Sink]) -> None:
    """Raise if two sinks of one query would write to the same place."""
    taken: set[tuple[str, str]] = set()
    for sink in sinks:
        if isinstance(sink, Files | Memory):
            if sink.target in taken:
                kind, place = sink.target
                raise SinkError(
                    f"two sinks of the query write to the {kind} {place!r}. Give each its own."
                )
            taken.add(sink.target)


def make_sink(name: str, options: dict[str, Any]) -> Sink:
    """The sink for `.to(name, **options)`."""
    known = ("console", "memory", "noop", *Files.FORMATS)
    if name == "noop":
        _no_more(name, options)
        return Noop()
    if name == "console":
        sink = Console(options.pop("rows", 20), options.pop("truncate", True))
        _no_more(name, options)
        return sink
    if name == "memory":
        table = _required(name, options, "name", 'the table\'s name, as in .to("memory", name="t")')
        _no_more(name, options)
        return Memory(table)
    if name in Files.FORMATS:
        path = _required(name, options, "path", "the directory to write to")
        return Files(name, path.rstrip("/"), options)
    raise SinkError(
        f"there is no sink {name!r}. The built-in sinks are {', '.join(known)}; anything else can "
        "be written with for_each_batch(function)."
    )


def _required(sink: str, options: dict[str, Any], key: str, meaning: str) -> str:
    value = options.pop(key, None)
    if not isinstance(value, str) or not value:
        raise SinkError(f"the {sink} sink needs {key}=: {meaning}.")
    return value


def _no_more(sink: str, options: dict[str, Any]) -> None:
    if options:
        raise SinkError(f"the {sink} sink has no option {next(iter(options))!r}.")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
