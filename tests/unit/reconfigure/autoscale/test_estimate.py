from __future__ import annotations

import math

import pytest
from tests.unit.reconfigure.autoscale.epochs import Epochs

from millrace.reconfigure.autoscale.estimate import (
    OPENING,
    Estimate,
    Line,
    OperatorEstimate,
    estimated,
    fitted,
    low_for,
    peak,
)
from millrace.reconfigure.autoscale.history import KEPT_SPANS, History
from millrace.reconfigure.autoscale.observing import HotGroup
from millrace.reconfigure.autoscale.settings import Settings


def estimate_of(history: History, settings: Settings | None = None) -> Estimate:
    costs = fitted(history)
    assert costs is not None
    return estimated(history, settings or Settings(), costs)


def test_one_epoch_is_too_little() -> None:
    epochs = Epochs()
    assert fitted(History()) is None
    assert fitted(epochs.run(1, 1000, 1)) is None
    assert fitted(epochs.run(1, 1000, 1)) is not None


def test_costs_are_found_once_the_rows_of_shards_differ() -> None:
    epochs = Epochs(per_row={"totals": 2e-4}, fixed=0.05)
    epochs.run(8, 1000, 1)
    (operator,) = estimate_of(epochs.history).operators
    # Nothing has varied: nearly all of it counts as work.
    assert operator.line.per_row == pytest.approx((0.25 - OPENING) / 1000)
    epochs.run(8, 3000, 1)
    (operator,) = estimate_of(epochs.history).operators
    assert operator.line.per_row == pytest.approx(2e-4)
    assert operator.line.fixed == pytest.approx(0.05)
    assert operator.true_rate == pytest.approx(5000)


def test_the_first_change_of_shards_corrects_the_costs() -> None:
    """DS2 expects twice the shards to halve the time; here most of it is fixed."""
    epochs = Epochs(per_row={"totals": 1e-4}, fixed=0.4)
    before = estimate_of(epochs.run(8, 4000, 1))
    assert before.with_shards(2).load == pytest.approx(before.now().load / 2, rel=0.06)
    after = estimate_of(epochs.run(8, 4000, 2))
    assert after.operators[0].line.per_row == pytest.approx(1e-4)
    assert after.operators[0].line.fixed == pytest.approx(0.4)


def test_loads_of_operators_add_up_because_their_stages_follow_each_other() -> None:
    epochs = Epochs(per_row={"a": 1e-4, "b": 3e-4}, fixed=0.0)
    epochs.run(6, 1000, 2)
    estimate = estimate_of(epochs.run(12, 2000, 2))
    assert estimate.now().load == pytest.approx(2000 * 4e-4 / 2, rel=0.01)
    assert estimate.with_shards({"a": 1, "b": 2}).load == pytest.approx(
        2000 * (1e-4 + 1.05 * 3e-4 / 2), rel=0.01
    )


def test_a_hot_key_group_bounds_what_shards_can_do() -> None:
    epochs = Epochs(hot={"totals": (HotGroup(3, 0.4),)})
    estimate = estimate_of(epochs.run(10, 5000, 4, heaviest={"totals": 0.4}))
    (operator,) = estimate.operators
    assert operator.share(2) == pytest.approx(0.525)
    assert operator.share(8) == operator.share(64) == 0.4
    assert estimate.with_shards(64).load == pytest.approx(estimate.with_shards(8).load)


def test_a_group_that_is_hot_in_one_epoch_only_is_not_hot() -> None:
    epochs = Epochs()
    epochs.run(7, 1000, 2)
    epochs.hot = {"totals": (HotGroup(9, 0.9),)}
    assert estimate_of(epochs.run(1, 1000, 2)).operators[0].floor == 0.0


def one(line: Line, rate: float, trigger: float = 0.0, rest: float = 0.2) -> Estimate:
    operator = OperatorEstimate("o", 1, rate, rate, line, 1.0)
    return Estimate((operator,), Line(rest, 0.0), rate, rate, trigger, 1, True)


def test_epochs_back_to_back_grow_with_the_load() -> None:
    estimate = one(Line(0.1, 1e-4), 5000)
    outcome = estimate.now()
    assert outcome.load == pytest.approx(0.5)
    # An epoch has the rows of one as long as itself: t = 0.3 + 0.5 t.
    assert outcome.epoch == pytest.approx(0.6)
    assert outcome.latency == pytest.approx(1.2)
    assert one(Line(0.1, 1e-4), 10_000).now().latency == math.inf


def test_behind_a_trigger_epochs_have_the_rows_of_the_trigger() -> None:
    outcome = one(Line(0.1, 1e-4), 5000, trigger=2.0).now()
    assert outcome.epoch == pytest.approx(0.3 + 0.5 * 2)
    assert outcome.latency == pytest.approx(2 + 1.3)
    # Too long for its trigger: as if there were none.
    assert one(Line(0.1, 1e-4), 9000, trigger=0.5).now().epoch == pytest.approx(3.0)


def test_a_backlog_adds_to_the_demand() -> None:
    epochs = Epochs()
    epochs.run(12, 1000, 1)
    settings = Settings(catch_up=10.0)
    estimate = estimate_of(epochs.run(1, 1000, 1, backlog=20_000), settings)
    assert estimate.rate == pytest.approx(1000)
    assert estimate.demand == pytest.approx(3000)
    assert estimate.operators[0].demand == pytest.approx(3000)


def test_epochs_that_are_too_long_for_the_latency_are_a_backlog_too() -> None:
    epochs = Epochs()
    epochs.run(12, 1000, 1)
    epochs.run(1, 10_000, 1, interval=10.0)
    assert estimate_of(epochs.history).demand == pytest.approx(1000)
    late = estimate_of(epochs.history, Settings(latency=2.0, catch_up=10.0))
    assert late.demand == pytest.approx(1000 + 10_000 * (1 - 0.8 / 10) / 10)


def test_peaks_and_how_long_it_has_been_low() -> None:
    epochs = Epochs()
    epochs.run(60, 4000, 2)
    epochs.run(30, 1000, 2)
    assert peak(epochs.history, 20) == pytest.approx(1.0)
    assert peak(epochs.history, 60) == pytest.approx(4.0)
    assert low_for(epochs.history, 20, 1.0) == pytest.approx(30)
    assert low_for(epochs.history, 20, 4.0) == pytest.approx(90)


def test_spans_sum_up_short_epochs_and_are_bounded() -> None:
    epochs = Epochs()
    history = epochs.run(100, 100, 1, interval=0.1)
    assert sum(span.epochs for span in history.spans) == 100
    assert len(history.spans) <= 11
    assert sum(span.rows for span in history.spans) == 10_000
    two = epochs.run(1, 100, 2, interval=0.1)
    assert two.spans[-1].operators["totals"].parallelism == 2
    assert two.spans[-1].epochs == 1
    assert two.epochs_since == 1
    assert len(epochs.run(KEPT_SPANS + 50, 100, 1).spans) == KEPT_SPANS
