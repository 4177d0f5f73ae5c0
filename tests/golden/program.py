"""The query whose locations are kept, one per format version, and what its state must be.

Do not change what is here: add another program beside it when a format can do more.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millrace as mr

FOLDER = Path(__file__).parent
SCHEMA = "user string, page string, seconds double, at timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Visits(mr.Processor):
    """A state of every kind that has a table or a column of its own."""

    count = mr.Value("long", default=0)
    longest = mr.Reducing("double", max)
    pages = mr.Map("string", "long")
    users = mr.Set("string")
    recent = mr.List("struct<page:string,at:timestamp>")
    short = mr.Value("string", ttl="36500 days")
    anything = mr.Pickled()
    idle = mr.EventTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[str | None, float]]:
        self.count.set(self.count.get() + len(rows))
        for row in rows:
            if row.page is not None:
                self.pages[row.page] = self.pages.get(row.page, 0) + 1
            self.recent.append({"page": row.page, "at": row.at})
            self.longest.add(row.seconds)
            yield row.page, row.seconds
        self.users.add(str(key.user))
        self.short.set(f"{key.user} {self.count.get()}")
        self.anything.set({"count": self.count.get()})
        self.idle.set(ctx.event_time + mr.minutes(60 * 24 * 10_000))

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> None:
        raise AssertionError("the timers are decades away")


def stream(spark: SparkSession, inbox: Path) -> mr.Stream:
    events = spark.readStream.schema(SCHEMA).json(str(inbox))
    return (
        mr.stream(events, event_time="at", watermark="10 minutes")
        .key_by("user")
        .process(Visits(), "page string, seconds double", name="visits")
        .key_by("page")
        .aggregate(n=mr.count(), total=mr.sum("seconds"), longest=mr.max("seconds"), name="pages")
    )


def rows(batch: int) -> list[dict[str, Any]]:
    """The input of a batch: users come and go, a NULL in both keys."""
    return [
        {
            "user": None if n % 17 == 0 else f"user-{n % 23}",
            "page": None if n % 13 == 0 else f"/{n % 7}",
            "seconds": n % 40 / 2,
            "at": (START + dt.timedelta(minutes=n)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        for n in range(batch * 30, batch * 30 + 30)
    ]


def drop(inbox: Path, batch: int) -> None:
    """Put a batch where the stream finds it, at once."""
    inbox.mkdir(parents=True, exist_ok=True)
    draft = inbox / f".{batch}"
    draft.write_text("\n".join(map(json.dumps, rows(batch))))
    draft.rename(inbox / f"{batch:04d}.json")


def check(reader: mr.Reader, batches: int) -> None:
    """The state is what `batches` batches make."""
    seen = [row for batch in range(batches) for row in rows(batch)]
    users: dict[str | None, list[dict[str, Any]]] = {}
    pages: dict[str | None, list[float]] = {}
    for row in seen:
        users.setdefault(row["user"], []).append(row)
        pages.setdefault(row["page"], []).append(row["seconds"])
    found = {row["user"]: row for row in reader.to_arrow("visits").to_pylist()}
    assert {user: (row["count"], row["longest"], row["short"]) for user, row in found.items()} == {
        user: (len(mine), max(row["seconds"] for row in mine), f"{user} {len(mine)}")
        for user, mine in users.items()
    }
    entries = reader.to_arrow("visits", state="pages").to_pylist()
    counted: dict[tuple[str | None, str], int] = {}
    for row in seen:
        if row["page"] is not None:
            at = row["user"], row["page"]
            counted[at] = counted.get(at, 0) + 1
    assert {(e["user"], e["key"]): e["value"] for e in entries} == counted
    recent = reader.to_arrow("visits", state="recent").to_pylist()
    assert sorted((str(e["user"]), e["position"], e["value"]["page"]) for e in recent) == sorted(
        (str(user), position, row["page"])
        for user, mine in users.items()
        for position, row in enumerate(mine)
    )
    assert len(reader.to_arrow("visits", state="users")) == len(users)
    assert len(reader.to_arrow("visits", state="timers")) == len(users)
    totals = {
        r["page"]: (r["n"], r["total"], r["longest"]) for r in reader.to_arrow("pages").to_pylist()
    }
    assert totals == {page: (len(s), sum(s), max(s)) for page, s in pages.items()}
