"""Whatever epochs show, a decision is within its limits, has a reason, and can be read again."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.reconfigure.autoscale.deciding import decide
from millrace.reconfigure.autoscale.estimate import estimated, fitted
from millrace.reconfigure.autoscale.history import Decision, History
from millrace.reconfigure.autoscale.observing import (
    HotGroup,
    Observation,
    OperatorLoad,
    ShardLoad,
)
from millrace.reconfigure.autoscale.recording import lines_of, read_lines
from millrace.reconfigure.autoscale.settings import Settings

seconds = st.floats(0, 1e4, allow_nan=False)
rows = st.integers(0, 10**9)
shares = st.floats(0, 1, allow_nan=False)

shards = st.lists(st.builds(ShardLoad, rows, seconds), min_size=1, max_size=3).map(tuple)
groups = st.lists(st.builds(HotGroup, st.integers(0, 15), shares), max_size=1).map(tuple)


@st.composite
def epochs(draw: Any) -> list[Observation]:
    """A past in which anything may happen: idle epochs, clocks that stand still, lost executors."""
    names = draw(st.sampled_from([("a",), ("a", "b")]))
    at, found = 1000.0, []
    for number in range(draw(st.integers(1, 8))):
        at += draw(st.sampled_from([0.0, 0.1, 1.0, 7.0, 100.0]))
        loads = tuple(OperatorLoad(name, draw(shards), draw(groups)) for name in names)
        found.append(
            Observation(
                number + 1,
                at,
                draw(seconds),
                draw(seconds),
                draw(rows),
                loads,
                draw(st.sampled_from([0.0, 1.0, 10.0])),
                draw(st.none() | rows),
                draw(st.none() | seconds),
                draw(st.booleans()),
                draw(st.integers(0, 8)),
                draw(st.integers(0, 8)),
                draw(st.none() | st.integers(0, 8)),
                draw(st.booleans()),
                draw(rows),
            )
        )
    return found


settings = st.builds(
    lambda low, more, target, policy, latency: Settings(
        min=low,
        max=low + more,
        target=target,
        policy=policy,
        latency=1.0 if policy == "latency" else latency,
        schedule=((0.0, low), (43_200.0, low + more)) if policy == "schedule" else (),
    ),
    st.integers(1, 4),
    st.integers(0, 12),
    st.floats(0.05, 0.95),
    st.sampled_from(["model", "latency", "threshold", "schedule"]),
    st.none() | st.floats(0.1, 60.0),
)


@given(epochs(), settings)
def test_decisions_are_within_limits_and_have_reasons(
    past: list[Observation], given_settings: Settings
) -> None:
    history = History()
    for observation in past:
        history = history.add(observation)
        decision = decide(given_settings, history)
        assert decision.reason
        assert decision.before == observation.parallelism
        assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
        if decision.acts:
            for count in decision.parallelism.values():
                assert given_settings.min <= count <= given_settings.max
            assert (decision.parallelism == decision.before) == (decision.action == "rebalance")
        else:
            assert decision.parallelism == decision.before
        history = history.decided(decision)
    assert decide(given_settings, history) == decide(given_settings, history)


@given(epochs())
def test_more_shards_are_never_expected_to_be_worse(past: list[Observation]) -> None:
    history = History()
    for observation in past:
        history = history.add(observation)
    costs = fitted(history)
    if costs is None:
        return
    estimate = estimated(history, Settings(latency=2.0), costs)
    outcomes = [estimate.with_shards(n) for n in range(2, 10)]
    for few, many in itertools.pairwise(outcomes):
        assert many.load <= few.load * (1 + 1e-9)
        assert many.latency <= few.latency * (1 + 1e-9)


@given(epochs())
def test_observations_survive_their_file(past: list[Observation]) -> None:
    assert read_lines(lines_of(past), "a file") == past
