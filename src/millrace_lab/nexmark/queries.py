"""NEXMark's queries as programs, each beside the same query in DuckDB's SQL.

A program gets the events as a streaming DataFrame. It emits rows, or keeps the answer as state:
aggregates without a window emit each change of it. Queries without state are Spark's own, because
Millrace leaves those to `writeStream`; their programs return a DataFrame.

In DuckDB the events are the views `person`, `auction` and `bid`, each with `event_id` and `ts`.
Where several rows are equally good, such as two highest bids, the later one counts on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.nexmark.generator import AUCTION, BID, PERSON

DELAY = "1 second"
EMITTED, STATE, BOTH, STATELESS = "emitted", "state", "both", "stateless"
Program = Callable[[DataFrame], "mr.Stream | DataFrame"]


@dataclass(frozen=True)
class Query:
    """A query of NEXMark."""

    name: str
    title: str
    answer: str
    """Where it is: in the rows emitted, in the state, in both added up, or it needs no state."""
    program: Program
    columns: tuple[str, ...]
    """Of the answer that are compared."""
    duckdb: str
    ends: str | None = None
    """Of windows: the column with their end."""


def bids(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind") == BID).select("event_id", "ts", "bid.*")


def _timed(df: DataFrame) -> mr.Stream:
    return mr.stream(df, event_time="ts", watermark=DELAY)


EURO = "CAST(0.908 * price AS DECIMAL(24, 3))"


def _q0(events: DataFrame) -> DataFrame:
    return bids(events).select("auction", "bidder", "price", "ts", "extra")


def _q1(events: DataFrame) -> DataFrame:
    return bids(events).selectExpr("auction", "bidder", f"{EURO} AS euro", "ts", "extra")


def _q2(events: DataFrame) -> DataFrame:
    return bids(events).where("auction % 123 = 0").select("auction", "price")


def _q5(events: DataFrame) -> mr.Stream:
    counts = (
        _timed(bids(events))
        .key_by("auction")
        .window("10 seconds", slide="2 seconds")
        .aggregate(n=mr.count(), name="counts")
    )
    # All windows that end at one time are in one tumbling window of the next operator.
    hottest = (
        counts.key_by(F.col("window.end").alias("ends"))
        .window("2 seconds")
        .aggregate(
            most=mr.max("n"), auctions=mr.collect_list(F.struct("auction", "n")), name="hottest"
        )
    )
    return hottest.transform(
        lambda df: (
            df.select("ends", "most", F.explode("auctions").alias("one"))
            .where("one.n = most")
            .select("one.auction", "one.n", "ends")
        )
    )


def _q7(events: DataFrame) -> mr.Stream:
    bid = F.struct("auction", "bidder", "price", "ts")
    order = F.expr("price * 10000000000 + event_id")
    highest = (
        _timed(bids(events))
        .key_by(F.lit("all").alias("everything"))
        .window("10 seconds")
        .aggregate(best=mr.max_by(bid, order), name="highest")
    )
    return highest.transform(lambda df: df.selectExpr("best.*", "window.end AS ends"))


def _q8(events: DataFrame) -> mr.Stream:
    """A person and an auction of theirs in one window are two kinds of rows of one key."""
    seen = events.where(F.col("kind") != BID).selectExpr(
        "ts", "coalesce(person.id, auction.seller) AS id", "person.name", "auction.id AS auction"
    )
    both = (
        _timed(seen)
        .key_by("id")
        .window("10 seconds")
        .aggregate(name="newcomers", who=mr.max("name"), auctions=mr.count("auction"))
    )
    return both.transform(
        lambda df: df.where("who IS NOT NULL AND auctions > 0").selectExpr(
            "id", "who", "auctions", "window.end AS ends"
        )
    )


def _q12(events: DataFrame) -> mr.Stream:
    """A micro-batch has one time, which Spark logs: it is the same if the batch is repeated."""
    now = bids(events).withColumn("processed", F.current_timestamp())
    stream = mr.stream(now, event_time="processed", watermark="0 seconds")
    windows = stream.key_by("bidder").window("10 seconds")
    return windows.aggregate(n=mr.count(), name="processed")


def _q14(events: DataFrame) -> DataFrame:
    return (
        bids(events)
        .selectExpr("auction", "bidder", f"{EURO} AS euro", f"{_HOUR} AS part", f"{_COUNT_C} AS c")
        .where("euro > 1000000 AND euro < 50000000")
    )


_HOUR = """CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
    WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
