"""The schedule of a soak: the same for a seed, and complete."""

from __future__ import annotations

from itertools import islice

from millrace import hooks
from millrace_lab.faults import crashes
from millrace_lab.faults.faulty import Faults
from millrace_lab.soak.schedule import WEIGHTS, Schedule

KINDS = list(WEIGHTS)


def test_a_seed_is_a_schedule() -> None:
    one, same, other = (Schedule(seed, KINDS, 3) for seed in (7, 7, 8))
    acts = list(islice(one.acts(), 50))
    assert list(islice(same.acts(), 50)) == acts
    assert list(islice(other.acts(), 50)) != acts
    # Lives are drawn apart from acts: a driver that ends earlier does not change what is done.
    lives = [one.life() for _ in range(20)]
    assert [same.life() for _ in range(20)] == lives


def test_every_kind_comes_before_any_comes_twice() -> None:
    kinds = [act.kind for act in islice(Schedule(3, KINDS, 3).acts(), len(KINDS))]
    assert sorted(kinds) == sorted(KINDS)


def test_only_the_kinds_that_were_asked_for() -> None:
    acts = islice(Schedule(3, KINDS[:2], 3).acts(), 100)
    assert {act.kind for act in acts} == set(KINDS[:2])


def test_all_named_points_are_reached_in_time() -> None:
    schedule = Schedule(1, KINDS, 3)
    planned = {life.crash for life in (schedule.life() for _ in range(60))} - {""}
    points = {(crash.partition("@")[0], crash.rpartition(":")[2]) for crash in planned}
    assert points >= {(point, "driver") for point in crashes.DRIVER_POINTS}
    for victim in ("executor", "worker"):
        assert points >= {(point, victim) for point in hooks.SHARD_POINTS}


def test_faults_can_be_read_by_the_store() -> None:
    schedule = Schedule(1, KINDS, 3)
    texts = [text for text in (schedule.life().faults for _ in range(30)) if text]
    assert len(texts) > 10
    assert all(Faults.parse(text).error < 0.05 for text in texts)
