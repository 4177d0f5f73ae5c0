"""The queries over all bids of a key: q15 to q19. Their answers change with every bid.

Aggregates without a window emit each change, and keep the answer as state.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.nexmark.queries.query import LATEST, STATE, Query, bids
from millrace_lab.nexmark.queries.windowed import BID_ORDER

RANKS = {
    "low": "price < 10000",
    "mid": "price >= 10000 AND price < 1000000",
    "high": "price >= 1000000",
}
"""Of prices, in q15 to q17."""
TOP = 10


def _when(condition: str, column: str) -> Column:
    return F.expr(f"CASE WHEN {condition} THEN {column} END")


def _with_day(df: DataFrame) -> DataFrame:
    return df.withColumn("day", F.date_format("ts", "yyyy-MM-dd"))


def _by_day(events: DataFrame) -> mr.Stream:
    return mr.stream(_with_day(bids(events)))


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
_RANK_COUNTS = ", ".join(f"count(*) FILTER (WHERE {rank})" for rank in RANKS.values())
_DISTINCT_SQL = ", ".join(
    [
        "count(*)",
        _RANK_COUNTS,
        *(
            f"count(DISTINCT {column}) FILTER (WHERE {rank})"
            for column in ("bidder", "auction")
            for rank in ("true", *RANKS.values())
        ),
    ]
)
_PRICES = ("lowest", "highest", "mean", "total")


def _q15(events: DataFrame) -> mr.Stream:
    return (
        _by_day(events).key_by("day").aggregate(name="daily", emit="update", **_distinct_counts())
    )


def _q16(events: DataFrame) -> mr.Stream:
    minute = mr.max(F.date_format("ts", "HH:mm"))
    keyed = _by_day(events).key_by("channel", "day")
    return keyed.aggregate(name="channels", emit="update", minute=minute, **_distinct_counts())


def _q17(events: DataFrame) -> mr.Stream:
    ranks = {f"{name}_bids": mr.count(_when(rank, "price")) for name, rank in RANKS.items()}
    prices = {"lowest": mr.min("price"), "highest": mr.max("price"), "mean": mr.mean("price")}
    keyed = _by_day(events).key_by("auction", "day")
    return keyed.aggregate(
        name="auctions", emit="update", bids=mr.count(), **ranks, **prices, total=mr.sum("price")
    )


def _spark_q17(events: DataFrame) -> DataFrame:
    made = (F.min("price"), F.max("price"), F.avg("price"), F.sum("price"))
    return (
        _with_day(bids(events))
        .groupBy("auction", "day")
        .agg(
            F.count("*").alias("bids"),
            *(F.count(_when(rank, "price")).alias(f"{name}_bids") for name, rank in RANKS.items()),
            *(column.alias(name) for column, name in zip(made, _PRICES, strict=True)),
        )
    )


def _q18(events: DataFrame) -> mr.Stream:
    last = mr.max_by(F.struct("price", "channel", "ts"), "event_id")
    return (
        mr.stream(bids(events)).key_by("bidder", "auction").aggregate(name="last_bids", last=last)
    )


def _spark_q18(events: DataFrame) -> DataFrame:
    last = F.max_by(F.struct("price", "channel", "ts"), "event_id")
    return bids(events).groupBy("bidder", "auction").agg(last.alias("last"))


def _q19(events: DataFrame) -> mr.Stream:
    keyed = mr.stream(bids(events)).key_by("auction")
    # Of equal prices, the latest: rows are compared by the other columns, in their order.
    return keyed.top(TOP, "price", "event_id", "bidder", "channel", "ts", name="top_bids")


def _spark_q19(events: DataFrame) -> DataFrame:
    row = "struct(price, event_id, bidder, channel, ts)"
    best = F.expr(f"max_by({row}, {BID_ORDER}, {TOP})")
    arrays = bids(events).groupBy("auction").agg(best.alias("top"))
    return arrays.selectExpr("auction", "posexplode(top) AS (place, row)").selectExpr(
        "auction", "place + 1 AS rank", "row.*"
    )


_DAY = "strftime(ts, '%Y-%m-%d')"
_FLINK_DAY = "DATE_FORMAT(ts, 'yyyy-MM-dd')"

QUERIES = (
    Query(
        "q15", "distinct counts by day", STATE, _q15, ("day", *_DISTINCT),
        f"SELECT {_DAY} AS day, {_DISTINCT_SQL} FROM bid GROUP BY day",
        key=("day",),
        flink=f"SELECT {_FLINK_DAY}, {_DISTINCT_SQL} FROM bid GROUP BY {_FLINK_DAY}",
    ),
    Query(
        "q16", "distinct counts by channel and day", STATE, _q16,
        ("channel", "day", "minute", *_DISTINCT),
        f"""
        SELECT channel, {_DAY} AS day, max(strftime(ts, '%H:%M')), {_DISTINCT_SQL}
        FROM bid GROUP BY channel, day
        """,
        key=("channel", "day"),
        flink=f"""
        SELECT channel, {_FLINK_DAY}, MAX(DATE_FORMAT(ts, 'HH:mm')), {_DISTINCT_SQL}
        FROM bid GROUP BY channel, {_FLINK_DAY}
        """,
    ),
    Query(
        "q17", "statistics of auctions", STATE, _q17,
        ("auction", "day", "bids", *(f"{name}_bids" for name in RANKS), *_PRICES),
        f"""
        SELECT auction, {_DAY} AS day, count(*), {_RANK_COUNTS},
            min(price), max(price), avg(price), sum(price)::BIGINT
        FROM bid GROUP BY auction, day
        """,
        key=("auction", "day"),
        spark=_spark_q17,
        flink=f"""
        SELECT auction, {_FLINK_DAY}, count(*), {_RANK_COUNTS},
            MIN(price), MAX(price), AVG(CAST(price AS DOUBLE)), SUM(price)
        FROM bid GROUP BY auction, {_FLINK_DAY}
        """,
    ),
    Query(
        "q18", "last bid of a bidder on an auction", STATE, _q18, ("bidder", "auction", "last"),
        """
        SELECT bidder, auction, {'price': price, 'channel': channel, 'ts': ts} FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY event_id DESC) = 1
        """,
        key=("bidder", "auction"),
        spark=_spark_q18,
        flink="""
        SELECT bidder, auction, price, channel, ts FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction ORDER BY event_id DESC) AS place FROM bid)
        WHERE place = 1
        """,
    ),
    Query(
        "q19", "ten highest bids of an auction", LATEST, _q19,
        ("auction", "rank", "price", "event_id", "bidder", "channel", "ts"),
        f"""
        SELECT auction, row_number() OVER (
            PARTITION BY auction ORDER BY price DESC, event_id DESC) AS rank,
            price, event_id, bidder, channel, ts
        FROM bid QUALIFY rank <= {TOP}
        """,
        key=("auction", "rank"),
        spark=_spark_q19,
        flink=f"""
        SELECT auction, place, price, event_id, bidder, channel, ts FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC, event_id DESC) AS place FROM bid)
        WHERE place <= {TOP}
        """,
    ),
)  # fmt: skip
