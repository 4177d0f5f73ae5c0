"""The Kafka sink: every row of a batch once, for readers with `read_committed`.

A batch is divided by its keys among a fixed number of writers. A writer is a Spark task that puts
its rows and a marker, the batch's id, into one transaction, so rows go from the executors to Kafka
and never through the driver. `io.millrace.KafkaTransactions` is what it does.

Invariant: a row's writer depends on its key alone, not on the parallelism of the query. So a batch
that was written in part is completed by a later life with other shards: each writer's last marker
says whether its own part is there.

The markers are in a topic of the query's own. The location has a note of it, because without its
markers a sink cannot tell a new batch from one that it has written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import clock
from millrace.errors import AlreadyExistsError, RealTimeError, SinkError
from millrace.log.layout import SINKS
from millrace.log.store import Store
from millrace.spark import jvm
from millrace.spark.kafka import CLIENT, SESSION_ADVICE, has_client, last_cause, reason
from millrace.spark.sinks.contract import RealTimeTarget, Sink, first_line
from millrace.spark.template import PlanTemplate, is_bare, rows_of

OPTIONS = ("topic", "servers", "key", "value", "headers", "exactly_once", "writers")
OURS = (
    *("bootstrap.servers", "transactional.id", "enable.idempotence", "acks"),
    *("key.serializer", "value.serializer"),
)
"""Options of the client that the sink sets itself."""
DEFAULTS = {
    "acks": "all",
    "enable.idempotence": "true",
    "transaction.timeout.ms": "300000",
    "linger.ms": "5",
}
DEFAULT_WRITERS = 8
"""The most unless asked for: each costs a commit in every batch."""
MOST_WRITERS = 256
LONGEST_TOPIC = 249

_CAUSE = re.compile(r"millrace\.kafka: (.*?) /millrace\.kafka", re.DOTALL)
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


Expression = str | Column
"""A column, or a column's name."""