_COUNT_C = "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT)"

RANKS = {
    "low": "price < 10000",
    "mid": "price >= 10000 AND price < 1000000",
    "high": "price >= 1000000",
}
"""Of prices, in q15 to q17."""


def _when(condition: str, column: str) -> Column:
    return F.expr(f"CASE WHEN {condition} THEN {column} END")


def _by_day(events: DataFrame) -> mr.Stream:
    return mr.stream(bids(events)).transform(
        lambda df: df.withColumn("day", F.date_format("ts", "yyyy-MM-dd"))
    )


def _distinct_counts() -> dict[str, mr.Aggregate]:
    found = {"bids": mr.count()}
    found |= {f"{name}_bids": mr.count(_when(rank, "price")) for name, rank in RANKS.items()}
    for what, column in (("bidders", "bidder"), ("auctions", "auction")):
        found[what] = mr.count_distinct(column)
        for name, rank in RANKS.items():
            found[f"{name}_{what}"] = mr.count_distinct(_when(rank, column))
    return found


_DISTINCT = (
    *("bids", *(f"{name}_bids" for name in RANKS)),
    *(
        f"{name}{what}"
        for what in ("bidders", "auctions")
        for name in ("", *map("{}_".format, RANKS))
    ),
)
_DISTINCT_SQL = ", ".join(
    [
        "count(*)",
        *(f"count(*) FILTER ({rank})" for rank in RANKS.values()),
        *(
            f"count(DISTINCT {column}) FILTER ({rank})"
            for column in ("bidder", "auction")
            for rank in ("true", *RANKS.values())
        ),
    ]
)


def _q15(events: DataFrame) -> mr.Stream:
    return _by_day(events).key_by("day").aggregate(name="daily", **_distinct_counts())


def _q16(events: DataFrame) -> mr.Stream:
    minute = mr.max(F.date_format("ts", "HH:mm"))
    keyed = _by_day(events).key_by("channel", "day")
    return keyed.aggregate(name="channels", minute=minute, **_distinct_counts())


def _q17(events: DataFrame) -> mr.Stream:
    ranks = {f"{name}_bids": mr.count(_when(rank, "price")) for name, rank in RANKS.items()}
    prices = {"lowest": mr.min("price"), "highest": mr.max("price"), "mean": mr.mean("price")}
    keyed = _by_day(events).key_by("auction", "day")
    return keyed.aggregate(
        name="auctions", bids=mr.count(), **ranks, **prices, total=mr.sum("price")
    )


def _q18(events: DataFrame) -> mr.Stream:
    last = mr.max_by(F.struct("price", "channel", "ts"), "event_id")
    return (
        mr.stream(bids(events)).key_by("bidder", "auction").aggregate(name="last_bids", last=last)
    )


def _q22(events: DataFrame) -> DataFrame:
    parts = [f"split_part(url, '/', {i + 4}) AS dir{i + 1}" for i in range(3)]
    return bids(events).selectExpr("auction", "bidder", "price", "channel", *parts)


_DAY = "strftime(ts, '%Y-%m-%d')"

