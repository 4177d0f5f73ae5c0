"""`bench nexmark` without its engines: the events in SQL, and which query runs where."""

from __future__ import annotations

import re
from typing import Any

import duckdb

from millrace_lab.bench._contract import Result
from millrace_lab.bench.nexmark import STATEFUL, Options, flink_query
from millrace_lab.bench.report import GRIDS, _grid
from millrace_lab.nexmark import generator
from millrace_lab.nexmark.queries import BY_NAME, EMITTED, QUERIES, STATELESS

PER_SECOND = 200


def made(kind: str, *names: str, numbers: int = 5_000) -> list[tuple[Any, ...]]:
    """Columns of the events of one kind, with the number and the time first, by DuckDB."""
    columns = generator.columns(kind, PER_SECOND, "{ms}")
    listed = ", ".join(columns[name] for name in names)
    return duckdb.execute(
        f"SELECT v, {generator.time_ms(PER_SECOND)}, {listed} FROM range({numbers}) AS numbers(v) "
        f"WHERE {generator.is_kind(kind)} ORDER BY v"
    ).fetchall()


def test_ids_follow_each_other() -> None:
    people = made("person", "id")
    assert [row[2] for row in people] == list(range(1_000, 1_100))
    assert [row[0] for row in people] == list(range(0, 5_000, 50))
    auctions = made("auction", "id")
    assert [row[2] for row in auctions] == list(range(1_000, 1_300))
    assert {row[0] % 50 for row in auctions} == {1, 2, 3}
    assert len(made("bid", "price")) == 5_000 * 46 // 50


def test_events_are_in_the_order_of_time() -> None:
    rows = made("bid", "price")
    assert all(row[1] == generator.BASE_MS + row[0] * 5 for row in rows)


def test_a_bid_is_on_an_auction_of_its_time() -> None:
    """The last hundred, or the next ten; so bounds on time lose none."""
    for v, _, auction, bidder in made("bid", "auction", "bidder", numbers=100_000):
        last, people = 1_000 + v // 50 * 3 + 2, 1_000 + v // 50
        assert last - 100 <= auction <= last + 10
        assert people - 1_000 <= bidder <= people + 10


def test_auctions_last_as_long_as_they_may() -> None:
    longest = generator.longest_auction_ms(PER_SECOND)
    lasted = [row[2] - row[1] for row in made("auction", "expires", numbers=100_000)]
    assert min(lasted) >= 1
    assert longest * 0.99 < max(lasted) <= longest <= 20_000


def test_prices_are_spread_over_six_powers_of_ten() -> None:
    prices = [row[2] for row in made("bid", "price", numbers=50_000)]
    for power in range(2, 8):
        some = [p for p in prices if 10**power <= p < 10 ** (power + 1)]
        assert 0.14 < len(some) / len(prices) < 0.19


def test_all_queries_are_there() -> None:
    assert [query.name for query in QUERIES] == [f"q{n}" for n in range(24)]
    assert set(STATEFUL) == set(Options().queries)
    for query in QUERIES:
        # A row that replaces another is known by its key.
        assert bool(query.key) == (query.answer in ("state", "latest"))
        assert set(query.key) <= set(query.columns)
        assert query.spark is None or query.answer != STATELESS
    assert BY_NAME["q5"].answer == EMITTED


def test_flink_gets_a_query_and_all_events() -> None:
    given = flink_query(BY_NAME["q3"], 100)
    assert set(given["views"]) == {"person", "auction", "bid"}
    condition, columns = given["views"]["auction"]
    assert re.search(r"\bv\b", condition)
    assert columns["expires"].startswith("TO_TIMESTAMP_LTZ(")
    assert re.search(r"\bauction\b", given["sql"])


def test_a_quick_run_is_smaller() -> None:
    quick = Options().quick()
    assert quick.rows < Options().rows
    assert quick.verify_events < Options().verify_events
    assert Options(queries=("q5",)).quick().queries == ("q5",)


def test_the_tables_of_the_page() -> None:
    result = Result("nexmark")
    for side, rate in (("millrace", 900_000), ("spark-rocksdb", 300_000)):
        result.figure(f"rows_per_s.q5.{side}", rate)
        result.figure(f"rows_per_s.q5.{side}.low", rate - 1)
    result.ratio("nexmark.q5.spark-rocksdb", 3)
    rates, ratios = (
        _grid(result.to_json(), heading, GRIDS["nexmark"][heading])
        for heading in ("rows/s", "Millrace over")
    )
    assert "| rows/s | millrace | spark-rocksdb |" in rates
    assert "| `q5` | 900,000 | 300,000 |" in rates
    assert "| `q5` | 3 |" in ratios
