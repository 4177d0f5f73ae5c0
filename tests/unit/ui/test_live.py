"""What the page asks of a query in its own process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.ui.live import KEPT, LiveQuery
from millrace.ui.watch import SourceLag


def published(batch: int, rows: int, took: int | None = None, at: str = "") -> dict[str, Any]:
    durations = {} if took is None else {"triggerExecution": took}
    stamp = at or f"t{batch}"
    return {"batchId": batch, "timestamp": stamp, "numInputRows": rows, "durationMs": durations}


class Spark:
    """What Spark has published; counts how often the whole list is asked for."""

    def __init__(self, progress: list[dict[str, Any]]) -> None:
        self.progress = progress
        self.asked = 0

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.progress[-1] if self.progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self.progress


def reported(batch: int) -> dict[str, Any]:
    operators = {"totals": {"shard_seconds": {"input": 0.2, "apply": 0.4}}}
    return {"batch_id": batch, "epoch": batch + 1, "operators": operators}


def query(**more: Any) -> Any:
    known = {
        "is_active": True,
        "is_stopping": False,
        "problem": None,
        "executors": lambda: ["executor-0"],
        "is_autoscaled": False,
        "recent_progress": lambda after=0: [reported(4)] if after < 5 else [],
        "spark_query": Spark([published(4, 7, 30), published(5, 8)]),
        "exception": lambda: None,
        "lag": lambda: [{"source": "KafkaV2[x]", "rows_behind": 12, "seconds_behind": 2.5}],
    }
    return SimpleNamespace(**(known | more))


@pytest.mark.parametrize("problem", [None, "requests: no network"])
def test_a_problem_beside_the_epochs_is_shown_while_the_query_runs(problem: str | None) -> None:
    found = LiveQuery(query(problem=problem)).status()
    assert (found.state, found.error) == ("running", problem or "")
    assert found.executors == ("executor-0",)
    assert found.figures == {5: (7, 30.0)}
    assert found.sources == (SourceLag("KafkaV2[x]", 12, 2.5),)


def test_why_it_failed_is_shown_after_its_end() -> None:
    asked = query()
    live = LiveQuery(asked)
    assert live.status().state == "running"
    asked.is_active = False
    asked.exception = lambda: ValueError("a reason\nand a trace")
    found = live.status()
    assert (found.state, found.error) == ("failed", "a reason")


def test_only_what_is_new_is_asked_for() -> None:
    reports: list[dict[str, Any]] = []
    asked_after = []

    def recent_progress(after: int = 0) -> list[dict[str, Any]]:
        asked_after.append(after)
        return [r for r in reports if r["epoch"] > after]

    spark = Spark([])
    live = LiveQuery(query(recent_progress=recent_progress, spark_query=spark))
    assert live.status().figures == {}
    expected = {}
    for batch in range(500):
        # Spark publishes an idle trigger under the number of the batch that comes next.
        spark.progress.append(published(batch, 0, at=f"idle-{batch}"))
        if batch % 3:
            live.status()
        spark.progress.append(published(batch, batch, 2 * batch))
        reports.append(reported(batch))
        expected[batch + 1] = (batch, 2.0 * batch)
        figures = live.status().figures
        assert figures[batch + 1] == expected[batch + 1]
        assert figures.items() <= expected.items()
        assert len(figures) == min(batch + 1, KEPT)
    assert asked_after[-1] == 499
    assert spark.asked == 0
    # Several batches between two looks: the list is asked for once.
    for batch in (500, 501, 502):
        spark.progress.append(published(batch, batch, 7))
        reports.append(reported(batch))
    assert live.status().figures[502] == (501, 7.0)
    live.status()
    assert spark.asked == 1


def test_the_time_of_the_slowest_shard_is_counted_once_an_epoch() -> None:
    live = LiveQuery(query())
    for _ in range(3):
        (took,) = live.status().shard_seconds.values()
    assert sum(took.counts) == 1
    assert took.total == pytest.approx(0.6)
    assert live.status().scaling is None
    state = SimpleNamespace(on=True)
    scaled = LiveQuery(query(is_autoscaled=True, scaling=lambda: state))
    assert scaled.status().scaling is state
