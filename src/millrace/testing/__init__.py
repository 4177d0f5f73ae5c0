"""Testing operators without Spark: real state, a clock and a watermark under your control.

    harness = mr.testing.Harness(
        Visits(), key="user", schema="user string, page string, at timestamp",
        output="user string, visits long", event_time="at",
    )
    harness.send([{"user": "ann", "page": "/", "at": noon}])
    harness.advance_watermark(noon + mr.minutes(31))      # timers fire, late rows are late

Send broadcast rows with them: `harness.send(rows, broadcast={"rules": {"key": value}})`.

Each call is an epoch and returns the rows it emitted: as a list those of the main output, with
`.side("alerts")` those of a side output, with `.late()` the input rows that were too late. State
goes through the same tables, segments and merges as in a query; only Spark is missing.

`WindowHarness` does the same for windows, `SessionHarness` for sessions, and `DedupHarness` for
`drop_duplicates`; `JoinHarness`, `AsOfHarness` and `LookupHarness` for the
operators over two streams:

    harness = mr.testing.JoinHarness(
        on="ad", left="ad string, clicked timestamp", right="ad string, shown timestamp",
        left_time="clicked", right_time="shown", within=("-1 hour", "0 seconds"), how="left",
    )
    harness.send([{"ad": "a", "clicked": noon}], [{"ad": "a", "shown": noon - mr.minutes(5)}])

`PatternHarness` is for `match`; its conditions and columns are written with `column` and `earlier`:

    harness = mr.testing.PatternHarness(
        mr.pattern("low").where(mr.testing.column("price") < 10)
        .followed_by("high").where(mr.testing.column("price") > 20).within("1 hour"),
        key="share", schema="share string, price double, at timestamp", event_time="at",
        select={"price": mr.testing.earlier("high").last("price")},
    )

`GraphHarness` is for the operators of `mr.graphs`:

    harness = mr.testing.GraphHarness("components", vertex="string")
    harness.send([("a", "b"), ("b", "c")])
"""

from millrace.operators.pattern.expressions import column, earlier
from millrace.testing.dedup import DedupHarness
from millrace.testing.epochs import Emitted
from millrace.testing.graphs import GraphHarness
from millrace.testing.joins import AsOfHarness, JoinHarness, LookupHarness
from millrace.testing.patterns import PatternHarness
from millrace.testing.processors import Broadcasts, Harness, run
from millrace.testing.sessions import SessionHarness
from millrace.testing.windows import WindowHarness

__all__ = [
    "AsOfHarness",
    "Broadcasts",
    "DedupHarness",
    "Emitted",
    "GraphHarness",
    "Harness",
    "JoinHarness",
    "LookupHarness",
    "PatternHarness",
    "SessionHarness",
    "WindowHarness",
    "column",
    "earlier",
    "run",
]
