"""The director, one decision at a time. Whole schedules are in tests/simulation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.errors import StoreError, UsageError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log.manifest import seal
from millrace.log.store import open_store
from millrace.reconfigure.cluster import (
    Allowance,
    DirectorOptions,
    Executor,
    Followed,
    ToFollow,
)
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Answer, Requests
from millrace.reconfigure.strategies import STRATEGIES

OP, OTHER = OperatorName("op"), OperatorName("other")
GROUPS = 16


class Executors:
    """Executors that follow whatever they are asked to, at once, and are what a test says."""

    is_local = False

    def __init__(self, *names: str, cores: int = 1) -> None:
        self.cores = cores
        self.names = list(names)
        self.failing: Exception | None = None
        self.elsewhere: str | None = None
        self.rounds: list[tuple[int, Any]] = []
        self.asked = 0
        self.released: list[str] = []

    def alive(self) -> tuple[Executor, ...]:
        return tuple(Executor(name, "host", self.cores) for name in self.names)

    def request(self, total: int) -> bool:
        self.asked = total
        return True

    def release(self, names: Sequence[str]) -> bool:
        self.released += names
        return True

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None: ...

    def follow(
        self, version: Epoch, to_follow: ToFollow, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        self.rounds.append((version, to_follow))
        if self.failing is not None:
            raise self.failing
        return [
            Followed(operator, self.elsewhere or name, tuple(groups), version, 100)
            for name, operators in to_follow.items()
            for operator, groups in operators.items()
        ]


class Stage:
    """A director, and epochs at the touch of a button."""

    def __init__(self, folder: Path, cluster: Executors, shards: int = 2, **options: Any) -> None:
        self.cluster = cluster
        self.requests = Requests(open_store(str(folder)))
        self.shards = {OP: shards}
        self.epoch = Epoch(0)
        self.options = DirectorOptions(**options)
        self.director = self.start({OP: Assignment.even(GROUPS, shards)})

    def start(self, assignments: Mapping[OperatorName, Assignment]) -> Director:
        return Director(self.cluster, self.requests, "run", assignments, self.options)

    def run(self, *, follow: bool = True) -> Assignment:
        """One epoch, with a round of following after it."""
        assignments, _ = self.director.before_epoch(self.epoch)
        self.epoch = Epoch(self.epoch + 1)
        rows = {name: np.ones(GROUPS) for name in assignments}
        self.director.after_epoch(self.epoch, 0.1, rows)
        if follow and self.director.has_work():
            self.director.follow_once()
        return assignments[OP]

    def settle(self, epochs: int = 10) -> Assignment:
        for _ in range(epochs):
            last = self.run()
        return last

    def answer(self, id_: str) -> Answer | None:
        return self.requests.answered(id_)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Executors("a", "b", "c", "d"))


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "restart"])
def test_a_rescale_is_carried_out(stage: Stage, strategy: str) -> None:
    before = stage.run()
    move = stage.director.submit("rescale", strategy, parallelism=4)
    after = stage.settle(20)
    assert move.wait(0).state == "done"
    assert after.shards == 4
    assert set(after.executors) == {"a", "b", "c", "d"}
    report = move.report
    assert report.key_groups == 8
    assert report.shards == {OP: (2, 4)}
    assert report.bytes > 0
    answer = stage.answer(move.id)
    assert answer is not None
    assert answer.state == "done"
    assert answer.report["key_groups"] == 8
    kept = sum(
        before.executor_of(before.owners[g]) == after.executor_of(after.owners[g])
        for g in range(GROUPS)
    )
    assert kept == 8


def test_live_does_not_flip_before_it_has_followed(stage: Stage) -> None:
    before = stage.run()
    stage.director.submit("rescale", "live", parallelism=4)
    assert stage.run(follow=False) == before
    assert stage.run(follow=False) == before
    assert stage.run() == before
    assert stage.run().shards == 4


def test_executors_without_shards_are_warmed_up_once(stage: Stage) -> None:
    stage.run()
    ((_, to_follow),) = stage.cluster.rounds
    busy = set(stage.director.assignments().popitem()[1].executors)
    assert to_follow == {e.name: {} for e in stage.cluster.alive() if e.name not in busy}
    stage.run()
    assert len(stage.cluster.rounds) == 1


def test_pause_follows_before_the_epoch(stage: Stage) -> None:
    stage.run()
    stage.cluster.rounds.clear()
    stage.director.submit("rescale", "pause", parallelism=4)
    assert stage.run(follow=False).shards == 4
    ((version, to_follow),) = stage.cluster.rounds
    assert version == 1
    assert sum(len(groups) for part in to_follow.values() for groups in part.values()) == 8


@pytest.mark.parametrize("strategy", ["pause", "fluid"])
def test_an_epoch_does_not_fail_because_following_does(stage: Stage, strategy: str) -> None:
    stage.run()
    stage.cluster.failing = StoreError("no network")
    move = stage.director.submit("rescale", strategy, parallelism=4)
    for _ in range(16):
        last = stage.run(follow=False)
    assert last.shards == 4
    assert move.wait(0).state == "done"


@pytest.mark.parametrize("strategy", ["pause", "fluid"])
def test_an_epoch_does_not_wait_for_an_executor_that_is_gone(stage: Stage, strategy: str) -> None:
    """What is meant for it then runs, and is reported, elsewhere."""
    stage.run()
    stage.cluster.elsewhere = "a"
    move = stage.director.submit("rescale", strategy, parallelism=4)
    for _ in range(16):
        stage.run(follow=False)
    assert move.wait(0).state == "done"


def test_restart_waits_for_the_restart(stage: Stage) -> None:
    before = stage.run()
    move = stage.director.submit("rescale", "restart", parallelism=3)
    assert stage.run() == before
    assert stage.director.restarting.is_set()
    assert move.is_open
    stage.director.adopt()
    assert not stage.director.restarting.is_set()
    assert stage.run().shards == 3
    assert move.wait(0).state == "done"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_rounds_every_move_is_a_restart(tmp_path: Path, strategy: str) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c"), restarts_only=True)
    before = stage.run()
    # A new executor would get warm by a round.
    stage.cluster.names.append("d")
    move = stage.director.submit("rescale", strategy, parallelism=4)
    assert stage.run() == before
    assert stage.director.restarting.is_set()
    stage.director.adopt()
    assert stage.run().shards == 4
    assert move.wait(0).state == "done"
    assert stage.cluster.rounds == []


def test_a_request_during_a_restart_is_not_taken_for_done(stage: Stage) -> None:
    stage.run()
    first = stage.director.submit("rescale", "restart", parallelism=3)
    stage.run()
    second = stage.director.submit("rescale", "live", parallelism=4)
    stage.run()
    stage.director.adopt()
    stage.run(follow=False)
    assert first.state == "superseded"
    assert second.is_open
    assert stage.settle().shards == 4
    assert second.wait(0).state == "done"


def test_a_restart_whose_executors_died_meanwhile_is_planned_again(stage: Stage) -> None:
    stage.run()
    move = stage.director.submit("rescale", "restart", parallelism=4)
    stage.run()
    stage.cluster.names.remove("d")
    stage.run()
    stage.director.adopt()
    for _ in range(3):
        stage.run()
        if stage.director.restarting.is_set():
            stage.director.adopt()
    last = stage.run()
    assert last.shards == 4
    assert set(last.executors) == {"a", "b", "c"}
    assert move.wait(0).state == "done"


def test_the_newest_request_wins(stage: Stage) -> None:
    stage.run()
    moves = [stage.director.submit("rescale", "live", parallelism=n) for n in (3, 4)]
    stage.run(follow=False)
    moves.append(stage.director.submit("rescale", "live", parallelism=1))
    assert stage.settle().shards == 1
    assert [m.state for m in moves] == ["superseded", "superseded", "done"]
    assert moves[0].reason == f"by request {moves[1].id}"
    for move in moves:
        answer = stage.answer(move.id)
        assert answer is not None
        assert answer.state == move.state


def test_a_cancelled_rescale_stays_cancelled(stage: Stage) -> None:
    before = stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    move.cancel()
    assert stage.settle() == before
    assert stage.director.under_way is None
    answer = stage.answer(move.id)
    assert answer is not None
    assert answer.state == "cancelled"


def test_a_cancelled_fluid_rescale_leaves_what_has_moved(stage: Stage) -> None:
    stage.run()
    move = stage.director.submit("rescale", "fluid", parallelism=4)
    half = [stage.run() for _ in range(3)][-1]
    assert move.is_open
    move.cancel()
    assert stage.settle() == half
    assert move.report.key_groups == 3


def test_a_rescale_that_is_superseded_by_a_move_does_not_come_back(stage: Stage) -> None:
    stage.run()
    stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    move = stage.director.submit("move", "live", key_groups=[0], to="b")
    after = stage.settle()
    assert move.wait(0).state == "done"
    assert after.shards == 2
    assert after.executor_of(after.owners[0]) == "b"


def test_a_cancel_from_elsewhere(stage: Stage) -> None:
    stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    cancel = stage.requests.submit("cancel", request=move.id)
    again = stage.requests.submit("cancel", request=move.id)
    stage.director.poll()
    assert move.state == "cancelled"
    states = {}
    for request in (cancel, again):
        answer = stage.answer(request.id)
        assert answer is not None
        states[answer.state] = answer.reason
    assert states["done"] == ""
    assert "is cancelled already" in states["refused"]


def test_following_that_keeps_failing_refuses_the_move_for_good(stage: Stage) -> None:
    before = stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    for _ in range(3):
        stage.director.follow_failed(StoreError("no network"))
    assert move.state == "refused"
    assert "following failed 3 times: no network" in move.reason
    assert stage.settle() == before


def test_failures_between_successes_do_not_add_up(stage: Stage) -> None:
    stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    stage.cluster.elsewhere = "a"
    for _ in range(4):
        stage.run()
        stage.director.follow_failed(StoreError("a hiccup"))
    assert move.is_open
    stage.cluster.elsewhere = None
    assert stage.settle().shards == 4


def test_lazy_is_done_even_if_the_rest_cannot_be_fetched_ahead(stage: Stage) -> None:
    stage.run()
    move = stage.director.submit("rescale", "lazy", parallelism=4)
    assert stage.run(follow=False).shards == 4
    for _ in range(3):
        stage.director.follow_failed(StoreError("no network"))
    assert move.state == "done"
    assert stage.settle().shards == 4


@pytest.mark.parametrize("only", [[0, 1, 2, 3, 4, 5, 6, 7], [0, 3]])
def test_a_move_is_not_healed_away(stage: Stage, only: list[int]) -> None:
    """Also if it empties a shard, or opens one."""
    stage.run()
    for to in ("b", "d"):
        move = stage.director.submit("move", "live", key_groups=only, to=to)
        after = stage.settle()
        assert move.wait(0).state == "done"
        assert {after.executor_of(after.owners[g]) for g in only} == {to}


def test_moving_what_is_there_already_moves_nothing(stage: Stage) -> None:
    before = stage.run()
    move = stage.director.submit("move", "pause", key_groups=[0, 1], to="a")
    assert stage.settle() == before
    assert move.wait(0).report.key_groups == 0


def test_a_drained_executor_gets_nothing_until_undrained(stage: Stage) -> None:
    stage.run()
    drain = stage.director.submit("drain", "live", executor="a")
    after = stage.settle()
    assert drain.wait(0).state == "done"
    assert "a" not in after.executors
    assert after.shards == 2
    with pytest.raises(UsageError, match="a is drained"):
        stage.director.submit("move", "live", key_groups=[0], to="a")
    stage.director.submit("rescale", "live", parallelism=4)
    assert "a" not in stage.settle().executors
    stage.director.submit("undrain", "live", executor="a")
    assert set(stage.settle().executors) == {"a", "b", "c", "d"}


def test_a_drain_that_is_cancelled_leaves_the_executor_open(stage: Stage) -> None:
    before = stage.run()
    drain = stage.director.submit("drain", "live", executor="a")
    stage.run(follow=False)
    drain.cancel()
    assert stage.settle() == before


def test_the_last_executor_cannot_be_drained(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b"))
    stage.run()
    stage.director.submit("drain", "pause", executor="a")
    stage.run()
    with pytest.raises(UsageError, match="b is the only executor that is left"):
        stage.director.submit("drain", "pause", executor="b")


def test_a_drain_whose_other_executors_died_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b"))
    stage.run()
    move = stage.director.submit("drain", "live", executor="a")
    stage.cluster.names.remove("b")
    assert set(stage.run().executors) == {"a"}
    assert move.state == "refused"
    assert "a is the only executor that is left" in move.reason


def test_a_lost_executor_is_replaced_at_once_and_healed_later(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c"), shards=3)
    before = stage.run()
    stage.cluster.names.remove("b")
    after = stage.run()
    assert set(after.executors) == {"a", "c"}
    for group in range(GROUPS):
        old = before.executor_of(before.owners[group])
        if old != "b":
            assert after.executor_of(after.owners[group]) == old
    assert stage.settle() == after
    stage.cluster.names.append("e")
    assert set(stage.settle().executors) == {"a", "c", "e"}


def test_the_parallelism_that_lacks_executors_is_unmet(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c"), shards=3)
    stage.run()
    assert stage.director.unmet_parallelism() == {}
    stage.cluster.names.remove("b")
    assert stage.run().shards == 2
    assert stage.director.unmet_parallelism() == {OP: 3}
    # A rescale under way is a request without an answer: the next driver has it from there.
    move = stage.director.submit("rescale", "live", parallelism=1)
    stage.run(follow=False)
    assert (move.state, stage.director.unmet_parallelism()) == ("moving", {})
    move.cancel()
    assert stage.director.unmet_parallelism() == {OP: 3}
    stage.cluster.names.append("e")
    assert stage.settle().shards == 3
    assert stage.director.unmet_parallelism() == {}


def test_executors_that_come_late_get_their_share(tmp_path: Path) -> None:
    """A query that starts before its executors are all up does not stay on the first."""
    stage = Stage(tmp_path, Executors("a"), shards=4)
    assert stage.run().executors == ("a",) * 4
    stage.cluster.names += ["b", "c", "d"]
    after = stage.settle()
    assert set(after.executors) == {"a", "b", "c", "d"}
    assert stage.settle() == after


def test_an_idle_standby_takes_over_what_it_follows(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c"), shards=2, standby=1)
    before = stage.settle(4)
    assert set(before.executors) == {"a", "b"}
    lost = [g for g, shard in enumerate(before.owners) if before.executor_of(shard) == "a"]
    stage.cluster.names.remove("a")
    after = stage.run()
    # The very next epoch: nobody has more to do than before, and nobody opens further key groups.
    assert after.shards == 2
    assert [g for g, s in enumerate(after.owners) if after.executor_of(s) == "c"] == lost
    kept = [g for g, s in enumerate(after.owners) if after.executor_of(s) == "b"]
    assert kept == [g for g in range(GROUPS) if g not in lost]


def test_an_idle_standby_takes_over_from_the_only_owner(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b"), shards=1, standby=1)
    assert stage.settle(4).executors == ("a",)
    stage.cluster.names.remove("a")
    assert stage.run().executors == ("b",)


def test_a_standby_takes_over_without_following(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c"), shards=3, standby=1)
    before = stage.settle(3)
    followed = {
        (name, group)
        for _, to_follow in stage.cluster.rounds
        for name, operators in to_follow.items()
        for group in operators[OP]
    }
    stage.cluster.names.remove("a")
    after = stage.run(follow=False)
    for group in range(GROUPS):
        if before.executor_of(before.owners[group]) == "a":
            assert (after.executor_of(after.owners[group]), group) in followed


def test_without_executors_shards_run_anywhere_until_some_come(stage: Stage) -> None:
    stage.run()
    stage.cluster.names.clear()
    assert stage.run().executors == ()
    stage.cluster.names.append("z")
    assert set(stage.run().executors) == {"z"}


@pytest.mark.parametrize(
    ("kind", "details", "reason"),
    [
        ("rescale", {"parallelism": 0, "strategy": "live"}, "parallelism=0"),
        ("rescale", {"parallelism": 17, "strategy": "live"}, "parallelism=17"),
        ("rescale", {"parallelism": "4", "strategy": "live"}, "parallelism='4'"),
        ("rescale", {"strategy": "live"}, "parallelism=None"),
        ("rescale", {"parallelism": 2, "strategy": "teleport"}, "no such strategy"),
        ("rescale", {"parallelism": 2, "strategy": "live", "operator": "x"}, "no operator 'x'"),
        ("move", {"key_groups": [], "to": "a", "strategy": "live"}, "names no key group"),
        ("move", {"key_groups": [16], "to": "a", "strategy": "live"}, r"names \[16\]"),
        ("move", {"key_groups": [True], "to": "a", "strategy": "live"}, r"names \[True\]"),
        ("move", {"key_groups": [1], "to": "z", "strategy": "live"}, "no executor 'z'"),
        ("drain", {"executor": "z", "strategy": "live"}, "no executor 'z'"),
        ("drain", {"executor": "a", "strategy": "teleport"}, "no such strategy"),
        ("undrain", {"strategy": "live"}, "no executor None"),
        ("cancel", {}, "nothing to cancel"),
        ("cancel", {"request": "17"}, "'17' is not known"),
        ("rescale", {"parallelism": 2, "operator": ["op"]}, r"no operator \['op'\]"),
        ("move", {"key_groups": [1], "to": ["a"]}, r"no executor \['a'\]"),
        ("drain", {"executor": {}}, "no executor {}"),
        ("explode", {"strategy": "live"}, "no request of kind 'explode'"),
    ],
)
def test_what_cannot_be_is_refused_and_harms_nothing(
    stage: Stage, kind: str, details: dict[str, Any], reason: str
) -> None:
    before = stage.run()
    request = stage.requests.submit(kind, **details)
    stage.director.poll()
    answer = stage.answer(request.id)
    assert answer is not None
    assert answer.state == "refused"
    assert re.search(reason, answer.reason)
    assert stage.settle(3) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}\nnonsense\n", "is damaged"),
        (seal({"format": 99})[0], "has format 99"),
        (seal({})[0], "malformed"),
        (seal({"format": "1"})[0], "malformed"),
        (seal({"format": 1, "kind": "rescale", "details": {}})[0], "malformed"),
        (
            seal({"format": 1, "kind": 3, "created": 0, "details": {}})[0],
            "'kind' of the file is 3",
        ),
        (seal({"format": 1, "kind": "drain", "created": 0, "details": []})[0], "malformed"),
        (seal([1])[0], "malformed"),  # type: ignore[arg-type]
    ],
)
def test_a_request_that_cannot_be_read_is_refused_and_others_are_served(
    stage: Stage, content: bytes, reason: str
) -> None:
    stage.run()
    open_store(stage.requests.url).put("requests/0000000000001-bad.json", content)
    good = stage.requests.submit("rescale", parallelism=3, strategy="pause")
    stage.director.poll()
    assert stage.run().shards == 3
    answer = stage.answer("0000000000001-bad")
    assert answer is not None
    assert answer.state == "refused"
    assert re.search(reason, answer.reason)
    answer = stage.answer(good.id)
    assert answer is not None
    assert answer.state == "done"


@pytest.mark.parametrize("name", ["0 copy.json", "._0.json", "0.json.bak", ".json", "notes.txt"])
def test_files_that_are_no_requests_are_ignored(stage: Stage, name: str) -> None:
    stage.run()
    open_store(stage.requests.url).put(f"requests/{name}", seal({"format": 1})[0])
    good = stage.requests.submit("rescale", parallelism=3, strategy="pause")
    stage.director.poll()
    assert stage.run().shards == 3
    assert stage.requests.ids() == [good.id]
    assert not [p for p in open_store(stage.requests.url).list("requests") if "copy.answer" in p]


def test_a_request_whose_check_fails_is_taken_up_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because Spark did not answer when asked for its executors."""
    stage.run()
    request = stage.requests.submit("rescale", parallelism=3, strategy="pause")

    def failing() -> tuple[Executor, ...]:
        raise RuntimeError("no answer from the JVM")

    with monkeypatch.context() as patch:
        patch.setattr(stage.cluster, "alive", failing)
        with pytest.raises(RuntimeError, match="JVM"):
            stage.director.poll()
    assert stage.answer(request.id) is None
    stage.director.poll()
    assert stage.run().shards == 3


