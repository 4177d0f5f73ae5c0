"""The cases of `millrace bench operators` and `bench patterns`: the rows all sides get, and each
case in Flink's SQL.

Row number `p` has a key, an amount and an event time that are arithmetic on 64-bit integers, so
that every engine makes the rows by itself and none has to parse them. `rows` rows are one minute of
event time; each is up to three seconds before its place in the order, so rows are out of order and
none is late for a watermark ten seconds behind.

A case is a query over `events`, with the columns `p`, `k`, `amount` and the event time: `ts` in
Flink, `ms` in DuckDB, which says what must come out. The compared columns are whole numbers and
times, and NULL is -1. Rows whose time is after `limit_ms` are not compared: a side that never ends
has not emitted them yet. `top` has no event time and emits updates: compared is what is left when
all are applied.

Where an engine has several ways, it runs the one that its manual recommends for results of event
time. Flink drops duplicates per window, because its other deduplication is bounded by the wall
clock only, and leaves out the rank of the best rows, because then a new one does not send all below
it again. The joins are of rows with even numbers and rows with odd ones.

The patterns begin at any row, and one match does not keep another from beginning within it: then
window functions can say which matches there are. Of two rows of a key and a millisecond, which come
once in thousands, no engine says which is the first, so rows without such are compared.
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
    final: str | None
    """The column whose time decides whether a row has been emitted.

    None: the case emits updates, and the newest rows of a key are its result.
    """
    flink: str
    duckdb: str
    warm: int = 3
    """Minutes until its state has its usual size."""


GAP_S = 10
"""Between two sessions of a key."""
TICK_MS = 10_000
"""A key passes once in every ten seconds; two rows of one tick are less than the delay apart."""
WITHIN_S = 10
"""A row is joined with those of the other stream that are at most this much earlier."""
BEST = 10

_FLINK_JOIN = f"""
    SELECT l.k AS k, l.p AS p, l.amount AS amount, l.ts AS ts, r.p AS q, r.amount AS price
    FROM (SELECT * FROM events WHERE MOD(p, 2) = 0) AS l
    {{how}} JOIN (SELECT * FROM events WHERE MOD(p, 2) = 1) AS r
    ON l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL '{WITHIN_S}' SECOND AND l.ts
"""
_DUCKDB_JOIN = f"""
    SELECT l.k, l.p, l.ms AS ts, COALESCE(r.p, -1) AS q
    FROM (SELECT * FROM events WHERE p % 2 = 0) AS l
    {{how}} JOIN (SELECT * FROM events WHERE p % 2 = 1) AS r
    ON l.k = r.k AND r.ms BETWEEN l.ms - {WITHIN_S * 1000} AND l.ms
"""

CASES = (
    Case(
        "tumbling",
        ("k", "start", "end", "n", "total"),
        "end",
        """
        SELECT k, window_start AS `start`, window_end AS `end`, COUNT(*) AS n, SUM(amount) AS total
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
        SELECT k, window_start AS `start`, window_end AS `end`, COUNT(*) AS n, SUM(amount) AS total
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
    Case(
        "session",
        ("k", "start", "end", "n", "total"),
        "end",
        f"""
        SELECT k, window_start AS `start`, window_end AS `end`, COUNT(*) AS n, SUM(amount) AS total
        FROM TABLE(
            SESSION(TABLE events PARTITION BY k, DESCRIPTOR(ts), INTERVAL '{GAP_S}' SECOND))
        GROUP BY k, window_start, window_end
        """,
        f"""
        SELECT k, MIN(ms) AS start, MAX(ms) + {GAP_S * 1000} AS end, COUNT(*), SUM(amount)
        FROM (
            SELECT *, SUM(first) OVER (PARTITION BY k ORDER BY ms, p) AS session
            FROM (
                SELECT *, CAST(COALESCE(ms - LAG(ms) OVER (PARTITION BY k ORDER BY ms, p)
                    > {GAP_S * 1000}, true) AS INTEGER) AS first
                FROM events))
        GROUP BY k, session
        """,
    ),
    Case(
        "dedup",
        ("k", "tick"),
        "tick",
        f"""
        SELECT p, k, amount, ts, window_start AS tick
        FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, k ORDER BY ts) AS n
            FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '{TICK_MS // 1000}' SECOND)))
        WHERE n = 1
        """,
        f"SELECT DISTINCT k, ms // {TICK_MS} * {TICK_MS} AS tick FROM events",
    ),
    Case(
        "inner_join",
        ("k", "p", "ts", "q"),
        "ts",
        _FLINK_JOIN.format(how="INNER"),
        _DUCKDB_JOIN.format(how="INNER"),
    ),
    Case(
        "left_join",
        ("k", "p", "ts", "q"),
        "ts",
        _FLINK_JOIN.format(how="LEFT"),
        _DUCKDB_JOIN.format(how="LEFT"),
    ),
    Case(
        "top",
        ("k", "amount", "p"),
        None,
        f"""
        SELECT k, amount, p
        FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY amount DESC, p DESC) AS n
            FROM events)
        WHERE n <= {BEST}
        """,
        f"""
        SELECT k, amount, p FROM events
        QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY amount DESC, p DESC) <= {BEST}
        """,
    ),
)

