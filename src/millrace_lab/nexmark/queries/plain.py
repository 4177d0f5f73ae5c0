"""The queries without state: q0, q1, q2, q10, q13, q14, q21 and q22.

They are Spark's own, because Millrace leaves those to `writeStream`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from millrace_lab.nexmark.queries.query import STATELESS, Query, bids

EURO = "CAST(0.908 * price AS DECIMAL(24, 3))"
SIDE_KEYS = 10_000
"""Rows of the table that q13 joins."""

_HOUR = """CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
    WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
_COUNT_C = "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT)"
_CHANNEL_ID = """CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
    WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
    ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END"""


def _q0(events: DataFrame) -> DataFrame:
    return bids(events).select("auction", "bidder", "price", "ts", "extra")


def _q1(events: DataFrame) -> DataFrame:
    return bids(events).selectExpr("auction", "bidder", f"{EURO} AS euro", "ts", "extra")


def _q2(events: DataFrame) -> DataFrame:
    return bids(events).where("auction % 123 = 0").select("auction", "price")


def _q10(events: DataFrame) -> DataFrame:
    """Written to files, a folder for each day and minute."""
    when = ("date_format(ts, 'yyyy-MM-dd') AS day", "date_format(ts, 'HH-mm') AS minute")
    return bids(events).selectExpr("auction", "bidder", "price", "ts", "extra", *when)


def _q13(events: DataFrame) -> DataFrame:
    names = "id AS side_key", "concat('value-', id) AS value"
    side = events.sparkSession.range(SIDE_KEYS).selectExpr(*names)
    joined = bids(events).withColumnRenamed("event_id", "bid_id")
    joined = joined.selectExpr("*", f"auction % {SIDE_KEYS} AS side_key").join(side, "side_key")
    return joined.select("auction", "bidder", "price", "ts", "value")


def _q14(events: DataFrame) -> DataFrame:
    return (
        bids(events)
        .selectExpr("auction", "bidder", f"{EURO} AS euro", f"{_HOUR} AS part", f"{_COUNT_C} AS c")
        .where("euro > 1000000 AND euro < 50000000")
    )


def _q21(events: DataFrame) -> DataFrame:
    found = bids(events).selectExpr(
        "auction", "bidder", "price", "channel", f"{_CHANNEL_ID} AS channel_id"
    )
    return found.where("channel_id <> ''")


def _q22(events: DataFrame) -> DataFrame:
    parts = [f"split_part(url, '/', {i + 4}) AS dir{i + 1}" for i in range(3)]
    return bids(events).selectExpr("auction", "bidder", "price", "channel", *parts)


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
        "q10", "bids to files by day and minute", STATELESS, _q10,
        ("auction", "bidder", "price", "ts", "extra", "day", "minute"),
        """
        SELECT auction, bidder, price, ts, extra, strftime(ts, '%Y-%m-%d'), strftime(ts, '%H-%M')
        FROM bid
        """,
        partitions=("day", "minute"),
    ),
    Query(
        "q13", "bids with a row of a static table", STATELESS, _q13,
        ("auction", "bidder", "price", "ts", "value"),
        f"""
        WITH side AS (SELECT range AS id, 'value-' || range AS value FROM range({SIDE_KEYS}))
        SELECT auction, bidder, price, ts, value FROM bid JOIN side ON auction % {SIDE_KEYS} = id
        """,
    ),
    Query(
        "q14", "some bids, calculated", STATELESS, _q14, ("auction", "bidder", "euro", "part", "c"),
        f"""
        SELECT auction, bidder, {EURO} AS euro, {_HOUR}, {_COUNT_C} FROM bid
        WHERE euro > 1000000 AND euro < 50000000
        """,
    ),
    Query(
        "q21", "ids of channels", STATELESS, _q21,
        ("auction", "bidder", "price", "channel", "channel_id"),
        f"""
        SELECT auction, bidder, price, channel, {_CHANNEL_ID} AS channel_id FROM bid
        WHERE channel_id <> ''
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