def test_what_was_withdrawn_is_not_carried_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if whoever asked withdrew it just when the driver saw it."""
    before = stage.run()
    request = stage.requests.submit("rescale", parallelism=3, strategy="pause")
    take = stage.requests.take

    def withdrawn(*arguments: Any) -> None:
        stage.requests.answer(request.id, Answer("cancelled", "no running query took it"))
        take(*arguments)

    monkeypatch.setattr(stage.requests, "take", withdrawn)
    stage.director.poll()
    assert stage.settle(3) == before


@pytest.mark.parametrize("error", [StoreError("no network"), RuntimeError("no network")])
def test_an_answer_that_cannot_be_written_is_written_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stage.run()
    first = stage.director.submit("rescale", "pause", parallelism=3)
    answer = stage.requests.answer
    failures = iter((True, True))

    def failing(id_: str, given: Answer) -> bool:
        if next(failures, False):
            raise error
        return answer(id_, given)

    monkeypatch.setattr(stage.requests, "answer", failing)
    stage.run()
    second = stage.director.submit("rescale", "pause", parallelism=4)
    stage.run()
    assert first.wait(0).state == "done"
    assert second.wait(0).state == "done"
    stage.director.poll()
    for move in (first, second):
        found = stage.answer(move.id)
        assert found is not None
        assert found.state == "done"


def test_requests_outlive_the_driver(stage: Stage) -> None:
    stage.run()
    request = stage.requests.submit("rescale", parallelism=4, strategy="live")
    stage.director.poll()
    stage.run(follow=False)
    stage.director.close()
    assert stage.answer(request.id) is None
    stage.director = stage.start(stage.director.assignments())
    stage.director.poll()
    assert stage.settle().shards == 4
    answer = stage.answer(request.id)
    assert answer is not None
    assert answer.state == "done"


def test_operators_of_different_parallelism(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c", "d"))
    stage.director = stage.start(
        {OP: Assignment.even(GROUPS, 2), OTHER: Assignment.even(GROUPS, 3)}
    )
    stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4, operator="other")
    stage.settle()
    assert move.wait(0).report.shards == {OTHER: (3, 4)}
    now = stage.director.assignments()
    assert (now[OP].shards, now[OTHER].shards) == (2, 4)
    stage.director.submit("rescale", "pause", parallelism=1)
    stage.settle(2)
    assert {a.shards for a in stage.director.assignments().values()} == {1}


def test_an_elastic_query_asks_for_executors_and_gives_them_back(tmp_path: Path) -> None:
    cluster = Executors("a", "b")
    stage = Stage(tmp_path, cluster, elastic=True, spare_executors=1)
    before = stage.run()
    move = stage.director.submit("rescale", "live", parallelism=4)
    assert stage.settle(3) == before
    assert cluster.asked == 5
    cluster.names += ["c", "d", "e"]
    assert stage.settle().shards == 4
    assert move.wait(0).state == "done"
    assert cluster.released == []
    stage.director.submit("rescale", "live", parallelism=2)
    assert stage.settle().shards == 2
    assert len(cluster.released) == 2


def test_a_rescale_does_not_wait_for_executors_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("millrace.clock.stopwatch", lambda: seconds[0])
    stage = Stage(tmp_path, Executors("a", "b"), elastic=True)
    stage.run()
    stage.director.submit("rescale", "live", parallelism=4)
    assert stage.settle(3).shards == 2
    seconds[0] = 61.0
    assert stage.settle(3).shards == 4


def test_losing_an_executor_while_waiting_for_others_leaves_following_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, Executors("a", "b", "c", "d"), elastic=True)
    stage.run()
    stage.director.submit("rescale", "live", parallelism=4)
    stage.run(follow=False)
    assert stage.director.has_work()
    stage.cluster.names[:] = ["a", "c"]
    stage.run(follow=False)
    assert not stage.director.has_work()
    stage.cluster.names += ["e", "f"]
    assert stage.settle().shards == 4


@pytest.mark.parametrize("key_groups", [256, 4096])
def test_a_fluid_step_asks_no_more_than_once_per_key_group(
    tmp_path: Path, key_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deciding is part of the epoch: it must not grow with the square of the key groups."""
    from millrace.reconfigure.planner import Plan

    calls = 0
    after = Plan.after

    def counted(self: Plan, moved: frozenset[int]) -> Plan:
        nonlocal calls
        calls += 1
        return after(self, moved)

    cluster = Executors("a", "b", "c", "d")
    stage = Stage(tmp_path, cluster)
    stage.director = stage.start({OP: Assignment.even(key_groups, 2)})
    stage.director.before_epoch(Epoch(0))
    stage.director.submit("rescale", "fluid", parallelism=4)
    monkeypatch.setattr(Plan, "after", counted)
    stage.director.before_epoch(Epoch(1))
    assert 0 < calls < 10
