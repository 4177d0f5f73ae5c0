"""Redis, a real server on loopback, with pipelines of many commands.

A value is a string, a list a list, a map a hash, and a nested state a string of JSON. A checkpoint
is the server's dump of everything (`SAVE`). Parts are the server's other databases, into which it
copies by itself: nothing crosses the connection but the names.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis

from millrace.arrays import Int64Array
from millrace_lab.bench._backends import AT_ONCE, ENTRIES, LIVE, MERGED, RESTORED, chunks
from millrace_lab.bench._backends.held import high, nested
from millrace_lab.servers.redis import redis as server

DUMP = "dump.rdb"
MERGED_NUMBER = 15


class Store:
    """`redis`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._running = contextlib.ExitStack()
        self._url = self._start("state")
        self._clients = {LIVE: _client(self._url)}
        self._parts = 0

    def _start(self, name: str, dump: Path | None = None) -> str:
        folder = self._folder / name
        folder.mkdir()
        if dump is not None:
            shutil.copy(dump, folder / DUMP)
        return self._running.enter_context(server(folder))

    @property
    def _state(self) -> redis.Redis:
        return self._clients[LIVE]

    def fill(self, keys: Int64Array) -> None:
        for chunk in chunks(keys):
            if self._kind == "value":
                self._state.mset({_name(key): key for key in chunk})
            elif self._kind == "nested":
                self._state.mset({_name(key): json.dumps(nested(key)) for key in chunk})
            else:
                self._pipelined(chunk, self._made)

    def _made(self, pipe: Any, key: int) -> None:
        if self._kind == "list":
            pipe.rpush(_name(key), *range(key, key + ENTRIES))
        else:
            pipe.hset(_name(key), mapping=dict.fromkeys(range(ENTRIES), key))

    def update(self, keys: Int64Array) -> None:
        for chunk in chunks(keys):
            if self._kind == "list":
                self._pipelined(chunk, lambda pipe, key: pipe.rpush(_name(key), 1))
            elif self._kind == "map":
                self._pipelined(chunk, lambda pipe, key: pipe.hincrby(_name(key), "0", 1))
            else:
                names = [_name(key) for key in chunk]
                changed = map(self._changed, self._state.mget(names))
                self._state.mset(dict(zip(names, changed, strict=True)))

    def _changed(self, old: Any) -> int | str:
        if self._kind == "value":
            return int(old) + 1
        return json.dumps(nested(high(json.loads(old)) + 1))

    def read(self, keys: Int64Array) -> int:
        total = 0
        for chunk in chunks(keys):
            if self._kind == "list":
                found = self._pipelined(chunk, lambda pipe, key: pipe.lindex(_name(key), -1))
            elif self._kind == "map":
                found = self._pipelined(chunk, lambda pipe, key: pipe.hget(_name(key), "1"))
            else:
                found = self._state.mget([_name(key) for key in chunk])
            total += sum(map(self._seen, found))
        return total

    def _seen(self, value: Any) -> int:
        return high(json.loads(value)) if self._kind == "nested" else int(value)

    def scan(self) -> int:
        total = 0
        for names in _names(self._state):
            total += int(self._totals(self._state, names).sum())
        return total

    def checkpoint(self) -> int:
        self._state.save()
        return (self._folder / "state" / DUMP).stat().st_size

    def restore(self) -> None:
        dump = self._folder / "state" / DUMP
        self._clients[RESTORED] = _client(self._start(RESTORED, dump))

    def repartition(self, parts: int) -> None:
        self._parts = parts
        for names in _names(self._state):
            with self._state.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.copy(name, name, destination_db=str(1 + int(name) % parts))
                pipe.execute()

    def merge(self) -> None:
        for part in range(self._parts):
            client = _client(self._url, 1 + part)
            for names in _names(client):
                with client.pipeline(transaction=False) as pipe:
                    for name in names:
                        pipe.copy(name, name, destination_db=str(MERGED_NUMBER))
                    pipe.execute()
        self._clients[MERGED] = _client(self._url, MERGED_NUMBER)

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        parts = [self._totals(self._clients[state], [_name(k) for k in c]) for c in chunks(keys)]
        return np.concatenate(parts)

    def _totals(self, client: redis.Redis, names: list[Any]) -> Int64Array:
        if self._kind in ("value", "nested"):
            totals: Iterator[int] = map(self._seen, client.mget(names))
        else:
            ask = "lrange" if self._kind == "list" else "hvals"
            bounds = (0, -1) if self._kind == "list" else ()
            with client.pipeline(transaction=False) as pipe:
                for name in names:
                    getattr(pipe, ask)(name, *bounds)
                totals = (sum(map(int, found)) for found in pipe.execute())
        return np.fromiter(totals, np.int64, len(names))

    def _pipelined(self, keys: list[int], command: Callable[[Any, int], object]) -> list[Any]:
        with self._state.pipeline(transaction=False) as pipe:
            for key in keys:
                command(pipe, key)
            answers: list[Any] = pipe.execute()
        return answers

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._running.close()


def _name(key: int) -> str:
    return str(key)


def _names(client: redis.Redis) -> Iterator[list[Any]]:
    """All names of a database; some may come twice while it grows, and none does."""
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, count=AT_ONCE)
        if names:
            yield names
        if cursor == 0:
            return


def _client(url: str, database: int = 0) -> redis.Redis:
    """A client of a server that has read its dump."""
    client = redis.Redis.from_url(url, db=database)
    while True:
        with contextlib.suppress(redis.BusyLoadingError):
            client.ping()
            return client
