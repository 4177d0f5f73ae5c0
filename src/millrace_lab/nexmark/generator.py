"""NEXMark's events: a pure function of an event's number, in SQL that Spark and Flink both know.

Of 50 events one is a new person, three are new auctions and the rest are bids. People and auctions
have ids in the order of their creation. Half of all bids are on the hot auction, and three of four
sellers and bidders are the hot person; the others are drawn from the last 1,000 people and 100
auctions, and now and then from the ten that come next, so that a bid can be there before its
auction. Chance is the square of the event's number times a factor, modulo a prime: arithmetic on 64
bits, so that every engine makes the same events by itself and none has to parse them.

Rows have the columns `event_id`, `kind` (`person`, `auction` or `bid`), `ts`, and one struct of
each kind, of which two are NULL. Times are whole milliseconds, as Flink's event times are.
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
BASE_MS = 1_700_000_000_000
"""The time of the first event; a multiple of ten seconds."""
PERSON, AUCTION, BID = "person", "auction", "bid"
KINDS = (PERSON, AUCTION, BID)
SCHEMA = """
    event_id BIGINT, kind STRING, ts TIMESTAMP,
    person STRUCT<id: BIGINT, name: STRING, email: STRING, city: STRING, state: STRING,
                  extra: STRING>,
    auction STRUCT<id: BIGINT, item: STRING, initial_bid: BIGINT, reserve: BIGINT,
                   expires: TIMESTAMP, seller: BIGINT, category: BIGINT, extra: STRING>,
    bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING,
               extra: STRING>
"""
SPARK_TIME, FLINK_TIME = "timestamp_millis({ms})", "TO_TIMESTAMP_LTZ({ms}, 3)"
"""A timestamp of milliseconds since 1970."""

_PRIME = 2_147_483_647
_FACTOR = 48_271
_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter")
_SURNAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def _long(number: int) -> str:
    return f"CAST({number} AS BIGINT)"


def _mod(value: str, divisor: int | str) -> str:
    return f"MOD({value}, {_long(divisor) if isinstance(divisor, int) else divisor})"


def _div(value: str, divisor: int) -> str:
    """The whole part of a quotient: engines disagree about its type unless nothing is left over."""
    return f"CAST((({value}) - {_mod(value, divisor)}) / {_long(divisor)} AS BIGINT)"


def _number(salt: int) -> str:
    """A number below the prime, another for each salt."""
    factor = pow(_FACTOR, salt + 1, _PRIME)
    x = _mod(f"v * {_long(factor)} + {_long(7919 * salt + 11)}", _PRIME)
    return _mod(f"{x} * {x}", _PRIME)


def _chance(salt: int, below: int | str) -> str:
    """A whole number from 0 up to, not including, a bound."""
    return _mod(_number(salt), below)


def _price(salt: int) -> str:
    """From 100 to a hundred million, as many in each power of ten."""
    exponent = f"CAST({_number(salt)} AS DOUBLE) * 6 / {_PRIME}"
    hundreds = f"POWER(CAST(10 AS DOUBLE), {exponent}) * 100"
    return f"CAST(FLOOR({hundreds} + CAST(0.5 AS DOUBLE)) AS BIGINT)"


def _chosen(salt: int, values: tuple[str, ...]) -> str:
    cases = " ".join(f"WHEN {i} THEN '{value}'" for i, value in enumerate(values[:-1]))
    return f"CASE {_chance(salt, len(values))} {cases} ELSE '{values[-1]}' END"


def _text(salt: int, length: int) -> str:
    """Digits from 0 to f."""
    words = ", ".join(f"LPAD(LOWER(HEX({_number(salt + i)})), 8, '0')" for i in range(4))
    return f"SUBSTRING(REPEAT(CONCAT({words}), {-(-length // 32)}), 1, {length})"


_ROUND = _div("v", PER_ROUND)
_PEOPLE = f"({_ROUND} + 1)"
"""The number of people there are, at any event."""
_LAST_OF_ROUND = f"({_ROUND} * {AUCTIONS_PER_ROUND} + {AUCTIONS_PER_ROUND - 1})"
"""The last auction's number, at a bid: bids come last in a round."""


def _person(salt: int, hot: int) -> str:
    """Someone's id: three of four times the hot one, else one of the last or the next."""
    active = f"LEAST({_PEOPLE}, {_long(ACTIVE_PEOPLE)})"
    drawn = f"{_PEOPLE} - {active} + {_chance(salt, f'({active} + {LEAD})')}"
    common = f"{_ROUND} - {_mod(_ROUND, HOT_EVERY)} + {hot}"
    chosen = f"CASE WHEN {_chance(salt + 1, 4)} > 0 THEN {common} ELSE {drawn} END"
    return f"{FIRST_ID} + {chosen}"


