"""All outputs of a processor, and the state it begins with, against a dict.

Over epochs, reopenings, and shards that come and go; a per-key processor and a whole-batch one have
to agree.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

import millrace as mr
from millrace.testing import Harness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
INITIAL = "k string, total long"


class PerKey(mr.Processor):
    total = mr.Value("long", default=0)
    crossed = mr.SideOutput("k string, before long, after long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        before = self.total.get()
        self.total.set(before + sum(row.x for row in rows))
        if before // 10 != self.total.get() // 10:
            self.crossed.emit((key.k, before, self.total.get()))
        yield (key.k, self.total.get())


class Whole(mr.BatchProcessor):
    total = mr.Value("long", default=0)
    crossed = mr.SideOutput("k string, before long, after long")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        before = state.numpy("total")
        after = before + np.add.reduceat(batch.numpy("x"), batch.starts[:-1])
        state["total"] = after
        table = pa.table({"k": batch.keys["k"], "before": before, "after": after})
        self.crossed.emit(table.filter(before // 10 != after // 10))
        return {"k": batch.keys["k"], "total": after}


keys = st.sampled_from([None, "", "a", "b", "c", "d"])
rows = st.lists(st.tuples(keys, st.integers(-9, 9), st.integers(0, 30)), max_size=8)
epochs = st.lists(
    st.tuples(rows, st.integers(1, 5), st.booleans(), st.integers(0, 10)), min_size=1, max_size=5
)
beginnings = st.dictionaries(keys, st.integers(-50, 50), max_size=5)


@pytest.mark.parametrize("processor", [PerKey(), Whole()], ids=lambda p: type(p).__name__)
@given(beginning=beginnings, epochs=epochs)
def test_outputs_equal_a_dict(
    processor: Any, beginning: dict[Any, int], epochs: list[tuple[Any, int, bool, int]]
) -> None:
    tested = Harness(
        processor,
        key="k",
        schema="k string, x long, at timestamp",
        output="k string, total long",
        event_time="at",
        initial_state=[{"k": k, "total": v} for k, v in beginning.items()],
        initial_schema=INITIAL,
    )
    totals: Counter[Any] = Counter(beginning)
    watermark, late_rows = -1, 0
    for sent, shards, reopens, step in epochs:
        if reopens:
            tested.reopen()
        tested.rescale(shards)
        fresh = [(k, x) for k, x, minute in sent if minute >= watermark]
        late = [(k, x, NOON + mr.minutes(m)) for k, x, m in sent if m < watermark]
        touched = {k for k, _ in fresh}
        before = {k: totals[k] for k in touched}
        for k, x in fresh:
            totals[k] += x
        emitted = tested.send({"k": k, "x": x, "at": NOON + mr.minutes(m)} for k, x, m in sent)
        assert Counter(emitted) == Counter((k, totals[k]) for k in touched)
        crossed = [(k, before[k], totals[k]) for k in touched if before[k] // 10 != totals[k] // 10]
        assert Counter(emitted.side("crossed")) == Counter(crossed)
        assert Counter(emitted.late()) == Counter(late)
        late_rows += len(late)
        if step:
            watermark = max(watermark, 0) + step
            later = tested.advance_watermark(NOON + mr.minutes(watermark))
            assert later == later.side("crossed") == later.late() == []
    assert tested.counters.get("late", 0) == late_rows
    assert {row["k"]: row["total"] for row in tested.state()} == totals
