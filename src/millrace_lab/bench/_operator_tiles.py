"""Look-ups of windows of three lengths over HTTP: one question for all three, newest window each.

The state is written at once, without a stream. Most keys were active in some minutes of the day, a
few in all of them: their look-up of a day reads 1440 panes, and is timed by itself. Every answer is
compared with the sum it must be.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import BoolArray, Int64Array
from millrace.ids import OperatorName
from millrace.interchange.writing import OperatorState, Reached, StateWriter
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.operators.window.emission import NONE, Emission
from millrace.operators.window.fingerprints import at_times
from millrace.operators.window.layout import PANE
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import in_words, tiles_of
from millrace.operators.window.spec import WindowDefinition
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._foreign.engines.cases import BASE_MS, MINUTE_MS
from millrace_lab.bench.serve import WARM, answered, server

NAME = OperatorName("tiles")
MINUTE_US = MINUTE_MS * 1000
MINUTES = (5, 60, 1440)
DAY = MINUTES[-1]
TILES = tiles_of([minutes * MINUTE_US for minutes in MINUTES], MINUTE_US)
START_US = BASE_MS * 1000
END_US = START_US + DAY * MINUTE_US


@dataclass(frozen=True)
class TileOptions:
    """Sizes of the state and of the load."""

    keys: int = 20_000
    active: int = 60
    """Minutes of a day in which a key was active, on average."""
    dense: int = 200
    """The first keys were active in every minute."""
    seconds: float = 8.0

    def quick(self) -> TileOptions:
        return replace(self, keys=min(self.keys, 2_000), dense=20, seconds=min(self.seconds, 2.0))


def measure_tiles(options: TileOptions, workdir: Path, steps: Steps, result: Result) -> None:
    """Write a state, serve it, and ask."""
    location = str(workdir / "tiles")
    steps.step(f"writing windows of {options.keys:,} keys")
    counts = _counts(options)
    _write(location, counts)
    chance = np.random.default_rng(11)
    with server(location) as at:
        for name, most in (("dense", options.dense), ("any", options.keys)):
            steps.step(f"look-ups of three lengths, {name} keys")
            keys = chance.integers(0, most, 1 << 14).tolist()
            times = asyncio.run(_ask(at.http, keys, counts, options.seconds, result))
            p99 = result.figure(f"tiles.http_p99_ms.{name}", float(np.percentile(times, 99)))
            result.figure(f"tiles.http_p50_ms.{name}", float(np.percentile(times, 50)))
            if options.keys >= TileOptions.keys:
                result.at_most(f"tiles.http_p99_ms.{name}", p99, 5)


def _counts(options: TileOptions) -> Int64Array:
    """The count of every key and minute; 0 where a key was not active."""
    chance = np.random.default_rng(3)
    counts = chance.integers(1, 9, (options.keys, DAY))
    active: BoolArray = chance.random(counts.shape) < options.active / DAY
    active[: options.dense] = True
    # Now is after the newest row of all: someone was active in the last minute.
    active[0, -1] = True
    return np.where(active, counts, 0)


def _write(location: str, counts: Int64Array) -> None:
    definition = WindowDefinition(
        (Column("user", T.LongType()),),
        TILES[-1],
        (AggregateSpec("n", "count", "*", T.IntegerType(), ()),),
        Emission(NONE),
        tuple(windows.size_us for windows in TILES),
    )
    users, minutes = np.nonzero(counts)
    panes = START_US + minutes * MINUTE_US
    scheme = Scheme.fresh()
    hi, lo = at_times(*fingerprints([pa.array(users)], scheme), panes)
    content = {
        HI: pa.array(hi),
        LO: pa.array(lo),
        DELETED: pa.array(np.zeros(len(users), np.bool_)),
        "user": pa.array(users),
        PANE: pa.array(panes),
        "n": pa.array(counts[users, minutes]),
    }
    writer = StateWriter(location, 256, 2, scheme)
    spec = WindowOperator(NAME, definition).spec()
    writer.operator(NAME, OperatorState(spec, {"": pa.table(content)}))
    writer.commit(Reached(batch_id=0, watermark_ms=END_US // 1000 - MINUTE_MS))


async def _ask(
    port: int, keys: list[int], counts: Int64Array, seconds: float, result: Result
) -> list[float]:
    """Questions one after the other; their milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lengths = [in_words(windows.size_us) for windows in TILES]
    times: list[float] = []
    until = None
    for number, user in enumerate(keys * 1000):
        if number == WARM:
            until = time.perf_counter() + seconds
            times.clear()
        asked = [{"user": user, "window_length": length} for length in lengths]
        body = json.dumps({"keys": asked}).encode()
        started = time.perf_counter()
        if until is not None and started >= until:
            break
        writer.write(
            b"POST /v1/tiles/lookup HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = await answered(reader)
        times.append((time.perf_counter() - started) * 1000)
        found = [row["n"] if row else 0 for row in answer["rows"]]
        wanted = [int(counts[user, DAY - minutes :].sum()) for minutes in MINUTES]
        result.compare(f"user {user} has {found} instead of {wanted}", found == wanted)
    writer.close()
    return times
