"""A mirror in Redis: one hash with a field per key, and a small one that says what it shows.

    millrace:{NAME}             key -> row, as in `mirrors.encoding`
    millrace:{NAME}:mirror      epoch; mark; rows, how many there are; staging, the hash of a copy

A step is one transaction (MULTI) that is refused if the mark has changed since it was read (WATCH).
A copy fills a hash of its own, and the transaction gives it the mirror's name; so a copy of any
size appears at once. The braces put all of them on one node of a cluster.

The number of rows is compared before each step: Redis may evict keys when its memory is full, and
what is gone would not come back by following. A rough edge: Redis runs a transaction in one go, so
others wait while a large epoch is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.client import Pipeline

from millrace import clock, hooks
from millrace.errors import (
    ForeignMirrorError,
    MirrorHistoryError,
    MirrorMovedError,
    MirrorTargetError,
    MirrorUnreachableError,
    UnsupportedMirrorError,
)
from millrace.mirrors.contract import Mark, MirrorStep, check_mark, pieces
from millrace.mirrors.encoding import keys_of, values_of

EPOCH, MARK, ROWS, STAGING = "epoch", "mark", "rows", "staging"
TOGETHER = 1000
"""Fields of one command."""
TIMEOUT = 30.0
"""Seconds that a connection or an answer may take."""

_COUNT = "return redis.call('HSET', KEYS[2], ARGV[1], redis.call('HLEN', KEYS[1]))"
"""Notes the number of rows, within the transaction that changes it."""


class RedisTarget:
    """A mirror in Redis."""

    def __init__(self, url: str, name: str, *, read_only: bool = False) -> None:
        parts = urlsplit(url)
        self.title = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}{parts.path}"
        self.rows_key = f"millrace:{{{name}}}"
        self.mark_key = f"{self.rows_key}:mirror"
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT
            )
        except ValueError as error:
            raise UnsupportedMirrorError(f"{self.title} is not a Redis URL: {error}") from error

    def mark(self) -> Mark | None:
        with self._explained():
            pipe = self._client.pipeline(transaction=True)
            pipe.hmget(self.mark_key, MARK, ROWS)
            pipe.exists(self.rows_key)
            pipe.hlen(self.rows_key)
            (data, rows), exists, length = pipe.execute()
        if data is None:
            if exists:
                raise ForeignMirrorError(
                    f"{self.title} has a key {self.rows_key!r} that is not a mirror's. Mirror "
                    "under another name (--name), or delete it."
                )
            return None
        mark = Mark.from_json(data, f"{self.title} ({self.mark_key})")
        if int(rows or 0) != length:
            raise MirrorHistoryError(
                f"{self.rows_key!r} in {self.title} has {length} rows, and epoch {mark.epoch} was "
                f"mirrored with {int(rows or 0)}: rows were changed by hand or evicted. Use a "
                "Redis that evicts nothing (maxmemory-policy noeviction), and delete "
                f"{self.mark_key!r} and {self.rows_key!r} to mirror again."
            )
        return mark

    def apply(self, step: MirrorStep) -> None:
        with self._explained():
            staged = self._stage(step) if step.is_copy else None
            pipe = self._client.pipeline(transaction=True)
            try:
                pipe.watch(self.mark_key)
                self._check(pipe, step, staged)
                pipe.multi()
                if staged is None:
                    self._change(pipe, step)
                elif staged[1]:
                    pipe.unlink(self.rows_key)
                    pipe.rename(staged[0], self.rows_key)
                else:
                    pipe.unlink(self.rows_key)
                pipe.hset(
                    self.mark_key,
                    mapping={EPOCH: step.after.epoch, MARK: step.after.to_json()},
                )
                pipe.hdel(self.mark_key, STAGING)
                pipe.eval(_COUNT, 2, self.rows_key, self.mark_key, ROWS)
                hooks.reach(hooks.STAGED_STEP, step.after.epoch)
                pipe.execute()
            except redis.WatchError as error:
                raise MirrorMovedError(
                    f"{self.rows_key!r} in {self.title} was moved by another process. Run one "
                    "mirror for a target; nothing is lost, and the step was not taken."
                ) from error
            finally:
                pipe.reset()

    def _check(self, pipe: Pipeline, step: MirrorStep, staged: tuple[str, int] | None) -> None:
        """What is watched, read again: it may have changed before it was."""
        answer: Any = pipe.hmget(self.mark_key, MARK, STAGING)
        data, staging = answer
        check_mark(self.title, None if data is None else Mark.from_json(data, self.title), step)
        if staged is not None and staging != staged[0].encode():
            raise MirrorMovedError(
                f"another process began to copy into {self.rows_key!r} in {self.title}. Run one "
                "mirror for a target."
            )

    def _stage(self, step: MirrorStep) -> tuple[str, int]:
        """Write a copy beside the rows; its key, and how many rows it has."""
        key = f"{self.rows_key}:{clock.fresh_id()}"
        last = self._client.hget(self.mark_key, STAGING)
        if last is not None:
            # A copy that was killed.
            self._client.unlink(last)
        self._client.hset(self.mark_key, STAGING, key)
        count = 0
        for batch in pieces(step.upserts, TOGETHER):
            values = values_of(batch, step.values)
            fields = dict(zip(keys_of(batch, step.keys), values, strict=True))
            self._client.hset(key, mapping=fields)
            count += len(fields)
            hooks.reach(hooks.STAGED_STEP, step.after.epoch)
        return key, count

    def _change(self, pipe: Pipeline, step: MirrorStep) -> None:
        for batch in pieces(step.deletes, TOGETHER):
            # A key is bytes, which the client takes; its annotations say text alone.
            gone: list[Any] = list(keys_of(batch, step.keys))
            pipe.hdel(self.rows_key, *gone)
        for batch in pieces(step.upserts, TOGETHER):
            values = values_of(batch, step.values)
            fields: dict[Any, Any] = dict(zip(keys_of(batch, step.keys), values, strict=True))
            pipe.hset(self.rows_key, mapping=fields)

    def rows(self) -> dict[bytes, bytes]:
        """All rows."""
        with self._explained():
            found: dict[bytes, bytes] = self._client.hgetall(self.rows_key)
            return found

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except redis.AuthenticationError as error:
            raise MirrorTargetError(
                f"{self.title} refused the user or the password: {error}. Put them in the URL: "
                "redis://USER:PASSWORD@HOST."
            ) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise MirrorUnreachableError(
                f"{self.title} does not answer: {error}. Check the address, and that Redis runs."
            ) from error
        except redis.WatchError:
            raise
        except redis.RedisError as error:
            raise MirrorTargetError(f"{self.title} refused a step: {error}") from error
