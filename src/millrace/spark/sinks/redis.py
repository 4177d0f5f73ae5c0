"""The Redis sink: a hash per key, and a batch is one MULTI/EXEC, which also moves the marker.

The marker is the hash `PREFIX:millrace`. It is watched, so that the transaction does nothing if
another driver has moved it. The commands are sent in chunks: the driver holds few of them, but the
server queues all until EXEC.

A hash has a field per column that is not NULL, as text, and `_batch_id`, the batch that wrote it.

Rough edge: Redis answers before a write is on disk. What a crash of the server loses, it loses
together with the marker, and the next batch is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute as pc

from millrace import hooks
from millrace.errors import SinkError
from millrace.spark.sinks.marked import (
    MarkedSink,
    check_key,
    columns_of,
    require,
    without_password,
)
from millrace.spark.sinks.rows import BatchRows
from millrace.spark.sinks.text import is_nested, json_column

if TYPE_CHECKING:
    import redis

CHUNK = 1000
"""Commands that are sent at once."""

MARKER = "millrace"
STAMP = "_batch_id"
NULL = b"%NULL"

Command = tuple[Any, ...]


class Redis(MarkedSink):
    """Keeps the newest row per key as a hash."""

    kind = "redis"

    def __init__(self, url: str, prefix: str, key: Any = None, accept_gap: bool = False) -> None:
        super().__init__()
        require(self.kind, "redis")
        if key is None:
            raise SinkError("the redis sink needs key=: the columns by which a row is found.")
        self.accept_gap = accept_gap
        self.place = f"the prefix {prefix!r} at {without_password(url)}"
        self.target = ("prefix", f"{prefix} at {without_password(url)}")
        self._url = url
        self._prefix = prefix
        self._key = columns_of(self.kind, "key", key)
        self._marker = f"{prefix}:{MARKER}"

    def _errors(self) -> tuple[type[Exception], ...]:
        import redis

        return (redis.RedisError, ValueError)

    def _connect(self) -> redis.Redis:
        import redis

        return redis.Redis.from_url(self._url, socket_connect_timeout=10)

    def _claim(self) -> None:
        check_key(self._key, self._schema)
        if STAMP in self._schema.names:
            raise SinkError(
                f"the output has a column {STAMP!r}, which the redis sink adds. Rename it with "
                "transform()."
            )
        with self._connect() as client:
            if not client.exists(self._marker) and self._finds_rows(client):
                raise self._unmarked(f"the hash {self._marker}")
            client.hsetnx(self._marker, "query", self._query)
            # What a hash is made of must not change from one start to the next.
            client.hsetnx(self._marker, "columns", self._columns())
            found = client.hgetall(self._marker)
        owner, columns = found[b"query"].decode(), found[b"columns"].decode()
        if owner != self._query:
            raise self._belongs_to(owner)
        if columns != self._columns():
            raise self._other_schema([f"it has {columns}, the output {self._columns()}"])

    def _columns(self) -> str:
        fields = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        return f"{fields} by {', '.join(self._key)}"

    def _finds_rows(self, client: Any) -> bool:
        escaped = "".join(f"\\{c}" if c in "*?[]\\^" else c for c in self._prefix)
        return next(client.scan_iter(f"{escaped}:*", count=CHUNK), None) is not None

    def _find_last(self) -> int | None:
        with self._connect() as client:
            return self._last_in(client.hgetall(self._marker))

    def _last_in(self, marker: Any) -> int | None:
        if marker.get(b"query", b"").decode() != self._query:
            raise self._unmarked(f"the hash {self._marker}")
        last = marker.get(b"batch_id")
        return None if last is None else int(last)

    def _commit(self, rows: BatchRows, batch_id: int, last: int | None) -> bool:
        with self._connect() as client:
            pipe = client.pipeline()
            pipe.watch(self._marker)
            if self._last_in(pipe.hgetall(self._marker)) != last:
                return False
            connection = pipe.connection
            _send(connection, [("MULTI",)], b"OK")
            _send(connection, self._commands(rows, batch_id), b"QUEUED")
            _send(connection, [("HSET", self._marker, "batch_id", batch_id)], b"QUEUED")
            hooks.reach(hooks.SINK_WRITTEN, batch_id)
            connection.send_command("EXEC")
            done = connection.read_response()
        # Without an answer, someone has changed the marker, and nothing was done.
        return done is not None

    def _commands(self, rows: BatchRows, batch_id: int) -> Iterator[Command]:
        for batch in rows:
            texts = {name: as_text(batch.column(name)) for name in batch.schema.names}
            for i in range(batch.num_rows):
                name = self.name_of([texts[column][i] for column in self._key])
                fields: list[Any] = [STAMP, batch_id]
                for column, values in texts.items():
                    if values[i] is not None:
                        fields += (column, values[i])
                # Fields that are NULL now must not stay.
                yield ("DEL", name)
                yield ("HSET", name, *fields)

    def name_of(self, key: Iterable[str | bytes | None]) -> bytes:
        """The name of a key's hash: its parts, escaped so that no two keys share a name."""
        return b":".join([self._prefix.encode(), b"key", *map(_escaped, key)])


def _escaped(part: str | bytes | None) -> bytes:
    if part is None:
        return NULL
    raw = part.encode() if isinstance(part, str) else part
    return raw.replace(b"%", b"%25").replace(b":", b"%3A")


def _send(connection: Any, commands: Iterable[Command], answer: bytes) -> None:
    """Send commands in chunks; each must be answered as expected."""
    from redis import RedisError

    waiting = iter(commands)
    while chunk := list(islice(waiting, CHUNK)):
        connection.send_packed_command(connection.pack_commands(chunk))
        for command in chunk:
            found = connection.read_response()
            if found != answer:
                raise RedisError(f"{command[0]} was answered by {found!r}, not {answer!r}")


def as_text(column: pa.Array) -> list[Any]:
    """Values as Redis keeps them: text, or the bytes of a binary column."""
    kind = column.type
    if is_nested(kind):
        return list(json_column(column).to_pylist())
    if pa.types.is_binary(kind):
        return list(column.to_pylist())
    if pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    if pa.types.is_null(kind):
        return [None] * len(column)
    return list(pc.cast(column, pa.string()).to_pylist())