QUERIES = (
    Query(
        "q0", "every bid", STATELESS, _q0,
        ("auction", "bidder", "price", "ts", "extra"),
        "SELECT auction, bidder, price, ts, extra FROM bid",
    ),
    Query(
        "q1", "prices in euro", STATELESS, _q1,
        ("auction", "bidder", "euro", "ts", "extra"),
        f"SELECT auction, bidder, {EURO}, ts, extra FROM bid",
    ),
    Query(
        "q2", "bids on some auctions", STATELESS, _q2, ("auction", "price"),
        "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    ),
    Query(
        "q5", "hottest auctions", EMITTED, _q5, ("auction", "n", "ends"),
        """
        WITH counts AS (
            SELECT auction, ends, count(*) AS n FROM (
                SELECT auction, time_bucket(INTERVAL '2 seconds', ts, TIMESTAMP '1970-01-01')
                    + UNNEST(RANGE(1, 6)) * INTERVAL '2 seconds' AS ends FROM bid)
            GROUP BY ALL)
        SELECT auction, n, ends FROM counts
        QUALIFY n = max(n) OVER (PARTITION BY ends)
        """,
        ends="ends",
    ),
    Query(
        "q7", "highest bid", EMITTED, _q7, ("auction", "bidder", "price", "ts", "ends"),
        """
        WITH windows AS (
            SELECT *, time_bucket(INTERVAL '10 seconds', ts, TIMESTAMP '1970-01-01')
                + INTERVAL '10 seconds' AS ends FROM bid)
        SELECT auction, bidder, price, ts, ends FROM windows
        QUALIFY row_number() OVER (PARTITION BY ends ORDER BY price DESC, event_id DESC) = 1
        """,
        ends="ends",
    ),
    Query(
        "q8", "new people with auctions", EMITTED, _q8, ("id", "who", "auctions", "ends"),
        """
        WITH seen AS (
            SELECT ts, id, name, NULL AS auction FROM person
            UNION ALL SELECT ts, seller, NULL, id FROM auction)
        SELECT id, max(name) AS who, count(auction) AS auctions,
            time_bucket(INTERVAL '10 seconds', ts, TIMESTAMP '1970-01-01')
                + INTERVAL '10 seconds' AS ends
        FROM seen GROUP BY id, ends HAVING who IS NOT NULL AND auctions > 0
        """,
        ends="ends",
    ),
    Query(
        "q12", "bids per bidder, by processing time", BOTH, _q12, ("bidder", "n"),
        "SELECT bidder, count(*) FROM bid GROUP BY bidder",
    ),
    Query(
        "q14", "some bids, calculated", STATELESS, _q14, ("auction", "bidder", "euro", "part", "c"),
        f"""
        SELECT auction, bidder, {EURO} AS euro, {_HOUR}, {_COUNT_C} FROM bid
        WHERE euro > 1000000 AND euro < 50000000
        """,
    ),
    Query(
        "q15", "distinct counts by day", STATE, _q15, ("day", *_DISTINCT),
        f"SELECT {_DAY} AS day, {_DISTINCT_SQL} FROM bid GROUP BY day",
    ),
    Query(
        "q16", "distinct counts by channel and day", STATE, _q16,
        ("channel", "day", "minute", *_DISTINCT),
        f"""
        SELECT channel, {_DAY} AS day, max(strftime(ts, '%H:%M')), {_DISTINCT_SQL}
        FROM bid GROUP BY channel, day
        """,
    ),
    Query(
        "q17", "statistics of auctions", STATE, _q17,
        (
            *("auction", "day", "bids", *(f"{name}_bids" for name in RANKS)),
            *("lowest", "highest", "mean", "total"),
        ),
        f"""
        SELECT auction, {_DAY} AS day, count(*),
            {", ".join(f"count(*) FILTER ({rank})" for rank in RANKS.values())},
            min(price), max(price), avg(price), sum(price)::BIGINT
        FROM bid GROUP BY auction, day
        """,
    ),
    Query(
        "q18", "last bid of a bidder on an auction", STATE, _q18, ("bidder", "auction", "last"),
        """
        SELECT bidder, auction, {'price': price, 'channel': channel, 'ts': ts} FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY event_id DESC) = 1
        """,
    ),
    Query(
        "q22", "parts of a URL", STATELESS, _q22,
        ("auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"),
        """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
            split_part(url, '/', 6) FROM bid
        """,
    ),
)  # fmt: skip
BY_NAME = {query.name: query for query in QUERIES}
KINDS = (PERSON, AUCTION, BID)
