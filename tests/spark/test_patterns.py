"""Patterns on Spark: conditions in the JVM and on earlier rows, compared with backtracking.

One query reads files with rows out of order, is rescaled while it runs, and is stopped and started
again in the middle. All matches and time-outs of all keys are compared with plain Python.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from tests.property.operators.pattern.oracle import Backtracking
from tests.spark import support
from tests.waiting import DEADLINE

import millrace as mr
from millrace.api.origin import origin
from millrace.errors import (
    EventTimeError,
    PatternError,
    SchemaChangedError,
    UnknownColumnError,
    UnknownOutputError,
)
from millrace.operators.pattern.expressions import column, earlier, previous
from millrace.operators.pattern.matcher import parse_after

SCHEMA = "card string, at timestamp, amount double, city string, id bigint"
START = dt.datetime(2024, 3, 10, 6, 50, tzinfo=dt.UTC)
FILES = 4
CITIES = ["Rome", "Oslo", "", None]


def payments(path: Path) -> tuple[support.Folder, list[list[tuple[Any, ...]]]]:
    """Files of rows that are up to two minutes out of order, none of them late."""
    chance = random.Random(11)
    folder = support.Folder(path / "payments", SCHEMA)
    files = []
    for number in range(FILES):
        rows = []
        for count in range(60):
            seconds = number * 300 + chance.random() * 300 + chance.choice([0, 0, 100])
            amount = chance.choice([0.5, 0.9, 20.0, 600.0, 700.0, None])
            rows.append(
                (
                    chance.choice(["a", "b", "c", "d", None]),
                    START + dt.timedelta(seconds=int(seconds)),
                    amount,
                    chance.choice(CITIES),
                    number * 100 + count,
                )
            )
        files.append(rows)
    return folder, files


def fraud() -> mr.Pattern:
    """What Spark computes, what it cannot, and expressions with some of each."""
    amount = F.col("amount")
    return (
        mr.pattern("small")
        .where(amount < 1)
        .followed_by("some")
        .where((amount >= 1) & (amount + 0 < 650))
        .times(1, 3)
        .optional(greedy=True)
        .not_followed_by("stop")
        .where("amount is null and city = 'Oslo'")
        .followed_by("large")
        .where((amount > 500) & (F.col("city") != mr.previous("city")))
        .where(amount * 2 > mr.matched("some").sum("amount") - 100)
        .within("7 minutes")
    )


def expected(rows: list[tuple[Any, ...]], after: str) -> tuple[list[Any], list[Any]]:
    """The same pattern in the language of the operator, matched by backtracking."""
    amount, total = column("amount"), earlier("some").sum("amount")
    conditions = {
        "small": amount < 1,
        "some": (amount >= 1) & (amount < 650),
        # In a text that Spark reads.
        "stop": (column("missing") == True) & (column("city") == "Oslo"),  # noqa: E712
        "large": (amount > 500) & (column("city") != previous("city")) & (amount * 2 > total - 100),
    }
    sequence = fraud().sequence()
    matches, timeouts = [], []
    for card in ["a", "b", "c", "d", None]:
        mine = sorted((row for row in rows if row[0] == card), key=lambda row: (row[1], row[4]))
        listed = [
            {"us": int(r[1].timestamp()), "amount": r[2], "city": r[3], "missing": r[2] is None}
            for r in mine
        ]

        found = Backtracking(sequence, dict(conditions), 420, listed, "us").results(
            parse_after(after, sequence)
        )
        ids = [row[4] for row in mine]
        for to, paths in ((matches, found.matches), (timeouts, found.timeouts)):
            to += [(card, [ids[row] for _, row in path]) for path in paths]
    return sorted(matches, key=repr), sorted(timeouts, key=repr)


def selection() -> dict[str, Column]:
    return {
        "ids": mr.matched().list("id"),
        "began": mr.matched().first("at"),
        "total": F.coalesce(mr.matched("some").sum("amount"), F.lit(0.0))
        + mr.matched("small").last("amount"),
        "cards": mr.matched().max("card"),
        "n": mr.matched("some").count(),
    }


@pytest.mark.stress
def test_matches_through_a_rescale_and_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    folder, files = payments(tmp_path)
    location = str(tmp_path / "location")
    outputs: dict[str, list[tuple[Any, ...]]] = {"matches": [], "timeouts": [], "hours": []}

    def start() -> mr.Query:
        # Ten seconds more than rows are out of order.
        stream = mr.stream(folder.stream(spark), event_time="at", watermark="410 seconds")
        found = stream.key_by("card").match(fraud(), select=selection(), name="fraud")
        assert found.schema.names == ["card", "ids", "began", "total", "cards", "n"]
        hours = (
            found.key_by("card")
            .window("1 hour")
            .aggregate(n=mr.count(), emit="update", name="hours")
        )

        def keep(name: str) -> Any:
            return lambda df, batch_id: outputs[name].extend(map(tuple, df.collect()))

        first = found.for_each_batch(keep("matches"))
        others = [
            found.timeouts().for_each_batch(keep("timeouts")),
            hours.for_each_batch(keep("hours")),
        ]
        # A restart goes on with what a rescale has left.
        parallelism = None if Path(location).exists() else 2
        return first.also(*others).start(location, parallelism=parallelism)

    query = start()
    try:
        for number, rows in enumerate(files):
            folder.drop(rows)
            query.process_all_available()
            if number == 1:
                query.rescale(3).wait(DEADLINE)
            if number == 2:
                with mr.open(location) as reader:
                    partial = reader.sql("select * from fraud.partial").to_pylist()
                    waiting = reader.sql("select count(*) as n from fraud").to_pylist()
                assert partial
                assert all(row["matched"][0] == "small" for row in partial)
                assert all("large" in row["waits_for"] for row in partial)
                assert all(row["expires"] - row["started"] == mr.minutes(7) for row in partial)
                assert waiting[0]["n"] > 0
                query.stop()
                query = start()
        # Far later than all others: the watermark passes everything.
        folder.drop([("z", START + dt.timedelta(days=1), 5.0, "x", 9999)])
        folder.drop([("z", START + dt.timedelta(days=2), 5.0, "x", 9999)])
        query.process_all_available()
    finally:
        query.stop()
    every = [row for rows in files for row in rows]
    matches, timeouts = expected(every, "skip past last")
    assert len(matches) > 10
    assert len(timeouts) > 3
    by_id = {row[4]: row for row in every}
    got = [(row[0], row[1]) for row in outputs["matches"]]
    assert sorted(got, key=repr) == matches
    assert sorted([(r[0], r[1]) for r in outputs["timeouts"]], key=repr) == timeouts
    for card, ids, _, total, cards, n in outputs["matches"]:
        rows = [by_id[i] for i in ids]
        assert total == rows[0][2] + sum(row[2] for row in rows[1:-1])
        assert (cards, n) == (card, len(ids) - 2)
    counted = {(row[0], row[1]): row[2] for row in outputs["hours"]}
    assert sum(counted.values()) == len(matches)


def test_refuses_what_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    folder, _ = payments(tmp_path)
    stream = mr.stream(folder.stream(spark), event_time="at", watermark="1 minute")
    keyed = stream.key_by("card")
    two = mr.pattern("a").where(F.col("amount") > 1).followed_by("b").within("1 hour")
    select = {"n": mr.matched().count()}

    def refused(error: type[Exception], words: str, pattern: Any = two, **options: Any) -> None:
        with pytest.raises(error, match=words):
            keyed.match(pattern, **{"select": select, **options})

    refused(PatternError, "without bound", mr.pattern("a").next("b"))
    refused(PatternError, "match nothing", mr.pattern("a").optional().within("1 hour"))
    refused(PatternError, "two variables", mr.pattern("a").next("a").within("1 hour"))
    refused(PatternError, "takes a pattern", "a b c")
    refused(PatternError, "skip past last", after="skip")
    refused(PatternError, "no 'c'", after="skip to last c")
    refused(PatternError, "first row", after="skip to first a")
    refused(PatternError, "by name", select={})
    refused(PatternError, "no rows", select={"n": mr.matched("c").count()})
    refused(UnknownColumnError, "there is not", select={"n": mr.matched("b").last("missing")})
    refused(UnknownColumnError, "resolve", select={"n": F.col("amount")})
    refused(PatternError, "refers to 'z'", two.where(mr.matched("z").count() > 1))
    refused(PatternError, "true or false", two.where(F.col("amount") + 1))
    refused(PatternError, "do not go together", two.where(F.col("amount") == mr.previous("city")))
    refused(PatternError, "argument of", two.where(F.sqrt(mr.previous("amount")) > 1))
    refused(UnknownColumnError, "where", two.where(F.col("missing") > 1))
    refused(PatternError, "no condition", two.not_followed_by("c"))
    with pytest.raises(EventTimeError, match="event time"):
        mr.stream(folder.stream(spark)).key_by("card").match(two, select=select)
    with pytest.raises(UnknownOutputError, match="partial matches"):
        keyed.aggregate(n=mr.count()).timeouts()


def test_a_changed_pattern_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder, files = payments(tmp_path)
    folder.drop(files[0])
    location = str(tmp_path / "location")
    stream = mr.stream(folder.stream(spark), event_time="at", watermark="1 minute")

    def matches(pattern: mr.Pattern) -> mr.Query:
        found = stream.key_by("card").match(pattern, select={"n": mr.matched().count()}, name="m")
        return found.to("noop").start(location, parallelism=1)

    first = mr.pattern("a").where(F.col("amount") > 1).followed_by("b")
    query = matches(first.within("1 hour"))
    query.process_all_available()
    query.stop()
    with pytest.raises(SchemaChangedError, match="within"):
        matches(first.within("2 hours"))
    with pytest.raises(SchemaChangedError, match="another pattern"):
        matches(first.times(2).within("1 hour"))


def test_text_is_another_way_to_write_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder, _ = payments(tmp_path)
    stream = mr.stream(folder.stream(spark), event_time="at", watermark="1 minute")
    found = mr.match_recognize(
        stream,
        """
        PARTITION BY card ORDER BY at
        MEASURES FIRST(A.at) AS began, LAST(c.amount) - A.amount AS rise, COUNT(*) AS n, B.id AS id
        ONE ROW PER MATCH AFTER MATCH SKIP TO LAST C
        PATTERN (A B+? (C | D){2,3} E*) WITHIN INTERVAL '2' HOURS
        DEFINE
          A AS A.amount < 1 AND city IS NOT NULL,
          B AS B.amount > LAST(B.amount, 1) AND SUM(B.amount) < 100 AND AVG(B.amount) > A.amount,
          C AS city <> PREV(city) OR C.amount > MAX(B.amount) * 2,
          E AS FIRST(E.amount) = 3
        """,
        name="text",
    )
    assert found.schema.names == ["card", "began", "rise", "n", "id"]
    amount, own, before = F.col("amount"), F.col("amount"), mr.matched("B").sum("amount")
    total = F.coalesce(before + own, before, own)
    pattern = (
        mr.pattern("A")
        .where((amount < 1) & F.col("city").isNotNull())
        .next("B")
        .where(amount > mr.matched("B").last("amount"))
        .where(total < 100)
        .where(total / (mr.matched("B").count("amount") + 1) > mr.matched("A").last("amount"))
        .one_or_more(each="next")
        .next(
            mr.one_of(
                mr.pattern("C").where(
                    (F.col("city") != mr.previous("city"))
                    | (amount > mr.matched("B").max("amount") * 2)
                ),
                mr.pattern("D"),
            )
        )
        .times(2, 3, greedy=True, each="next")
        .next("E")
        .where(F.coalesce(mr.matched("E").first("amount"), amount) == 3)
        .one_or_more(greedy=True, each="next")
        .optional(greedy=True)
        .within("2 hours")
    )
    select = {
        "began": mr.matched("A").first("at"),
        "rise": mr.matched("C").last("amount") - mr.matched("A").last("amount"),
        "n": mr.matched().count(),
        "id": mr.matched("B").last("id"),
    }
    built = stream.key_by("card").match(pattern, select=select, after="skip to last C")
    specs = [each._operator("here").spec() for each in (found, built)]
    assert specs[0] == specs[1]
    assert [origin(each).event_time for each in (found, built)] == ["began", "began"]

    whole = "PARTITION BY card ORDER BY at MEASURES A.id AS id PATTERN (A B) WITHIN '1' HOUR "
    for text, words in [
        ("ORDER BY at MEASURES A.id AS id PATTERN (A B)", "PARTITION BY"),
        (whole.replace("ORDER BY at", "ORDER BY id"), "order of event time"),
        (whole.replace("(A B)", "(A B"), "cannot read|needs PATTERN"),
        (whole.replace("(A B)", "(A ^ B)"), "not expected"),
        (whole.replace("(A B)", "(A | )"), "not expected"),
        (whole + "DEFINE C AS C.id > 1", "not in the pattern"),
        (whole + "DEFINE B AS MIN(B.amount) > 1", "the row itself"),
        (whole.replace("WITHIN '1' HOUR", ""), "without bound"),
        (whole.replace("MEASURES A.id AS id", "MEASURES LAST(A.id, 1) AS id"), "offset"),
    ]:
        with pytest.raises(PatternError, match=words):
            mr.match_recognize(stream, text)
