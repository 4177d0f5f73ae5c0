"""Lag per source, from batches as Spark publishes them."""

from __future__ import annotations

import json
from typing import Any

from millrace.spark.lag import LagHistory, source_lags


def batch(second: int, read: dict[str, int], there: dict[str, int]) -> dict[str, Any]:
    source = {
        "description": "KafkaV2[Subscribe[in]]",
        "endOffset": json.dumps({"in": read}),
        "latestOffset": json.dumps({"in": there}),
    }
    return {"timestamp": f"2026-01-01T00:00:{second:02}.500Z", "sources": [source]}


def lag(*published: dict[str, Any]) -> tuple[int | None, float | None]:
    (found,) = source_lags(published, 1)
    assert found["source"] == "KafkaV2[Subscribe[in]]"
    return found["rows_behind"], found["seconds_behind"]


def test_nothing_is_known_before_the_first_batch() -> None:
    assert source_lags([], 1) == []


def test_a_source_that_was_read_to_its_end() -> None:
    assert lag(batch(1, {"0": 5, "1": 7}, {"0": 5, "1": 7})) == (0, 0.0)


def test_rows_of_all_partitions_count() -> None:
    assert lag(batch(1, {"0": 5, "1": 7}, {"0": 6, "1": 9, "2": 4}))[0] == 7


def test_seconds_count_from_the_last_time_that_nothing_was_waiting() -> None:
    first = batch(1, {"0": 10}, {"0": 10})
    second = batch(3, {"0": 20}, {"0": 30})
    third = batch(7, {"0": 29}, {"0": 50})
    # Offset 29 was not there in second 1, and was in second 3.
    assert lag(first, second, third) == (21, 6.0)
    # Offset 30 was not there in second 3.
    assert lag(first, second, batch(7, {"0": 30}, {"0": 50})) == (20, 4.0)


def test_a_query_that_was_always_behind_does_not_know_since_when() -> None:
    assert lag(batch(1, {"0": 5}, {"0": 30}), batch(2, {"0": 10}, {"0": 30})) == (20, None)


def test_offsets_that_are_no_rows_say_nothing() -> None:
    for offset in ("12", '{"logOffset": 3}', "not JSON", None, 4, '{"in": {"0": "x"}}'):
        source = {"description": "rate", "endOffset": offset, "latestOffset": offset}
        published = {"timestamp": "2026-01-01T00:00:00.000Z", "sources": [source]}
        (found,) = source_lags([published], 1)
        assert found == {"source": "rate", "rows_behind": None, "seconds_behind": None}


def test_sources_beyond_those_asked_for_are_left_out() -> None:
    published = batch(1, {"0": 1}, {"0": 1})
    published["sources"] *= 2
    assert len(source_lags([published], 1)) == 1


def test_a_history_gives_what_all_batches_give_and_a_looser_bound_of_some() -> None:
    first = batch(1, {"0": 10}, {"0": 10})
    second = batch(3, {"0": 20}, {"0": 30})
    third = batch(7, {"0": 30}, {"0": 50})
    assert LagHistory().lags(1) == []
    asked = LagHistory()
    for published in (first, first, second, third):
        asked.take(published)
    assert asked.lags(1) == source_lags([first, second, third], 1)
    some = LagHistory()
    some.take(first)
    some.take(third)
    (found,) = some.lags(1)
    assert (found["rows_behind"], found["seconds_behind"]) == (20, 6.0)
