"""The autoscaler with a real director, on executors that are what a test says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.reconfigure.autoscale.epochs import Epochs
from tests.unit.reconfigure.test_director import OP, Executors, Stage

from millrace.errors import AutoscaleError, CorruptionError, StoreError, UsageError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.log.manifest import seal
from millrace.log.store import Store, open_store
from millrace.reconfigure import cluster
from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.autoscale.observing import Observation, OperatorLoad, ShardLoad
from millrace.reconfigure.autoscale.recording import Records, lines_of, read_lines, replay
from millrace.reconfigure.autoscale.scaler import (
    BUSIEST,
    CHUNK,
    RETRY_SECONDS,
    Autoscaler,
    Scaling,
)
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.autoscale.warm import spare_executors

SETTINGS = Settings(max=8, cool_down=1.0, settle=10.0)


class Scaled:
    """A director, an autoscaler, and epochs of one second each."""

    def __init__(
        self, folder: Path, cluster: Executors, settings: Settings = SETTINGS, **options: Any
    ) -> None:
        self.cluster = cluster
        self.stage = Stage(folder / "requests", cluster, shards=1, **options)
        self.store: Store = open_store(str(folder / "records"))
        self.records = Records(self.store)
        self.scaler = Autoscaler(self.stage.director, settings, self.records)
        self.epochs = Epochs(per_row={OP: 1e-4}, fixed=0.0)

    def run(self, number: int, rows: int) -> int:
        """Run epochs; how many shards there are in the end."""
        for _ in range(number):
            shards = self.stage.run().shards
            cores = sum(e.cores for e in self.cluster.alive())
            self.epochs.run(1, rows, shards, cores=cores, executors=len(self.cluster.names))
            latest = self.epochs.history.latest
            assert latest is not None
            self.scaler.observe(latest)
        return shards

    def changes(self) -> list[dict[str, int]]:
        return [d.parallelism for d in self.scaler.state().decisions if d.acts]


def test_shards_follow_the_load(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors(*"abcdefgh"))
    assert scaled.run(10, 3000) == 1
    assert scaled.run(10, 30_000) == 5
    assert scaled.run(40, 3000) == 1
    assert scaled.changes() == [{OP: 5}, {OP: 1}]
    asked = [scaled.stage.requests.read(id_) for id_ in scaled.stage.requests.ids()]
    assert [r.details["by"] for r in asked] == ["autoscale"] * 2
    assert asked[0].details["reason"].startswith("op 1 to 5: load ")
    assert [d.reason for d in scaled.records.decisions()] == [r.details["reason"] for r in asked]
    text = str(scaled.scaler.state())
    assert "autoscaling by model: on, 1 to 8 shards" in text
    assert "op 1 to 5" in text


def test_processor_time_is_shown_by_executor() -> None:
    def epoch(executors: int, interval: float = 2.0) -> str:
        shards = [ShardLoad(10, 1.0, f"e{i}", (i + 1) / 2) for i in range(executors)]
        # Records of before executors were seen do not have them.
        loads = OperatorLoad("a", (*shards, ShardLoad(1, 1.0))), OperatorLoad("b", tuple(shards))
        seen = Observation(7, 0.0, 1.0, interval, 10, loads)
        return str(Scaling(SETTINGS, True, seen, None, ()))

    assert "processors kept busy: 1.00 on e1, 0.50 on e0" in epoch(2)
    # An epoch that takes longer than rows were coming in.
    assert "processors kept busy: 2.00 on e1, 1.00 on e0" in epoch(2, interval=0.5)
    assert epoch(BUSIEST + 2).endswith("1.50 on e2, 2 more with less")
    assert "processors" not in epoch(0)


def test_switched_off_it_only_says_what_it_would_do(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors(*"abcdefgh"))
    scaled.run(5, 3000)
    scaled.stage.director.submit("autoscale", "live", switch="off")
    assert scaled.run(10, 30_000) == 1
    state = scaled.scaler.state()
    assert not state.on
    assert state.now is not None
    assert state.now.parallelism == {OP: 5}
    # Remembered once, however often it is decided.
    assert scaled.changes() == [{OP: 5}]
    scaled.stage.director.submit("autoscale", "live", switch="on")
    assert scaled.run(5, 30_000) == 5


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors(*"abcdefgh"), Settings(max=8, act=False))
    assert scaled.run(10, 30_000) == 1
    assert scaled.changes() == [{OP: 5}]


def test_a_query_without_autoscaling_cannot_be_switched(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors("a"))
    with pytest.raises(AutoscaleError, match="started without autoscale="):
        stage.director.submit("autoscale", "live", switch="off")
    Scaled(tmp_path / "other", Executors("a"))
    scaled = Scaled(tmp_path / "third", Executors("a"))
    with pytest.raises(UsageError, match="cannot be switched 'sideways'"):
        scaled.stage.director.submit("autoscale", "live", switch="sideways")


def test_somebody_elses_move_is_left_alone(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors(*"abcdefgh"))
    scaled.run(5, 3000)
    scaled.cluster.failing = StoreError("cannot follow")
    move = scaled.stage.director.submit("rescale", "live", parallelism=2)
    for _ in range(5):
        scaled.stage.director.before_epoch(scaled.stage.epoch)
        scaled.epochs.run(1, 50_000, 1, cores=8)
        latest = scaled.epochs.history.latest
        assert latest is not None
        scaled.scaler.observe(latest)
    assert move.is_open
    assert scaled.changes() == []


def test_a_fixed_cluster_is_the_limit(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors("a", "b"))
    scaled.run(5, 3000)
    assert scaled.run(20, 60_000) == 2
    now = scaled.scaler.state().now
    assert now is not None
    assert now.blocked
    assert "2 cores and gives no more; the stream goes on" in now.reason
    (blocked,) = [d for d in scaled.records.decisions() if d.blocked]
    assert blocked.action == "hold"


def test_executors_are_asked_for_and_given_back(tmp_path: Path) -> None:
    cluster = Executors("a")
    scaled = Scaled(tmp_path, cluster, elastic=True)
    scaled.run(5, 3000)
    assert scaled.run(5, 30_000) == 1
    assert cluster.asked == 5
    cluster.names = list("abcde")
    assert scaled.run(5, 30_000) == 5
    assert scaled.run(40, 3000) == 1
    assert sorted(cluster.released) == list("bcde")


def test_executors_that_do_not_come_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", -1.0)
    scaled = Scaled(tmp_path, Executors("a", "b"), elastic=True)
    scaled.run(5, 3000)
    # As many shards as there are cores, and no more: crowded ones would only be slower.
    assert scaled.run(20, 60_000) == 2
    now = scaled.scaler.state().now
    assert now is not None
    assert now.blocked
    scaled.cluster.names = list("abcdefgh")
    scaled.epochs.now += RETRY_SECONDS
    assert scaled.run(20, 50_000) > 2


def test_what_was_seen_is_written_and_can_be_replayed(tmp_path: Path) -> None:
    scaled = Scaled(tmp_path, Executors(*"abcdefgh"))
    scaled.run(CHUNK + 10, 3000)
    scaled.run(10, 30_000)
    scaled.scaler.write()
    seen = scaled.records.seen()
    assert [len(part.observations) for part in seen] == [CHUNK, 20]
    assert seen[0].settings == SETTINGS
    observations = [o for part in seen for o in part.observations]
    again = read_lines(lines_of(observations), "somewhere")
    assert again == observations
    acts = [d for d in replay(again, SETTINGS) if d.acts]
    assert acts[0].parallelism == {OP: 5}
    assert acts[0].epoch == next(d for d in scaled.scaler.state().decisions if d.acts).epoch
    fewer = [d for d in replay(again, Settings(max=3)) if d.acts]
    assert fewer[0].parallelism == {OP: 3}


@pytest.mark.parametrize("line", ["{", "{}", "[1]", '{"epoch": -1}', '"x"'])
def test_a_file_that_is_no_history_is_refused(line: str) -> None:
    with pytest.raises(AutoscaleError, match="line 2 of a file is no observation"):
        read_lines(["", line], "a file")
    with pytest.raises(AutoscaleError, match="nothing to replay"):
        read_lines(["", ""], "a file")


def test_malformed_records_are_refused_by_name(tmp_path: Path) -> None:
    records = Records(open_store(str(tmp_path)))
    folder = tmp_path / "scaling"
    folder.mkdir()
    (folder / "decision-1.json").write_bytes(seal({"format": 1, "at": "yesterday"})[0])
    with pytest.raises(CorruptionError, match=r"scaling/decision-1.json is malformed"):
        records.decisions()
    (folder / "seen-1.json").write_bytes(seal({"format": 1, "settings": {}})[0])
    with pytest.raises(CorruptionError, match=r"scaling/seen-1.json is malformed"):
        records.seen()


def grew(before: int, after: int, at: float = 0.0) -> Decision:
    return Decision(at, 1, "rescale", "", "model", {"o": before}, {"o": after})


def test_executors_are_kept_warm_if_they_take_longer_than_rows_may() -> None:
    acts = [grew(1, 4), grew(4, 1), grew(1, 5), grew(5, 1)]
    settings = Settings(max=16, latency=2.0)
    assert spare_executors(acts, 10.0, 5.0, 1, settings) == 4
    assert spare_executors(acts, 10.0, 5.0, 2, settings) == 2
    assert spare_executors(acts, 10.0, 0.5, 1, settings) == 0
    assert spare_executors(acts, 10.0, None, 1, settings) == 0
    assert spare_executors(acts, 10_000.0, 5.0, 1, settings) == 0
    assert spare_executors(acts, 10.0, 5.0, 1, Settings(max=16)) == 0
    assert spare_executors([], 10.0, 5.0, 1, settings) == 0
    assert spare_executors([grew(1, 15)], 10.0, 5.0, 1, settings) == 1


def test_a_rescale_of_several_operators_is_one_request(tmp_path: Path) -> None:
    other = OperatorName("other")
    stage = Stage(tmp_path, Executors(*"abcd"))
    even: Mapping[OperatorName, Assignment] = {n: Assignment.even(16, 2) for n in (OP, other)}
    stage.director = stage.start(even)
    move = stage.director.submit("rescale", "live", parallelism={OP: 4, other: 1})
    stage.settle()
    assert move.wait(0).state == "done"
    shards = {name: a.shards for name, a in stage.director.assignments().items()}
    assert shards == {OP: 4, other: 1}
    for wrong in ({}, {"nobody": 2}, {OP: 0}, {OP: 99}, {OP: "2"}):
        with pytest.raises(UsageError):
            stage.director.submit("rescale", "live", parallelism=wrong)
    with pytest.raises(UsageError, match="operator= is for one number"):
        stage.director.submit("rescale", "live", parallelism={OP: 2}, operator=str(OP))


def test_a_rescale_to_the_same_number_isolates_a_hot_group(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Executors(*"abcd"), shards=4)
    rows = np.ones(16)
    rows[1] = 30.0
    for _ in range(20):
        stage.director.before_epoch(stage.epoch)
        stage.epoch += 1  # type: ignore[assignment]
        stage.director.after_epoch(stage.epoch, 0.1, {OP: rows})
    stage.director.submit("rescale", "live", parallelism={OP: 4}, fit=True)
    after = stage.settle(3)
    owner = after.owners[1]
    assert after.shards == 4
    assert after.owners.count(owner) == 1
