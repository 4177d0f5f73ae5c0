"""NEXMark: the events, and every query's program beside the same query in one DuckDB batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.stress import few

from millrace_lab.nexmark import generator
from millrace_lab.nexmark.checking import Events
from millrace_lab.nexmark.queries import BY_NAME


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """In UTC, as hours and days of the events are."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


@pytest.fixture(scope="module")
def events(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Events:
    made = Events(tmp_path_factory.mktemp("nexmark"), number=6_000, epochs=3, per_second=200)
    made.write(session)
    return made


@pytest.mark.stress
def test_the_mix_of_events(events: Events) -> None:
    rows = duckdb.sql(
        f"SELECT * FROM read_parquet('{events.folder}/00[0-2]/*.parquet') ORDER BY event_id"
    )
    columns = rows.columns
    found: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]
    assert [row["event_id"] for row in found] == list(range(events.number))
    assert Counter(row["kind"] for row in found) == {"person": 120, "auction": 360, "bid": 5520}
    people = [row["person"]["id"] for row in found if row["person"]]
    auctions = [row["auction"]["id"] for row in found if row["auction"]]
    assert people == list(range(1_000, 1_120))
    assert auctions == list(range(1_000, 1_360))
    bids = [row["bid"] for row in found if row["bid"]]
    hot = sum((bid["auction"] - generator.FIRST_ID) % generator.HOT_EVERY == 0 for bid in bids)
    assert 0.45 < hot / len(bids) < 0.6
    hot = sum((bid["bidder"] - generator.FIRST_ID) % generator.HOT_EVERY == 1 for bid in bids)
    assert 0.7 < hot / len(bids) < 0.85
    assert min(bid["price"] for bid in bids) >= 100
    assert max(bid["price"] for bid in bids) <= 100_000_000
    for row in found:
        if row["auction"]:
            assert row["auction"]["expires"] > row["ts"]
            assert row["auction"]["category"] in range(10, 15)


@pytest.mark.parametrize("name", few(BY_NAME))
def test_a_program_gives_what_a_batch_gives(
    name: str, events: Events, session: SparkSession, tmp_path: Path
) -> None:
    wanted = events.batch(BY_NAME[name])
    assert events.answer(BY_NAME[name], session, tmp_path / "location") == wanted
    assert wanted


SPARK = [name for name, query in BY_NAME.items() if query.spark is not None]


@pytest.mark.parametrize("name", few(SPARK))
def test_sparks_own_operators_give_what_a_batch_gives(
    name: str, events: Events, session: SparkSession, tmp_path: Path
) -> None:
    wanted = events.batch(BY_NAME[name])
    assert events.spark_answer(BY_NAME[name], session, tmp_path / "checkpoint") == wanted
    assert wanted
