"""The queries with windows and sessions: q5, q7, q8, q11 and q12.

Of two highest bids, the later one counts.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.nexmark.generator import BID
from millrace_lab.nexmark.queries.query import BOTH, DELAY, EMITTED, Query, bids, timed

BID_ORDER = "price * 10000000000 + event_id"
"""The highest price, and of equal ones the latest."""


def _q5(events: DataFrame) -> mr.Stream:
    counts = (
        timed(bids(events))
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
    return hottest.transform(_hottest)


def _hottest(df: DataFrame) -> DataFrame:
    each = df.select("ends", "most", F.explode("auctions").alias("one")).where("one.n = most")
    return each.select("one.auction", "one.n", "ends")


def _spark_q5(events: DataFrame) -> DataFrame:
    hops = F.window("ts", "10 seconds", "2 seconds")
    counts = bids(events).withWatermark("ts", DELAY).groupBy("auction", hops).count()
    ended = counts.select("auction", F.col("count").alias("n"), F.window_time("window").alias("at"))
    both = F.max("n").alias("most"), F.collect_list(F.struct("auction", "n")).alias("auctions")
    hottest = ended.groupBy(F.window("at", "2 seconds")).agg(*both)
    return _hottest(hottest.withColumn("ends", F.col("window.end")))


def _q7(events: DataFrame) -> mr.Stream:
    bid = F.struct("auction", "bidder", "price", "ts")
    highest = (
        timed(bids(events))
        .key_by(F.lit("all").alias("everything"))
        .window("10 seconds")
        .aggregate(best=mr.max_by(bid, F.expr(BID_ORDER)), name="highest")
    )
    return highest.transform(lambda df: df.selectExpr("best.*", "window.end AS ends"))


def _spark_q7(events: DataFrame) -> DataFrame:
    windows = bids(events).withWatermark("ts", DELAY).groupBy(F.window("ts", "10 seconds"))
    bid = F.struct("auction", "bidder", "price", "ts")
    highest = windows.agg(F.max_by(bid, F.expr(BID_ORDER)).alias("best"))
    return highest.selectExpr("best.*", "window.end AS ends")


def _newcomers(events: DataFrame) -> DataFrame:
    """People and auctions as two kinds of rows of one key."""
    return events.where(F.col("kind") != BID).selectExpr(
        "ts",
        "if(kind = 'person', person.id, auction.seller) AS id",
        "if(kind = 'person', person.name, NULL) AS name",
        "if(kind = 'auction', auction.id, NULL) AS auction",
    )


def _with_auctions(df: DataFrame) -> DataFrame:
    found = df.where("who IS NOT NULL AND auctions > 0")
    return found.selectExpr("id", "who", "auctions", "window.end AS ends")


def _q8(events: DataFrame) -> mr.Stream:
    both = (
        timed(_newcomers(events))
        .key_by("id")
        .window("10 seconds")
        .aggregate(name="newcomers", who=mr.max("name"), auctions=mr.count("auction"))
    )
    return both.transform(_with_auctions)


def _spark_q8(events: DataFrame) -> DataFrame:
    seen = _newcomers(events).withWatermark("ts", DELAY)
    both = seen.groupBy("id", F.window("ts", "10 seconds")).agg(
        F.max("name").alias("who"), F.count("auction").alias("auctions")
    )
    return _with_auctions(both)


def _q11(events: DataFrame) -> mr.Stream:
    sessions = timed(bids(events)).key_by("bidder").session("10 seconds")
    counts = sessions.aggregate(n=mr.count(), name="sessions")
    return counts.transform(_session_ends)


def _session_ends(df: DataFrame) -> DataFrame:
    times = "session_window.start AS starts", "session_window.end AS ends"
    return df.selectExpr("bidder", "n", *times)


def _spark_q11(events: DataFrame) -> DataFrame:
    rows = bids(events).withWatermark("ts", DELAY)
    sessions = rows.groupBy("bidder", F.session_window("ts", "10 seconds"))
    return _session_ends(sessions.agg(F.count("*").alias("n")))


def _q12(events: DataFrame) -> mr.Stream:
    """A micro-batch has one time, which Spark logs: it is the same if the batch is repeated."""
    now = bids(events).withColumn("processed", F.current_timestamp())
    stream = mr.stream(now, event_time="processed", watermark="0 seconds")
    windows = stream.key_by("bidder").window("10 seconds")
    return windows.aggregate(n=mr.count(), name="processed")


QUERIES = (
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
        closes=True,
        spark=_spark_q5,
        flink="""
        WITH counts AS (
            SELECT auction, COUNT(*) AS n, window_start, window_end
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end),
        most AS (
            SELECT MAX(n) AS n, window_start, window_end FROM counts
            GROUP BY window_start, window_end)
        SELECT c.auction, c.n, c.window_end FROM counts c JOIN most m
            ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.n = m.n
        """,
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
        closes=True,
        spark=_spark_q7,
        flink="""
        SELECT auction, bidder, price, ts, window_end FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY window_start, window_end ORDER BY price DESC, event_id DESC) AS place
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND)))
        WHERE place = 1
        """,
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
        closes=True,
        spark=_spark_q8,
        flink="""
        SELECT p.id, p.name, a.auctions, p.window_end
        FROM (
            SELECT id, name, window_start, window_end
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end) p
        JOIN (
            SELECT seller, COUNT(*) AS auctions, window_start, window_end
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
        """,
    ),
    Query(
        "q11", "bids of a bidder's session", EMITTED, _q11, ("bidder", "n", "starts", "ends"),
        """
        WITH marked AS (
            SELECT *, coalesce(
                ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts, event_id)
                    > INTERVAL '10 seconds', true)::INT AS is_first FROM bid),
        numbered AS (
            SELECT *, sum(is_first) OVER (PARTITION BY bidder ORDER BY ts, event_id) AS session
            FROM marked)
        SELECT bidder, count(*), min(ts) AS starts, max(ts) + INTERVAL '10 seconds' AS ends
        FROM numbered GROUP BY bidder, session
        """,
        closes=True,
        spark=_spark_q11,
        flink="""
        SELECT bidder, COUNT(*), window_start, window_end
        FROM TABLE(SESSION(
            TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
        """,
    ),
    Query(
        "q12", "bids per bidder, by processing time", BOTH, _q12, ("bidder", "n"),
        "SELECT bidder, count(*) FROM bid GROUP BY bidder",
    ),
)  # fmt: skip
