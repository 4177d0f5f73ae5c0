"""The location that is mutated: small, with every kind of file and of state, and its rows.

The program writes it, so it has whatever format that has. The rows of every epoch are the oracle.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.ids import Epoch
from millrace.log import Journal, open_store
from millrace.log.leases import Lease
from millrace.log.manifest import seal
from millrace.log.store import LocalStore
from millrace.reading import results
from millrace.reading.reader import Reader
from millrace.reading.results import ViewResult
from millrace.reconfigure.requests import Answer, Requests
from millrace.testing import Harness

EPOCHS = 6
VIEW = "top"
QUERY = "select count(*) as n from tested"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)

TWICE = "a row is there twice"
BEYOND_PYTHON = "a value that Python has not"
Rows = frozenset[str]
"""Rows of a table, each as text."""


class _Visits(mr.Processor):
    """Something of every kind of state."""

    total = mr.Value("long")
    note = mr.Value("struct<page:string,marks:array<double>>")
    pages = mr.Map("string", "decimal(10,2)")
    last = mr.List("timestamp")
    seen = mr.Set("string")
    quiet = mr.EventTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.total.set((self.total.get() or 0) + 1)
            self.note.set({"page": row.page, "marks": [1.0, None]})
            self.pages[row.page] = row.price
            self.last.append(row.at)
            self.seen.add(row.page)
            self.quiet.set(row.at + dt.timedelta(minutes=30))
        yield (key.user, self.total.get())

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.total.clear()
        yield (key.user, 0)


@dataclass(frozen=True)
class Corpus:
    """A pristine location, and what its tables hold."""

    root: Path
    shown: dict[int, dict[str, Rows]]
    """Epoch -> table in SQL -> its rows."""

    @property
    def tables(self) -> list[str]:
        return sorted(self.shown[EPOCHS])

    def ever(self, table: str) -> Rows:
        """The rows that a table had at some epoch."""
        return frozenset().union(*(tables.get(table, ()) for tables in self.shown.values()))

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.root, to)
        return to


def make(root: Path) -> Corpus:
    """Write the corpus to a folder that does not exist yet."""
    harness = Harness(
        _Visits(),
        key="user",
        schema="user string, page string, price decimal(10,2), at timestamp",
        output="user string, visits long",
        event_time="at",
        shards=2,
    )
    for epoch in range(EPOCHS - 1):
        harness.send(_rows(epoch))
    harness.advance_watermark(NOON + dt.timedelta(minutes=33))
    source, target = open_store(harness.location), LocalStore(str(root))
    for path in source.list(""):
        target.put(path, source.read(path))
    _add_others(target)
    return Corpus(root, {epoch: dict(shown(str(root), epoch)) for epoch in range(1, EPOCHS + 1)})


def _rows(epoch: int) -> list[dict[str, Any]]:
    return [
        {
            "user": f"user-{n % 40}",
            "page": f"/{n % 3}",
            "price": None if n % 7 == 0 else n,
            "at": NOON + dt.timedelta(minutes=epoch, seconds=n),
        }
        for n in range(10 * epoch, 60)
    ]


def _add_others(store: LocalStore) -> None:
    """Files of a query that ran on Spark."""
    requests = Requests(store)
    done = requests.submit("rescale", parallelism=2, strategy="live", operator=None)
    report = {
        "seconds": 1.5,
        "key_groups": 8,
        "bytes": 1000,
        "epochs": 2,
        "first_epoch": 2,
        "last_epoch": 3,
        "shards": {"tested": [1, 2]},
    }
    requests.answer(done.id, Answer("done", "", report))
    requests.submit("drain", executor="executor-1", strategy="live", operator=None)
    store.create(Lease(Epoch(3), False, 4_000_000_000_000, "a" * 32).path, seal({"format": 1})[0])
    with mr.open(store.url) as reader:
        epoch, rows = reader.sql_at(QUERY, reader.epoch)
    results.write(store, ViewResult(VIEW, epoch, QUERY, rows))
    store.put("spark/metadata", b'{"id":"7c1ef8d1-9f0c-4a5c-9a5e-2a4dbe6f0b7e"}')
    for batch in range(EPOCHS):
        times = b'{"batchWatermarkMs":0,"batchTimestampMs":1704110400000,"conf":{}}'
        store.put(f"spark/offsets/{batch}", b'v1\n%s\n{"logOffset":%d}' % (times, batch))
        store.put(f"spark/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        store.put(f"spark/sources/0/{batch}", b'v1\n{"path":"/in/%d"}' % batch)


def shown(location: str, epoch: int) -> Iterator[tuple[str, Rows]]:
    """The rows of every table at an epoch, by its name in SQL."""
    with mr.open(location, epoch=epoch) as reader:
        yield from shown_by(reader)
        yield from shown_by_sql(reader)


def shown_by(reader: Reader) -> Iterator[tuple[str, Rows]]:
    """All rows as Arrow."""
    for operator in reader.operators:
        for state in ("", *reader.tables(operator)):
            yield f"{operator}.{state}", _listed(reader.to_arrow(operator, state=state or None))


def shown_by_sql(reader: Reader) -> Iterator[tuple[str, Rows]]:
    """All rows by way of DuckDB, which takes longer."""
    for row in reader.sql("from millrace_tables").to_pylist():
        yield f"sql {row['name']}", _listed(reader.sql(f"from {row['name']}"))


def _listed(table: pa.Table) -> Rows:
    try:
        texts = [repr(sorted(row.items())) for row in table.to_pylist()]
    except (OverflowError, ValueError):
        # Spark has times that Python lacks, and text that is no UTF-8.
        return frozenset([BEYOND_PYTHON])
    return frozenset(texts if len(set(texts)) == len(texts) else [*texts, TWICE])


def journal_of(location: Path) -> Journal:
    return Journal.open(open_store(str(location)))
