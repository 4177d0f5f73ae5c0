"""NEXMark's events: a pure function of an event's number, as a Spark DataFrame.

Of 50 events one is a new person, three are new auctions and the rest are bids. People and auctions
have ids in the order of their creation. Half of all bids are on the hot auction, and three of four
sellers and bidders are the hot person; the others are drawn from the last 1,000 people and 100
auctions, and now and then from the ten that come next, so that a bid can be there before its
auction. Chance is a hash of the event's number, so every run makes the same events.

Rows have the columns `event_id`, `kind` (`person`, `auction` or `bid`), `ts`, and one struct of
each kind, of which two are NULL.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

FIRST_ID = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
PER_ROUND, AUCTIONS_PER_ROUND = 50, 3
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT, LEAD = 1_000, 100, 10
HOT_EVERY = 100
PER_SECOND = 10_000
BASE_US = 1_700_000_000_000_000
"""The time of the first event; a multiple of ten seconds."""
PERSON, AUCTION, BID = "person", "auction", "bid"
SCHEMA = """
    event_id BIGINT, kind STRING, ts TIMESTAMP,
    person STRUCT<id: BIGINT, name: STRING, email: STRING, city: STRING, state: STRING,
                  extra: STRING>,
    auction STRUCT<id: BIGINT, item: STRING, initial_bid: BIGINT, reserve: BIGINT,
                   expires: TIMESTAMP, seller: BIGINT, category: BIGINT, extra: STRING>,
    bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING,
               extra: STRING>
"""

_NAMES = "'Peter', 'Paul', 'Luke', 'John', 'Saul', 'Vicky', 'Kate', 'Julie', 'Sarah', 'Deiter'"
_SURNAMES = "'Shultz', 'Abrams', 'Spencer', 'White', 'Bartels', 'Walton', 'Smith', 'Jones'"
_CITIES = "'Phoenix', 'Los Angeles', 'San Francisco', 'Boise', 'Portland', 'Bend', 'Redmond'"
_STATES = "'AZ', 'CA', 'ID', 'OR', 'WA', 'WY'"
_HOT_CHANNELS = "'Google', 'Facebook', 'Baidu', 'Apple'"


def _chance(salt: int, below: str) -> str:
    """A whole number from 0 up to, not including, a bound."""
    return f"pmod(xxhash64(v, {salt}), CAST({below} AS BIGINT))"


def _price(salt: int) -> str:
    share = f"{_chance(salt, '1000000007')} / 1000000007D"
    return f"CAST(round(pow(10D, {share} * 6) * 100) AS BIGINT)"


def _chosen(salt: int, values: str) -> str:
    return (
        f"element_at(array({values}), CAST({_chance(salt, f'size(array({values}))')} AS INT) + 1)"
    )


def _text(salt: int, length: int) -> str:
    """Digits from 0 to f."""
    words = "".join(f"lpad(lower(hex(xxhash64(v, {salt + i}))), 16, '0'), " for i in range(4))
    return f"substr(repeat(concat({words}''), 8), 1, {length})"


_LAST_AUCTION = f"""
    CASE WHEN v % {PER_ROUND} < 1 THEN (v div {PER_ROUND}) * {AUCTIONS_PER_ROUND} - 1
         WHEN v % {PER_ROUND} > {AUCTIONS_PER_ROUND}
         THEN (v div {PER_ROUND}) * {AUCTIONS_PER_ROUND} + {AUCTIONS_PER_ROUND - 1}
         ELSE (v div {PER_ROUND}) * {AUCTIONS_PER_ROUND} + v % {PER_ROUND} - 1 END
"""


def _person(salt: int, hot: int) -> str:
    """Someone's id: three of four times the hot one, else one of the last or the next."""
    active = f"least(people, {ACTIVE_PEOPLE})"
    drawn = f"people - {active} + {_chance(salt, f'{active} + {LEAD}')}"
    common = f"(people - 1) div {HOT_EVERY} * {HOT_EVERY} + {hot}"
    return f"{FIRST_ID} + if({_chance(salt + 1, '4')} > 0, {common}, {drawn})"