class Kafka(Sink):
    """A topic that gets every batch once, or at least once."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._topic = _text(options, "topic", "the topic to write to")
        self._servers = _text(options, "servers", "the brokers, such as 'one:9092,two:9092'")
        if not _TOPIC.fullmatch(self._topic):
            raise SinkError(f"the kafka sink's topic={self._topic!r} is no name of a topic.")
        self._key = _expression(options.pop("key", None), "key")
        self._value = _expression(options.pop("value", None), "value")
        self._headers = _headers(options.pop("headers", None))
        self._exactly_once = options.pop("exactly_once", True)
        if not isinstance(self._exactly_once, bool):
            raise SinkError(
                f"the kafka sink's exactly_once={self._exactly_once!r}: it is True or False."
            )
        self._writers = _writers(options.pop("writers", None))
        if self._writers is not None and not self._exactly_once:
            raise SinkError("writers= is of no use with exactly_once=False: every task writes.")
        self._client = _client(options)
        self.target = ("topic", f"{self._topic} of {self._servers}")
        self._store: Store | None = None
        self._query = ""
        self._run = ""
        self._markers = ""
        self._columns: list[Column] = []
        """Key, value and headers, as bytes."""
        given = (self._key, self._value, *self._headers.values())
        self._has_expressions = any(isinstance(each, Column) for each in given)
        """Whether a user's own may depend on when they are planned."""
        self._template: tuple[Any, PlanTemplate] | None = None
        """The session that batches come from, and the plan of their records."""
        self._transactions: Any = None

    def locate(self, store: Store) -> None:
        self._store = store

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        if not has_client(spark):
            raise SinkError(f"the session has no client for Kafka. {SESSION_ADVICE}")
        self._prepare_columns(spark, schema)
        package = jvm.load_kafka(spark)
        try:
            if package.KafkaTopics.partitions(self._admin(), self._topic) == 0:
                raise SinkError(
                    f"the topic {self._topic!r} does not exist on {self._servers}. Create it, with "
                    "the partitions and replicas that you want, and start the query again."
                )
            if self._exactly_once:
                self._transactions = package.KafkaTransactions
                self._query, self._run = query, clock.fresh_id()
                self._open_markers(package, spark.sparkContext.defaultParallelism)
        except SinkError:
            raise
        except Exception as error:
            raise SinkError(
                f"Kafka at {self._servers} cannot be asked for the topic {self._topic!r}: "
                f"{reason(error)}. Check servers=, the network, and credentials if it wants any."
            ) from error

    def _open_markers(self, package: Any, default_writers: int) -> None:
        assert self._store is not None
        self._markers = f"{self._topic}-markers-{self._query[:16]}"
        if len(self._markers) > LONGEST_TOPIC:
            raise SinkError(
                f"the topic's name {self._topic!r} is too long: that of its markers, "
                f"{self._markers!r}, would pass Kafka's limit of {LONGEST_TOPIC}."
            )
        note = f"{SINKS}/kafka-{self._markers}.json"
        noted = self._store.size(note) is not None
        wanted = self._writers or min(default_writers, DEFAULT_WRITERS)
        there = package.KafkaTopics.partitions(self._admin(), self._markers)
        if there == 0 and noted:
            raise SinkError(
                f"the topic {self._markers!r} on {self._servers} is gone. It has the markers of "
                f"the batches that this query has written to {self._topic!r}; without them a batch "
                "could be written twice. Restore it, or, if the last batch may be there twice, "
                f"delete {note} in {self._store.url} and start the query again."
            )
        if there == 0:
            package.KafkaTopics.createCompacted(self._admin(), self._markers, wanted)
            there = package.KafkaTopics.partitions(self._admin(), self._markers)
        if self._writers is not None and there != self._writers:
            raise SinkError(
                f"the kafka sink of topic {self._topic!r} has {there} writers since its first "
                f"start, not writers={self._writers}: a batch that is half written could not be "
                "completed by another number. Leave writers= out, or keep it."
            )
        self._writers = there
        if not noted:
            described = {"kind": "kafka", "servers": self._servers, "topic": self._topic}
            # Another driver may have made it just now: the location's fence is between the two.
            with contextlib.suppress(AlreadyExistsError):
                self._store.create(note, json.dumps(described).encode())

    def _prepare_columns(self, spark: SparkSession, schema: T.StructType) -> None:
        everything = F.to_json(F.struct(*[F.col(_quoted(name)) for name in schema.names]))
        given = [
            F.lit(None).cast("binary") if self._key is None else _column(self._key),
            everything if self._value is None else _column(self._value),
            *map(_column, self._headers.values()),
        ]
        try:
            frame = spark.createDataFrame([], schema).select(*given)
            self._columns = [
                _bytes(column, field.dataType).alias(f"c{i}")
                for i, (column, field) in enumerate(zip(given, frame.schema, strict=True))
            ]
        except Exception as error:
            raise SinkError(
                f"the kafka sink cannot make records of the columns {', '.join(schema.names)}: "
                f"{first_line(error)}. Check key=, value= and headers=."
            ) from error

    def _admin(self) -> dict[str, str]:
        own = {k: v for k, v in self._client.items() if not k.startswith("transaction.")}
        return {"bootstrap.servers": self._servers, **own}

    def write(self, df: DataFrame, batch_id: int) -> None:
        try:
            if self._exactly_once:
                self._write_once(df, batch_id)
            else:
                self._write_at_least_once(df)
        except Exception as error:
            cause = self._cause(str(error))
            if cause is None:
                raise
            twice = " or written twice" if self._exactly_once else ""
            raise SinkError(
                f"batch {batch_id} could not be written to the topic {self._topic!r} of "
                f"{self._servers}: {cause}. Nothing is lost{twice}: when the cause is gone, start "
                "the query again."
            ) from error

    def _cause(self, text: str) -> str | None:
        """What Kafka said, if it was Kafka, and not a query that is being stopped."""
        if self._exactly_once:
            said = _CAUSE.search(text)
            return None if said is None else said[1]
        if "InterruptException" in text or "InterruptedException" in text:
            return None
        return last_cause(text)

    def _write_once(self, df: DataFrame, batch_id: int) -> None:
        client = {**DEFAULTS, **self._client, "bootstrap.servers": self._servers}
        self._transactions.write(
            self._divided(df),
            client,
            self._topic,
            self._markers,
            self._query,
            self._run,
            batch_id,
            "\n".join(self._headers),
        )

    def _divided(self, df: DataFrame) -> Any:
        """The records of a batch, a partition for each writer; planned once if that may be."""
        if self._has_expressions or not is_bare(df):
            return rows_of(self._divide(df))
        session: Any = df._jdf.sparkSession()
        if self._template is None or not self._template[0].equals(session):
            self._template = session, PlanTemplate(df, self._divide)
        return rows_of(self._template[1].over(df, "", ""))

    def _divide(self, df: DataFrame) -> DataFrame:
        assert self._writers is not None
        # Nothing but the key is sure to be the same, bit by bit, when a row is computed again.
        by = F.col("c1") if self._key is None else F.col("c0")
        writer = F.pmod(F.xxhash64(by), F.lit(self._writers)).cast("int")
        return df.select(*self._columns).repartitionById(self._writers, writer)

    def _write_at_least_once(self, df: DataFrame) -> None:
        records = self._records(df)
        records.write.format("kafka").options(**self._options()).mode("append").save()

    def check_real_time(self) -> None:
        if self._exactly_once:
            raise RealTimeError(
                f"the kafka sink of topic {self._topic!r} writes each batch once, in a transaction "
                "that ends with the batch; a real-time batch that runs again has other rows. Rows "
                "that leave at once are written at least once: give it exactly_once=False, or use "
                "a trigger such as '1 second'."
            )

    def real_time(self, rows: DataFrame) -> RealTimeTarget:
        spark = rows.sparkSession
        jvm.load(spark)
        java: Any = spark._jvm
        options = {"kafka.linger.ms": "0", **self._options()}
        given = java.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
        table = java.org.apache.spark.sql.kafka010.KafkaSourceProvider().getTable(given)
        return RealTimeTarget(self._records(rows), table, options)

    def _options(self) -> dict[str, str]:
        """Those of Spark's connector."""
        options = {CLIENT + name: value for name, value in self._client.items()}
        return options | {"topic": self._topic, f"{CLIENT}bootstrap.servers": self._servers}

    def _records(self, df: DataFrame) -> DataFrame:
        """The columns that Spark's connector takes."""
        key, value, *others = self._columns
        columns = [key.alias("key"), value.alias("value")]
        named = [
            F.struct(F.lit(name).alias("key"), column.alias("value"))
            for name, column in zip(self._headers, others, strict=True)
        ]
        if named:
            columns.append(F.array(*named).alias("headers"))
        return df.select(*columns)


