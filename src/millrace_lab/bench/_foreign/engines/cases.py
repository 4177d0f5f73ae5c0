"""The cases of `millrace bench operators`: the rows all sides get, and each case in Flink's SQL.

Row number `p` has a key, an amount and an event time that are arithmetic on 64-bit integers, so
that every engine makes the rows by itself and none has to parse them. `rows` rows are one minute of
event time; each is up to three seconds before its place in the order, so rows are out of order and
none is late for a watermark ten seconds behind.

A case is a query over `events`, with the columns `p`, `k`, `amount` and the event time: `ts` in
Flink, `ms` in DuckDB, which says what must come out. Its columns are whole numbers and times. Those
that end after `limit_ms` are not compared: a side that never ends has not emitted them yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import AMOUNT_SQL, KEY_SQL

BASE_MS = 1_700_000_040_000
"""The first minute."""
MINUTE_MS = 60_000
JITTER_MS = 3_000
DELAY_S = 10

_PLACE = f"v * CAST({MINUTE_MS} AS BIGINT)"
_ROWS = "CAST({rows} AS BIGINT)"
MS_SQL = (
    f"CAST({BASE_MS} AS BIGINT) - MOD(v * CAST(7919 AS BIGINT), CAST({JITTER_MS} AS BIGINT)) + "
    # Engines disagree about the type of a quotient, but not about that of a whole one.
    f"CAST(({_PLACE} - MOD({_PLACE}, {_ROWS})) / {_ROWS} AS BIGINT)"
)


def columns_sql(rows: int, keys: int) -> dict[str, str]:
    """The columns of `events` over a 64-bit column `v`, the row's number."""
    return {
        "p": "v",
        "k": KEY_SQL.format(keys=keys),
        "amount": AMOUNT_SQL,
        "ms": MS_SQL.format(rows=rows),
    }


@dataclass(frozen=True)
class Case:
    """One operator."""

    name: str
    columns: tuple[str, ...]
    """Of its output; times are in milliseconds."""
    final: str
    """The column whose time decides whether a row has been emitted."""
    flink: str
    duckdb: str
    warm: int = 3
    """Minutes until its state has its usual size."""


CASES = (
    Case(
        "tumbling",
        ("k", "start", "end", "n", "total"),
        "end",
        """
        SELECT k, window_start, window_end, COUNT(*) AS n, SUM(amount) AS total
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
        GROUP BY k, window_start, window_end
        """,
        """
        SELECT k, ms // 60000 * 60000 AS start, start + 60000 AS end, COUNT(*), SUM(amount)
        FROM events GROUP BY ALL
        """,
    ),
    Case(
        "hopping",
        ("k", "start", "end", "n", "total"),
        "end",
        """
        SELECT k, window_start, window_end, COUNT(*) AS n, SUM(amount) AS total
        FROM TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '10' MINUTE))
        GROUP BY k, window_start, window_end
        """,
        """
        SELECT k, start, start + 600000 AS end, COUNT(*), SUM(amount)
        FROM (SELECT *, ms // 60000 * 60000 - UNNEST(RANGE(10)) * 60000 AS start FROM events)
        GROUP BY ALL
        """,
        warm=11,
    ),
)
BY_NAME = {case.name: case for case in CASES}


def limit_ms(minutes: int) -> int:
    """Up to here, every side has emitted everything once it has taken in this many minutes."""
    return BASE_MS + (minutes - 2) * MINUTE_MS
