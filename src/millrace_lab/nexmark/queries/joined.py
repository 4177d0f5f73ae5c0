"""The queries that join: q3, q4, q6, q9, q20 and q23.

A join of streams needs bounds on time, so that rows can go. Those here are wider than the time from
an event to the last one that refers to it, at 200 events a second or more: the result is that of a
join without bounds.

The winner of an auction is known when no more bids on it can come. All pairs of an auction and a
bid have the auction's time, so they are in one window of its key, and it ends when the join's
watermark passes: each auction comes out once.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.nexmark.queries.query import (
    DELAY,
    EMITTED,
    LATEST,
    STATE,
    Query,
    auctions,
    bids,
    people,
    timed,
)

CATEGORY = 10
NEAR_STATES = "state IN ('OR', 'ID', 'CA')"
LONGEST = "20 seconds"
"""No auction is open longer."""
LAST = 10
"""Auctions of a seller that count in q6."""


def _sellers(events: DataFrame) -> DataFrame:
    named = people(events).where(NEAR_STATES)
    return named.selectExpr("id AS seller", "name", "city", "state", "ts AS registered")


def _category(events: DataFrame) -> DataFrame:
    return auctions(events).where(f"category = {CATEGORY}")


def _q3(events: DataFrame) -> mr.Stream:
    opened = timed(_category(events).selectExpr("seller", "id AS auction", "ts"))
    sellers = timed(_sellers(events), "registered")
    return opened.join(sellers, on="seller", within=("-10 minutes", "1 minute"), name="sellers")


def _spark_q3(events: DataFrame) -> DataFrame:
    opened = _category(events).selectExpr("seller AS seller_id", "id AS auction", "ts")
    pairs = """seller_id = seller AND registered >= ts - INTERVAL 10 MINUTES
        AND registered <= ts + INTERVAL 1 MINUTE"""
    sellers = _sellers(events).withWatermark("registered", DELAY)
    return opened.withWatermark("ts", DELAY).join(sellers, F.expr(pairs))


def _opened(events: DataFrame) -> DataFrame:
    named = "id AS auction", "item", "seller", "category", "ts AS opened", "expires"
    return auctions(events).selectExpr(*named)


def _offers(events: DataFrame) -> DataFrame:
    return bids(events).select("auction", "event_id", "bidder", "price", "ts")


def _valid(events: DataFrame) -> mr.Stream:
    """Auctions with the bids on them that came in time."""
    pairs = timed(_opened(events), "opened").join(
        timed(_offers(events)), on="auction", within=("0 seconds", LONGEST), name="offers"
    )
    return pairs.transform(lambda df: df.where("ts <= expires"))


def _closed(events: DataFrame) -> mr.Stream:
    """Each auction that has a winner, once, with the highest price."""
    keyed = _valid(events).key_by("auction", "seller", "category", "expires")
    return keyed.window("1 second").aggregate(won=mr.max("price"), name="closed")


def _q4(events: DataFrame) -> mr.Stream:
    return _closed(events).key_by("category").aggregate(mean=mr.mean("won"), name="categories")


def _q6(events: DataFrame) -> mr.Stream:
    last = mr.top(LAST, "expires", "auction", "won")
    sellers = _closed(events).key_by("seller").aggregate(last=last, name="sellers")
    total = "aggregate(last, 0D, (total, one) -> total + one.won)"
    return sellers.transform(lambda df: df.selectExpr("seller", f"{total} / size(last) AS mean"))


FIRST_HIGHEST = "price * 10000000000 - event_id"
"""The highest price, and of equal ones the first."""
_WINNER = ("bidder", "price", "ts")


def _q9(events: DataFrame) -> mr.Stream:
    best = mr.max_by(F.struct(*_WINNER), F.expr(FIRST_HIGHEST))
    keyed = _valid(events).key_by("auction", "item", "seller", "category")
    closed = keyed.window("1 second").aggregate(best=best, name="winners")
    return closed.transform(_winners)


def _winners(df: DataFrame) -> DataFrame:
    return df.select("auction", "item", "seller", "category", "best.*")


def _spark_q9(events: DataFrame) -> DataFrame:
    offers = _offers(events).withColumnRenamed("auction", "bid_on").withWatermark("ts", DELAY)
    pairs = f"bid_on = auction AND ts >= opened AND ts <= opened + INTERVAL {LONGEST}"
    opened = _opened(events).withWatermark("opened", DELAY)
    valid = opened.join(offers, F.expr(pairs)).where("ts <= expires")
    keyed = valid.groupBy("auction", "item", "seller", "category", F.window("opened", "1 second"))
    best = F.max_by(F.struct(*_WINNER), F.expr(FIRST_HIGHEST))
    return _winners(keyed.agg(best.alias("best")))


_BID = ("auction", "bidder", "price", "channel", "ts")
_ITEM = ("item", "initial_bid", "reserve", "opened", "expires", "seller")


def _items(events: DataFrame) -> DataFrame:
    return _category(events).selectExpr(
        "id AS auction", "item", "initial_bid", "reserve", "ts AS opened", "expires", "seller"
    )


def _q20(events: DataFrame) -> mr.Stream:
    offered = timed(bids(events).select(*_BID))
    items = timed(_items(events), "opened")
    return offered.join(items, on="auction", within=("-20 seconds", "5 seconds"), name="items")


def _spark_q20(events: DataFrame) -> DataFrame:
    items = _items(events).withColumnRenamed("auction", "id").withWatermark("opened", DELAY)
    pairs = """auction = id AND opened >= ts - INTERVAL 20 SECONDS
        AND opened <= ts + INTERVAL 5 SECONDS"""
    return bids(events).select(*_BID).withWatermark("ts", DELAY).join(items, F.expr(pairs))


_SOLD = ("item", "reserve", "category")


def _q23(events: DataFrame) -> mr.Stream:
    offered = timed(bids(events).select("bidder", "auction", "price", "ts"))
    bidders = timed(
        people(events).selectExpr("id AS bidder", "name", "city", "ts AS registered"), "registered"
    )
    own = timed(auctions(events).selectExpr("seller AS bidder", *_SOLD, "ts AS opened"), "opened")
    within = ("-10 minutes", "10 minutes")
    known = offered.join(bidders, on="bidder", within=within, name="bidders")
    return known.join(own, on="bidder", within=within, name="own_auctions")


_FLINK_FINAL = """
    finals AS (
        SELECT a.id, a.seller, a.category, a.expires, MAX(b.price) AS won
        FROM auction a JOIN bid b ON a.id = b.auction
            AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '20' SECOND AND b.ts <= a.expires
        GROUP BY a.id, a.seller, a.category, a.expires)
