"""Decisions of autoscaling on the time line and among the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.reconfigure.autoscale.epochs import Epochs
from tests.unit.ui.histories import BEGIN_MS, Past

from millrace.reconfigure.autoscale.deciding import decide
from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.autoscale.recording import Records
from millrace.reconfigure.autoscale.scaler import Scaling
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.requests import Answer
from millrace.ui.metrics import exposition
from millrace.ui.watch import QueryStatus, Watch

AT = BEGIN_MS / 1000
GROWN = Decision(
    AT + 1, 3, "rescale", "table 1 to 2: load 90% to 45%", "model", {"table": 1}, {"table": 2}, 2
)
BLOCKED = Decision(
    AT + 2,
    4,
    "hold",
    "more than 2 shards are wanted",
    "model",
    {"table": 2},
    {"table": 2},
    4,
    advice=("the key 'x' has 60% of the rows",),
    blocked=True,
)


@pytest.fixture
def past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    made = Past(tmp_path / "location", monkeypatch)
    made.epochs(2)
    return made


def test_a_decision_that_became_a_request_is_shown_once(past: Past) -> None:
    records = Records(past.location.store)
    for decision in (GROWN, BLOCKED):
        records.write_decision(decision)
    asked = past.requests.submit(
        "rescale", parallelism={"table": 2}, strategy="live", by="autoscale", reason=GROWN.reason
    )
    watch = Watch(past.url)
    watch.refresh()
    shown = {m.kind: m for m in watch.marks() if m.kind in ("rescale", "autoscale")}
    assert len([m for m in watch.marks() if m.kind in ("rescale", "autoscale")]) == 2
    assert shown["rescale"].title == "rescale to 2 (table)"
    assert shown["rescale"].detail == f"live, under way: {GROWN.reason}"
    assert shown["autoscale"].title == "no executors to be had"
    assert shown["autoscale"].detail == (
        "more than 2 shards are wanted; the key 'x' has 60% of the rows"
    )
    report = {
        "seconds": 1.0,
        "shards": {"table": [1, 2]},
        "key_groups": 8,
        "bytes": 10,
        "epochs": 1,
    }
    past.requests.answer(asked.id, Answer("done", "", report))
    watch = Watch(past.url)
    watch.refresh()
    (done,) = [m for m in watch.marks() if m.kind == "rescale"]
    assert done.title == "rescale 1 \u2192 2"
    assert done.detail.endswith(f"1.0 s: {GROWN.reason}")


def test_a_switch_and_a_decision_that_was_not_carried_out(past: Past) -> None:
    Records(past.location.store).write_decision(GROWN)
    past.requests.submit("autoscale", switch="off", strategy="live")
    watch = Watch(past.url)
    watch.refresh()
    titles = [m.title for m in watch.marks() if m.kind == "autoscale"]
    assert sorted(titles) == ["autoscaling off", "would rescale to 2 (table)"]


def test_metrics_of_autoscaling(past: Past) -> None:
    epochs = Epochs()
    epochs.run(20, 30_000, 1, backlog=500)
    now = decide(Settings(), epochs.history)

    class Scaled:
        def status(self) -> QueryStatus:
            seen = epochs.history.latest
            return QueryStatus("running", scaling=Scaling(Settings(), True, seen, now, ()))

    records = Records(past.location.store)
    for decision in (GROWN, BLOCKED):
        records.write_decision(decision)
    watch = Watch(past.url, Scaled())
    watch.refresh()
    lines = exposition(watch).splitlines()
    assert 'millrace_autoscale_decisions_total{action="rescale"} 1.0' in lines
    assert 'millrace_autoscale_decisions_total{action="hold"} 1.0' in lines
    assert "millrace_autoscale_on 1.0" in lines
    assert f"millrace_autoscale_wanted_shards {float(now.wanted)}" in lines
    assert "millrace_autoscale_backlog_rows 500.0" in lines
    (load,) = [line for line in lines if line.startswith("millrace_autoscale_load_ratio ")]
    assert float(load.split()[1]) == pytest.approx(3.0, rel=0.1)
    # Looked at again, a decision is not counted again.
    watch._asked_at -= 1000
    watch.refresh()
    assert watch.decided == {"rescale": 1, "hold": 1}
