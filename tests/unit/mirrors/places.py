"""Stores to mirror into, and what is in them as their own clients see it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Protocol

from millrace.mirrors.contract import Mark
from millrace.mirrors.rocksdb import MARK, RocksDbTarget

Rows = dict[tuple[Any, ...], dict[str, Any]]
"""Key -> the other columns."""


class Place(Protocol):
    """A store for mirrors of one test."""

    kind: str
    url: str

    def rows(self, name: str = "totals") -> Rows: ...

    def epoch(self, name: str = "totals") -> int: ...

    def forge(self, mark: Mark, name: str = "totals") -> None:
        """Change by hand what the mirror says it shows."""

    def intrude(self, name: str = "totals") -> None:
        """Put something else where a mirror goes."""


class RocksDbPlace:
    """A folder."""

    kind = "rocksdb"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rocks"
        self.url = f"rocksdb:{self.path}"

    def rows(self, name: str = "totals") -> Rows:
        with contextlib.closing(RocksDbTarget(self.url, name, read_only=True)) as target:
            return decoded(target.rows())

    def epoch(self, name: str = "totals") -> int:
        with contextlib.closing(RocksDbTarget(self.url, name, read_only=True)) as target:
            mark = target.mark()
        return 0 if mark is None else mark.epoch

    def forge(self, mark: Mark, name: str = "totals") -> None:
        with contextlib.closing(RocksDbTarget(self.url, name)) as target:
            body = json.loads(target._writable[MARK])
            target._writable[MARK] = json.dumps(
                {**body, "mark": json.loads(mark.to_json())}
            ).encode()

    def intrude(self, name: str = "totals") -> None:
        with contextlib.closing(RocksDbTarget(self.url, name)) as target:
            target._writable[b"mine"] = b"1"


class RedisPlace:
    """A database of a Redis server."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        import redis

        self.url = url
        self.client: Any = redis.Redis.from_url(url)
        self.client.flushall()

    def rows(self, name: str = "totals") -> Rows:
        return decoded(self.client.hgetall(f"millrace:{{{name}}}"))

    def epoch(self, name: str = "totals") -> int:
        return int(self.client.hget(f"millrace:{{{name}}}:mirror", "epoch") or 0)

    def forge(self, mark: Mark, name: str = "totals") -> None:
        self.client.hset(f"millrace:{{{name}}}:mirror", "mark", mark.to_json())

    def intrude(self, name: str = "totals") -> None:
        self.client.hset(f"millrace:{{{name}}}", "mine", "1")


class PostgresPlace:
    """A database of a PostgreSQL server."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)

    def rows(self, name: str = "totals") -> Rows:
        cursor = self.connection.execute(f'SELECT * FROM "{name}"')  # type: ignore[arg-type]
        names = [column.name for column in cursor.description or ()]
        asked = "SELECT mark FROM millrace_mirrors WHERE name = %s"
        (mark,) = self.connection.execute(asked, [name]).fetchone() or ("",)
        shown = Mark.from_json(mark, "the test")
        keys = [column for column, _ in shown.columns[: shown.keys]]
        found = {}
        for row in cursor.fetchall():
            values = dict(zip(names, row, strict=True))
            del values["_millrace_key"]
            found[tuple(values.pop(key) for key in keys)] = values
        return found

    def epoch(self, name: str = "totals") -> int:
        if not self.connection.execute("SELECT to_regclass('millrace_mirrors')").fetchone()[0]:  # type: ignore[index]
            return 0
        asked = "SELECT epoch FROM millrace_mirrors WHERE name = %s"
        found = self.connection.execute(asked, [name]).fetchone()
        return 0 if found is None else int(found[0])

    def forge(self, mark: Mark, name: str = "totals") -> None:
        changed = "UPDATE millrace_mirrors SET mark = %s WHERE name = %s"
        self.connection.execute(changed, [mark.to_json(), name])

    def intrude(self, name: str = "totals") -> None:
        self.connection.execute(f'CREATE TABLE "{name}" (mine int)')  # type: ignore[arg-type]


def decoded(raw: dict[bytes, bytes]) -> Rows:
    return {tuple(map(_hashable, json.loads(key))): json.loads(row) for key, row in raw.items()}


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