def _auction(salt: int) -> str:
    """An auction's id, at a bid: half of the times the hot one."""
    last = _LAST_OF_ROUND
    first = f"GREATEST({last} - {AUCTIONS_IN_FLIGHT}, {_long(0)})"
    drawn = f"{first} + {_chance(salt, f'({last} - {first} + {1 + LEAD})')}"
    common = f"{last} - {_mod(last, HOT_EVERY)}"
    chosen = f"CASE WHEN {_chance(salt + 1, 2)} = 0 THEN {common} ELSE {drawn} END"
    return f"{FIRST_ID} + {chosen}"


def longest_auction_ms(per_second: int) -> int:
    """How long an auction lasts at most: twice the time in which as many begin as are in flight."""
    horizon = AUCTIONS_IN_FLIGHT * PER_ROUND * 1_000 // (AUCTIONS_PER_ROUND * per_second)
    return 1 + 2 * max(horizon, 1)


def time_ms(per_second: int) -> str:
    """The time of an event."""
    return f"{_long(BASE_MS)} + {_div('v * 1000', per_second)}"


def is_kind(kind: str) -> str:
    """Whether an event is of a kind."""
    place = _mod("v", PER_ROUND)
    if kind == PERSON:
        return f"{place} = 0"
    if kind == AUCTION:
        return f"{place} BETWEEN 1 AND {AUCTIONS_PER_ROUND}"
    return f"{place} > {AUCTIONS_PER_ROUND}"


def columns(kind: str, per_second: int, time: str) -> dict[str, str]:
    """The columns of one kind of events over a 64-bit column `v`, the event's number.

    `time` is how an engine makes a timestamp: `SPARK_TIME` or `FLINK_TIME`.
    """
    if kind == PERSON:
        return {
            "id": f"{FIRST_ID} + {_ROUND}",
            "name": f"CONCAT({_chosen(1, _NAMES)}, ' ', {_chosen(2, _SURNAMES)})",
            "email": f"CONCAT({_text(3, 7)}, '@', {_text(7, 5)}, '.com')",
            "city": _chosen(11, _CITIES),
            "state": _chosen(12, _STATES),
            "extra": _text(13, 120),
        }
    if kind == AUCTION:
        lasts = f"1 + {_chance(40, longest_auction_ms(per_second))}"
        return {
            "id": f"{FIRST_ID - 1} + {_ROUND} * {AUCTIONS_PER_ROUND} + {_mod('v', PER_ROUND)}",
            "item": _text(20, 20),
            "initial_bid": _price(41),
            "reserve": f"{_price(41)} + {_price(42)}",
            "expires": time.format(ms=f"{time_ms(per_second)} + {lasts}"),
            "seller": _person(43, 0),
            "category": f"{FIRST_CATEGORY} + {_chance(45, CATEGORIES)}",
            "extra": _text(24, 400),
        }
    number = f"CAST({_chance(53, 10_000)} AS STRING)"
    hot = f"{_chance(52, 2)} = 0"
    path = ", '/', ".join(_text(60 + 4 * i, 5) for i in range(3))
    tail = f"CASE WHEN {hot} THEN '' ELSE CONCAT('&channel_id=', {number}) END"
    return {
        "auction": _auction(46),
        "bidder": _person(48, 1),
        "price": _price(50),
        "channel": f"CASE WHEN {hot} THEN {_chosen(54, _HOT_CHANNELS)} "
        f"ELSE CONCAT('channel-', {number}) END",
        "url": f"CONCAT('https://www.nexmark.com/', {path}, '/item.htm?query=1', {tail})",
        "extra": _text(30, 40),
    }


def events(
    numbers: DataFrame, per_second: int = PER_SECOND, *, null_others: bool = True
) -> DataFrame:
    """The events of a column `v` of numbers from 0 on, streaming or not.

    Without `null_others` the structs of other kinds have values, too, which nobody should read:
    then Spark finds which of their fields a query takes, and makes no others.
    """
    cases = " ".join(f"WHEN {is_kind(kind)} THEN '{kind}'" for kind in KINDS)
    structs = []
    for kind in KINDS:
        made = columns(kind, per_second, SPARK_TIME).items()
        struct = f"named_struct({', '.join(f'{name!r}, {sql}' for name, sql in made)})"
        given = f"CASE WHEN {is_kind(kind)} THEN {struct} END" if null_others else struct
        structs.append(f"{given} AS {kind}")
    return numbers.selectExpr(
        "v AS event_id",
        f"CASE {cases} END AS kind",
        f"{SPARK_TIME.format(ms=time_ms(per_second))} AS ts",
        *structs,
    )


def write(spark: SparkSession, folder: Path, first: int, last: int, per_second: int) -> None:
    """The events from number `first` to before `last`, as Parquet files in a new folder."""
    numbers = spark.range(first, last, 1, 2).withColumnRenamed("id", "v")
    events(numbers, per_second).write.parquet(str(folder))
