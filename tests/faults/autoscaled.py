"""A query on real executors that is scaled by itself while its load steps up and down.

python -m tests.faults.autoscaled LOCATION OUTPUT MASTER [kill]

A row takes a shard two milliseconds, asleep, on whatever machine. So how many shards a load needs
is known. With `kill`, an executor is killed at the height of the load.

Prints one line of JSON: what was decided, and whether state and output equal what plain Python
makes of the same input.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.faults.moving import EXECUTORS, executor_pids, session
from tests.waiting import until

import millrace as mr
from millrace.ui import open_page
from millrace_lab import processes

SECONDS_PER_ROW = 0.002
LOW, HIGH = 20, 900
"""Rows per second: 4 % of a shard, however busy the machine is with others, and 180 %."""
KEYS = 211
ROWS_PER_FILE = 40
FILES_PER_EPOCH = 100
"""What piles up must not make ever longer epochs while the query cannot keep up."""
MOST_UNREAD = 2 * FILES_PER_EPOCH
"""Files. However slow the machine, what has piled up is soon worked off."""


def rows_of(spark: SparkSession, inbox: Path) -> DataFrame:
    """The stream of what a producer writes."""
    source = spark.readStream.schema("k long, value long")
    return source.option("maxFilesPerTrigger", FILES_PER_EPOCH).json(str(inbox))


class Summed(mr.Processor):
    n = mr.Value("long", default=0)
    total = mr.Value("long", default=0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[int, int, int, int]]:
        time.sleep(SECONDS_PER_ROW * len(rows))
        for row in rows:
            self.n.set(self.n.get() + 1)
            self.total.set(self.total.get() + row.value)
            yield (key.k, row.value, self.n.get(), self.total.get())


class Producer:
    """Writes files at a number of rows a second, until it is closed, unless too many are unread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rate = LOW
        self.written = 0
        self._read: Callable[[], int] = lambda: self.written
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        folder.mkdir()
        (folder.parent / "unfinished").mkdir()
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._closed.wait(ROWS_PER_FILE / self.rate):
            if self.written - self._read() > MOST_UNREAD * ROWS_PER_FILE:
                continue
            values = range(self.written, self.written + ROWS_PER_FILE)
            lines = [json.dumps({"k": value % KEYS, "value": value}) for value in values]
            unfinished = self._folder.parent / "unfinished" / f"{number}.json"
            unfinished.write_text("\n".join(lines))
            unfinished.rename(self._folder / f"{number}.json")
            self.written += ROWS_PER_FILE
            number += 1

    def follow(self, query: mr.Query) -> None:
        """Look at how many rows a query has read from now on."""
        rows = "select coalesce(sum(n), 0) as n from summed"
        self._read = lambda: query.sql(rows).to_pylist()[0]["n"] if query.epoch else 0

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def compared(location: str, output: str, written: int) -> dict[str, Any]:
    """State and output, against what they should be."""
    values: dict[int, list[int]] = {}
    for value in range(written):
        values.setdefault(value % KEYS, []).append(value)
    table = mr.open(location).to_arrow("summed").to_pydict()
    found = dict(zip(table["k"], zip(table["n"], table["total"], strict=True), strict=True))
    rows = sorted(
        (row["k"], row["n"], row["value"], row["total"])
        for row in pq.read_table(output).to_pylist()
    )
    running: dict[int, tuple[int, int]] = {}
    in_steps = True
    for k, n, value, total in rows:
        before = running.get(k, (0, 0))
        in_steps &= (n, total) == (before[0] + 1, before[1] + value)
        running[k] = (n, total)
    return {
        "rows": written,
        "state_equal": found == {k: (len(mine), sum(mine)) for k, mine in values.items()},
        "outputs_equal": in_steps and sorted(row[2] for row in rows) == list(range(written)),
    }


def main() -> None:
    location, output, master, *kill = sys.argv[1:]
    spark = session(master)
    producer = Producer(Path(output).parent / "inbox")
    inbox = Path(output).parent / "inbox"
    query = (
        mr.stream(rows_of(spark, inbox))
        .key_by("k")
        .process(Summed(), "k long, value long, n long, total long", name="summed")
        .to("parquet", path=output)
        .start(
            location,
            key_groups=32,
            autoscale=mr.autoscale(
                min=1, max=EXECUTORS, target=0.7, cool_down="1 second", settle="4 seconds"
            ),
        )
    )
    producer.follow(query)
    shards: list[int] = []
    more: dict[str, Any] = {}

    def reached(number: int) -> bool:
        assert query.is_active, query.exception()
        return query.assignment()["summed"].shards == number

    def placed() -> tuple[str, ...]:
        assert query.is_active, query.exception()
        return query.assignment()["summed"].executors

    try:
        until(lambda: query.epoch >= 3 and query.scaling().seen is not None, "some epochs")
        shards.append(query.assignment()["summed"].shards)
        producer.rate = HIGH
        until(lambda: reached(EXECUTORS), "more shards")
        shards.append(EXECUTORS)
        if kill:
            victim, pid = next(iter(executor_pids(spark.sparkContext.applicationId).items()))
            processes.send([pid], signal.SIGKILL)
            # Its shards stay assigned to it until an epoch begins without it.
            until(lambda: victim not in placed(), "what the lost executor had on others")
            until(lambda: reached(EXECUTORS), "as many shards as before")
            more["killed"] = victim
        producer.rate = LOW
        until(lambda: reached(1), "one shard again")
        shards.append(1)
        # In one process there is one executor all the time.
        until(lambda: len(query.executors()) == 1, "executors given back")
    finally:
        producer.close()
    query.process_all_available()
    scaling = query.scaling()
    query.stop()
    with open_page(location) as page:
        page.watch.refresh()
        marks = [mark.to_json() for mark in page.watch.marks()]
    report = {
        "shards": shards,
        "decisions": [decision.to_json() for decision in scaling.decisions],
        "explained": str(scaling),
        "marks": [mark for mark in marks if mark["kind"] == "rescale"],
        **more,
        **compared(location, output, producer.written),
    }
    print("RESULT " + json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