"""
_DUCKDB_FINAL = """
    finals AS (
        SELECT a.id, a.seller, a.category, a.expires, max(b.price) AS won
        FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
        GROUP BY ALL)
"""
_LAST_SQL = f"""
    SELECT seller, AVG(CAST(won AS DOUBLE)) FROM (
        SELECT *, ROW_NUMBER() OVER (
            PARTITION BY seller ORDER BY expires DESC, id DESC) AS place FROM finals)
    WHERE place <= {LAST} GROUP BY seller
"""

QUERIES = (
    Query(
        "q3", "sellers near by, in a category", EMITTED, _q3,
        ("name", "city", "state", "auction"),
        f"""
        SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id
        WHERE category = {CATEGORY} AND {NEAR_STATES}
        """,
        spark=_spark_q3,
        flink=f"""
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
            AND p.ts BETWEEN a.ts - INTERVAL '10' MINUTE AND a.ts + INTERVAL '1' MINUTE
        WHERE a.category = {CATEGORY} AND p.{NEAR_STATES}
        """,
    ),
    Query(
        "q4", "average winning price of a category", STATE, _q4, ("category", "mean"),
        f"WITH {_DUCKDB_FINAL} SELECT category, avg(won) FROM finals GROUP BY category",
        operator="categories",
        key=("category",),
        closes=True,
        flink=f"""
        WITH {_FLINK_FINAL}
        SELECT category, AVG(CAST(won AS DOUBLE)) FROM finals GROUP BY category
        """,
    ),
    Query(
        "q6", "average of a seller's last ten", LATEST, _q6, ("seller", "mean"),
        f"WITH {_DUCKDB_FINAL} {_LAST_SQL}",
        key=("seller",),
        closes=True,
        flink=f"WITH {_FLINK_FINAL} {_LAST_SQL}",
    ),
    Query(
        "q9", "winning bids", EMITTED, _q9,
        ("auction", "item", "seller", "category", *_WINNER),
        """
        SELECT id, item, seller, category, bidder, price, b.ts
        FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
        QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, b.event_id) = 1
        """,
        closes=True,
        spark=_spark_q9,
        flink="""
        SELECT id, item, seller, category, bidder, price, ts FROM (
            SELECT a.id, a.item, a.seller, a.category, b.bidder, b.price, b.ts, ROW_NUMBER() OVER (
                PARTITION BY a.id ORDER BY b.price DESC, b.event_id) AS place
            FROM auction a JOIN bid b ON a.id = b.auction
                AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '20' SECOND AND b.ts <= a.expires)
        WHERE place = 1
        """,
    ),
    Query(
        "q20", "bids with their auctions, in a category", EMITTED, _q20, (*_BID, *_ITEM),
        f"""
        SELECT b.auction, bidder, price, channel, b.ts, item, initial_bid, reserve, a.ts, expires,
            seller
        FROM bid b JOIN auction a ON b.auction = a.id WHERE category = {CATEGORY}
        """,
        spark=_spark_q20,
        flink=f"""
        SELECT b.auction, b.bidder, b.price, b.channel, b.ts, a.item, a.initial_bid, a.reserve,
            CAST(a.ts AS TIMESTAMP_LTZ(3)), a.expires, a.seller
        FROM bid b JOIN auction a ON b.auction = a.id
            AND a.ts BETWEEN b.ts - INTERVAL '20' SECOND AND b.ts + INTERVAL '5' SECOND
        WHERE a.category = {CATEGORY}
        """,
    ),
    Query(
        "q23", "bids of people who sell, with what they sell", EMITTED, _q23,
        ("bidder", "auction", "price", "ts", "name", "city", *_SOLD),
        """
        SELECT bidder, auction, price, b.ts, name, city, item, reserve, category
        FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder
        """,
    ),
)  # fmt: skip
