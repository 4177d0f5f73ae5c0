"""What sinks with a marker write to: how a test makes one, reads it, and deletes its marker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.stress import few

from millrace.spark.sinks import MarkedSink, make_sink

SERVERS = {"postgres": "database", "redis": "redis_server"}
"""Kind of sink -> the fixture that has its server."""

KINDS = ("delta append", "delta upsert", "iceberg append", "postgres append", "postgres upsert")
KINDS += ("redis upsert",)

WITHOUT_SERVER = KINDS[:3]


def kinds(*kept: str) -> list[Any]:
    """All kinds; those not kept are only in `make stress`."""
    return few(KINDS, *kept)


class Target:
    """A place of its own for one test, and how a program names it."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self.sink, _, self.mode = kind.partition(" ")
        self.upserts = self.mode == "upsert"
        fixture = SERVERS.get(self.sink)
        self._server = "" if fixture is None else str(request.getfixturevalue(fixture))
        self._folder = folder
        self._prefix = uuid.uuid4().hex

    def options(self, key: Sequence[str]) -> dict[str, Any]:
        """The options of `.to(...)`."""
        keyed = {"mode": "upsert", "key": list(key)} if self.upserts else {}
        if self.sink == "delta":
            return {"path": str(self._folder / "delta"), **keyed}
        if self.sink == "iceberg":
            return {"table": "shop.totals", "catalog": self.catalog}
        if self.sink == "postgres":
            return {"url": self._server, "table": "totals", **keyed}
        return {"url": self._server, "prefix": self._prefix, "key": list(key)}

    @property
    def catalog(self) -> dict[str, str]:
        uri = f"sqlite:///{self._folder}/catalog.db"
        return {"type": "sql", "uri": uri, "warehouse": f"file://{self._folder}/warehouse"}

    def make(self, key: Sequence[str], **more: Any) -> MarkedSink:
        sink = make_sink(self.sink, {**self.options(key), **more})
        assert isinstance(sink, MarkedSink)
        return sink

    def rows(self) -> list[dict[str, Any]]:
        """What is there, in no order; of Redis, text."""
        found: list[dict[str, Any]] = getattr(self, f"_{self.sink}_rows")()
        return found

    def _delta_rows(self) -> list[dict[str, Any]]:
        return list(self._delta().to_pyarrow_table().to_pylist())

    def _delta(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self._folder / "delta"))

    def _iceberg_rows(self) -> list[dict[str, Any]]:
        return list(self._iceberg().scan().to_arrow().to_pylist())

    def _iceberg(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table("shop.totals")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in PostgreSQL."""
        import psycopg

        with psycopg.connect(self._server) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _postgres_rows(self) -> list[dict[str, Any]]:
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(self._server, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM totals").fetchall()

    def redis(self) -> Any:
        import redis

        return redis.Redis.from_url(self._server)

    def _redis_rows(self) -> list[dict[str, Any]]:
        with self.redis() as client:
            names = client.keys(f"{self._prefix}:key:*")
            hashes = [client.hgetall(name) for name in names]
        return [{k.decode(): v.decode("utf-8", "replace") for k, v in h.items()} for h in hashes]

    def delete_marker(self) -> None:
        """What someone might do by hand."""
        if self.sink == "delta":
            # Delta's transactions cannot be deleted, but the whole log can be rewritten.
            log = self._folder / "delta" / "_delta_log"
            for commit in log.glob("*.json"):
                actions = [json.loads(line) for line in commit.read_text().splitlines()]
                kept = [json.dumps(action) for action in actions if "txn" not in action]
                commit.write_text("\n".join(kept))
        elif self.sink == "iceberg":
            with self._iceberg().transaction() as transaction:
                transaction.remove_properties("millrace-batch-id")
        elif self.sink == "postgres":
            self.execute("DELETE FROM millrace_batches")
        else:
            with self.redis() as client:
                client.delete(f"{self._prefix}:millrace")


MakeTarget = Callable[[str], Target]


class TableRows:
    """Rows for a sink, without Spark."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self._table = table

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches(max_chunksize=2)