WITHIN_PATTERN_S = 60
"""How long a match may take."""
LOW, HIGH = 100, 900
"""Amounts are from 0 to 999."""
STREAK = 4

_FLINK_PATTERN = """
    SELECT k, p, q, ts
    FROM events MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts, p
        MEASURES FIRST(A.p) AS p, LAST({last}.p) AS q, LAST({last}.ts) AS ts
        ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
        PATTERN ({pattern}) WITHIN INTERVAL '1' MINUTE
        DEFINE {define})
"""
_DUCKDB_PATTERN = f"""
    SELECT k, p, q, ts FROM (
        SELECT k, p, ms, amount, {{columns}},
            LEAD(p, {{rows}}) OVER rest AS q, LEAD(ms, {{rows}}) OVER rest AS ts
        FROM events WINDOW rest AS (PARTITION BY k ORDER BY ms, p))
    WHERE q IS NOT NULL AND ts - ms < {WITHIN_PATTERN_S * 1000} AND {{condition}}
"""
_LEAD = "LEAD(amount, {n}) OVER rest AS a{n}"


def _pattern(name: str, flink: tuple[str, str, str], rows: int, condition: str) -> Case:
    """A pattern of adjacent rows: what Flink looks for, and what holds of a row and the next."""
    last, pattern, define = flink
    columns = ", ".join(_LEAD.format(n=n) for n in range(1, rows + 1))
    return Case(
        name,
        ("k", "p", "q", "ts"),
        "ts",
        _FLINK_PATTERN.format(last=last, pattern=pattern, define=define),
        _DUCKDB_PATTERN.format(rows=rows, columns=columns, condition=condition),
    )


PATTERNS = (
    _pattern(
        "jump",
        ("B", "A B", f"A AS A.amount < {LOW}, B AS B.amount >= {HIGH}"),
        1,
        f"amount < {LOW} AND a1 >= {HIGH}",
    ),
    _pattern(
        "rising",
        ("C", "A B C", "B AS B.amount > A.amount, C AS C.amount > B.amount"),
        2,
        "a1 > amount AND a2 > a1",
    ),
    _pattern(
        "streak",
        (
            "B",
            f"A{{{STREAK}}} B",
            f"A AS A.amount < 700, B AS B.amount * {STREAK} > SUM(A.amount) * 2",
        ),
        STREAK,
        "amount < 700 AND "
        + " AND ".join(f"a{n} < 700" for n in range(1, STREAK))
        + f" AND a{STREAK} * {STREAK} > (amount + "
        + " + ".join(f"a{n}" for n in range(1, STREAK))
        + ") * 2",
    ),
)
"""On the row alone, on the row before, and on a sum of those before."""

BY_NAME = {case.name: case for case in (*CASES, *PATTERNS)}


def limit_ms(minutes: int) -> int:
    """Up to here, every side has emitted everything once it has taken in this many minutes."""
    return BASE_MS + (minutes - 2) * MINUTE_MS