def _auction(salt: int) -> str:
    """An auction's id: half of the times the hot one."""
    first = f"greatest(last_auction - {AUCTIONS_IN_FLIGHT}, 0)"
    drawn = f"{first} + {_chance(salt, f'last_auction - {first} + 1 + {LEAD}')}"
    common = f"last_auction div {HOT_EVERY} * {HOT_EVERY}"
    return f"{FIRST_ID} + if({_chance(salt + 1, '2')} = 0, {common}, {drawn})"


def events(numbers: DataFrame, per_second: int = PER_SECOND) -> DataFrame:
    """The events of a column `v` of numbers from 0 on, streaming or not."""
    horizon_us = AUCTIONS_IN_FLIGHT * PER_ROUND * 1_000_000 // (AUCTIONS_PER_ROUND * per_second)
    at = f"{BASE_US} + v * 1000000 div {per_second}"
    # An auction lasts a millisecond at least.
    lasts = f"1000 + {_chance(40, str(2 * horizon_us))}"
    number = _chance(53, "10000")
    hot = f"{_chance(52, '2')} = 0"
    channel = f"if({hot}, {_chosen(54, _HOT_CHANNELS)}, concat('channel-', {number}))"
    path = ", '/', ".join(f"substr({_text(60 + 4 * i, 5)}, 1, 5)" for i in range(3))
    tail = f"if({hot}, '', concat('&channel_id=', {number}))"
    url = f"concat('https://www.nexmark.com/', {path}, '/item.htm?query=1', {tail})"
    initial = _price(41)
    return numbers.selectExpr(
        "v",
        f"CASE v % {PER_ROUND} WHEN 0 THEN '{PERSON}' WHEN 1 THEN '{AUCTION}' "
        f"WHEN 2 THEN '{AUCTION}' WHEN 3 THEN '{AUCTION}' ELSE '{BID}' END AS kind",
        f"v div {PER_ROUND} + 1 AS people",
        f"CAST({_LAST_AUCTION} AS BIGINT) AS last_auction",
    ).selectExpr(
        "v AS event_id",
        "kind",
        f"timestamp_micros({at}) AS ts",
        f"""if(kind = '{PERSON}', named_struct(
            'id', {FIRST_ID} + people - 1,
            'name', concat({_chosen(1, _NAMES)}, ' ', {_chosen(2, _SURNAMES)}),
            'email', concat(substr({_text(3, 7)}, 1, 7), '@', substr({_text(7, 5)}, 1, 5), '.com'),
            'city', {_chosen(11, _CITIES)},
            'state', {_chosen(12, _STATES)},
            'extra', {_text(13, 120)}), NULL) AS person""",
        f"""if(kind = '{AUCTION}', named_struct(
            'id', {FIRST_ID} + last_auction,
            'item', {_text(20, 20)},
            'initial_bid', {initial},
            'reserve', {initial} + {_price(42)},
            'expires', timestamp_micros({at} + {lasts}),
            'seller', {_person(43, 0)},
            'category', {FIRST_CATEGORY} + {_chance(45, str(CATEGORIES))},
            'extra', {_text(24, 400)}), NULL) AS auction""",
        f"""if(kind = '{BID}', named_struct(
            'auction', {_auction(46)},
            'bidder', {_person(48, 1)},
            'price', {_price(50)},
            'channel', {channel},
            'url', {url},
            'extra', {_text(30, 40)}), NULL) AS bid""",
    )


def write(spark: SparkSession, folder: Path, first: int, last: int, per_second: int) -> None:
    """The events from number `first` to before `last`, as Parquet files in a new folder."""
    numbers = spark.range(first, last, 1, 2).withColumnRenamed("id", "v")
    events(numbers, per_second).write.parquet(str(folder))