def _bytes(column: Column, kind: T.DataType) -> Column:
    """Text as UTF-8, bytes as they are, numbers and times as Spark's text."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        raise SinkError(f"a {kind.simpleString()} is no text; F.to_json(...) makes it one")
    return column.cast("string").cast("binary")


def _column(given: Expression) -> Column:
    return given if isinstance(given, Column) else F.col(_quoted(given))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(options: dict[str, Any], key: str, meaning: str) -> str:
    value = options.pop(key, None)
    if not isinstance(value, str) or not value.strip():
        raise SinkError(f"the kafka sink needs {key}=: {meaning}.")
    return value.strip()


def _expression(given: object, name: str) -> Expression | None:
    if given is None or isinstance(given, Column) or (isinstance(given, str) and given):
        return given
    raise SinkError(f"the kafka sink's {name}={given!r}: it is a column, or a column's name.")


def _headers(given: object) -> dict[str, Expression]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SinkError(f"the kafka sink's headers={given!r}: it is a dict of name -> column.")
    found: dict[str, Expression] = {}
    for name, value in given.items():
        column = _expression(value, f"headers[{name!r}]")
        if not isinstance(name, str) or not name or "\n" in name or column is None:
            raise SinkError(f"the kafka sink's headers={given!r}: it is a dict of name -> column.")
        found[name] = column
    return found


def _writers(given: object) -> int | None:
    if given is None:
        return None
    if type(given) is not int or not 1 <= given <= MOST_WRITERS:
        raise SinkError(
            f"the kafka sink's writers={given!r}: it is a whole number from 1 to {MOST_WRITERS}."
        )
    return given


def _client(options: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in options.items():
        own = name.removeprefix(CLIENT)
        if own == name:
            raise SinkError(
                f"the kafka sink has no option {name!r}. It has {', '.join(OPTIONS)}; options of "
                f"Kafka's client begin with {CLIENT!r}, as in **{{'kafka.linger.ms': '20'}}."
            )
        if own in OURS:
            raise SinkError(f"the kafka sink sets {name!r} itself. Leave it out.")
        found[own] = str(value)
    return found
