"""Autoscaling over simulated loads: rows in time, no oscillation, and about an oracle's cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import mean

import pytest
from tests.stress import few

from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.autoscale.settings import Settings
from millrace_lab.autoscaling.comparing import LATENCY, one
from millrace_lab.autoscaling.simulated import Outcome, World, fixed, scaled_by

SETTINGS = Settings(min=1, max=16, target=0.7, latency=LATENCY)
SECONDS = 600.0
LONGEST_LATE = 60.0
"""Seconds: executors take up to 8 s to start and key groups up to 2 s to move, on top of the time
in which a load is noticed; what has piled up by then takes as long again."""


def runs(shape: str, seeds: range, world: World, settings: Settings = SETTINGS) -> list[Outcome]:
    return [one(shape, s, scaled_by(settings), settings, world, 1, SECONDS)[0] for s in seeds]


def turns(acts: tuple[Decision, ...]) -> int:
    """How often more shards follow fewer, or fewer more."""
    signs = [
        sum(a.parallelism.values()) > sum(a.before.values())
        for a in acts
        if a.parallelism != a.before
    ]
    return sum(a != b for a, b in itertools.pairwise(signs))


@pytest.mark.parametrize("seeds", few([range(1), range(8)], range(1)), ids=len)
@pytest.mark.parametrize("shape", ["constant", "steps", "stairs", "day"])
@pytest.mark.parametrize("trigger", few([0.0, 1.0], 0.0))
def test_rows_in_time_at_about_the_cost_of_an_oracle(
    shape: str, seeds: range, trigger: float
) -> None:
    world = World(trigger=trigger)
    # A load that lasts for minutes: what is paid until it is noticed is paid once.
    found = [one(shape, s, scaled_by(SETTINGS), SETTINGS, world, 1) for s in seeds]
    for seed, (outcome, _) in zip(seeds, found, strict=True):
        assert outcome.longest_late <= LONGEST_LATE, (seed, outcome)
    most = 1.15 if len(seeds) > 1 else 1.3
    assert mean(outcome.cost / oracle for outcome, oracle in found) <= most


@pytest.mark.parametrize("seeds", few([range(2), range(2, 20)], range(2)), ids=len)
def test_a_constant_load_is_left_alone(seeds: range) -> None:
    for seed, outcome in zip(seeds, runs("constant", seeds, World()), strict=True):
        # A load on the edge between two numbers may be tried with the smaller one twice.
        assert turns(outcome.acts) <= 4, (seed, outcome.acts)


def test_a_step_up_and_down_is_two_changes_of_direction_at_most() -> None:
    for outcome in runs("steps", range(3), World()):
        assert turns(outcome.acts) <= 2, outcome.acts
        assert all(act.reason for act in outcome.acts)


def test_others_cost_more_or_are_late() -> None:
    scaled, oracle = one("steps", 1, scaled_by(SETTINGS), SETTINGS, World(), 1)
    most, _ = one("steps", 1, fixed, SETTINGS, World(), SETTINGS.max)
    least, _ = one("steps", 1, fixed, SETTINGS, World(), SETTINGS.min)
    threshold = replace(SETTINGS, policy="threshold")
    split, _ = one("steps", 1, scaled_by(threshold), SETTINGS, World(), 1)
    assert most.cost > 4 * oracle
    assert least.longest_late > 10 * LONGEST_LATE
    assert split.late > scaled.late


def test_a_source_with_a_limit_shows_its_backlog() -> None:
    world = World(rate_limit=8000)
    for outcome in runs("steps", range(2), world):
        assert outcome.history[-1].backlog == 0
        assert max(shards for _, shards in outcome.shards) > 1


def test_a_backlog_that_nobody_tells_of_is_worked_off() -> None:
    """A source of files with a limit: the rate that is seen is what the query can take."""
    world = World(rate_limit=8000, tells=False)
    for outcome in runs("steps", range(2), world):
        assert {seen.backlog for seen in outcome.history} == {None}
        # By the rate that is seen, two would be enough.
        assert max(shards for _, shards in outcome.shards) > 4
        assert not outcome.history[-1].full
        assert outcome.shards[-1][1] < 4


def test_a_hot_key_group_is_isolated_before_executors_are_bought() -> None:
    settings = replace(SETTINGS, min=3)
    for seed in range(2):
        world = World(hot=0.3)
        outcome, _ = one("steps", seed, scaled_by(settings), settings, world, 3, SECONDS)
        first = outcome.acts[0]
        assert first.action == "rebalance", outcome.acts
        assert "key group 7 gets a shard to itself" in first.reason
        # A third of the rows is a shard's, however many others there are.
        assert max(shards for _, shards in outcome.shards) <= 5, outcome.acts


def test_a_cluster_that_gives_no_more_is_used_in_full() -> None:
    for outcome in runs("steps", range(2), World(cores=2)):
        assert max(shards for _, shards in outcome.shards) == 2
