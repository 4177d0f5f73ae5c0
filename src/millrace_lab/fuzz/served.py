"""What the listeners serve: a location whose keys have many types, and its rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.log import open_store
from millrace.log.store import LocalStore
from millrace.reading.json_values import rows_to_json
from millrace.testing import Harness

KEYS = ("device", "number", "day", "price", "active", "at", "raw")
STATES = ("total", "note", "pages", "last", "seen")
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


class _Visits(mr.Processor):
    total = mr.Value("long")
    note = mr.Value("struct<page:string,marks:array<double>>")
    pages = mr.Map("string", "decimal(10,2)")
    last = mr.List("timestamp")
    seen = mr.Set("string")

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.total.set((self.total.get() or 0) + 1)
            self.note.set({"page": row.page, "marks": [1.0, float("nan"), None]})
            self.pages[row.page] = row.price
            self.last.append(row.at)
            self.seen.add(row.page)
        yield (self.total.get(),)


@dataclass(frozen=True)
class Served:
    """A location, and what its one operator holds."""

    location: str
    operator: str
    keys: pa.RecordBatch
    """All keys, in the types that the operator has them in."""

    def keys_as_json(self) -> list[dict[str, Any]]:
        return rows_to_json(self.keys)


def make(root: Path) -> Served:
    """Write the location to a folder that does not exist yet."""
    harness = Harness(
        _Visits(),
        key=KEYS,
        schema="device string, number long, day date, price decimal(10,2), active boolean, "
        "at timestamp, raw binary, page string",
        output="total long",
        shards=2,
    )
    for epoch in range(3):
        harness.send([_row(n, epoch) for n in range(24)])
    source, target = open_store(harness.location), LocalStore(str(root))
    for path in source.list(""):
        target.put(path, source.read(path))
    with mr.open(str(root)) as reader:
        (operator,) = reader.operators
        rows = reader.to_arrow(operator).select(list(KEYS)).combine_chunks()
    return Served(str(root), operator, rows.to_batches()[0])


def _row(n: int, epoch: int) -> dict[str, Any]:
    key = {
        "device": ("d-1", "", "ü\N{SNOWMAN}", "x" * 300)[n % 4],
        "number": (0, -1, 2**63 - 1)[n % 3],
        "day": dt.date(2024, 1, 1 + n % 28),
        "price": Decimal(n) / 4,
        "active": n % 2 == 0,
        "at": NOON + dt.timedelta(microseconds=n),
        "raw": bytes([n, 255]),
    }
    if n >= 20:
        # A key may have NULL in any column.
        key[KEYS[n % len(KEYS)]] = None
    return {**key, "page": f"/{epoch}"}


def as_text(row: Any) -> str:
    """A row as something that can be compared and hashed, whatever is in it."""
    return json.dumps(row, sort_keys=True, default=str)
