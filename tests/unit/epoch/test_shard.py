"""A shard: opened at a version, applied to, sealed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import changed_batch, fingerprint
from tests.unit.epoch.counting import (
    KEY_GROUPS,
    NAME,
    SCHEMA,
    TWICE,
    Counting,
    Driven,
    encode,
    expected,
)

from millrace.arrays import Int64Array
from millrace.epoch.shard import ShardTask, changed_rows, has_work, open_shard
from millrace.errors import EpochFailedError
from millrace.ids import OperatorName, Shard
from millrace.keygroups import Assignment, groups_of
from millrace.keygroups.scheme import UNSALTED
from millrace.log.segment import DELETED, HI, LO
from millrace.operators import Change, Moment, TableChange
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.operator import MAIN
from millrace.state import writing
from millrace.state.replica import Replica


@pytest.fixture
def driven(tmp_path: Path) -> Driven:
    return Driven(str(tmp_path))


def test_epochs_add_up(driven: Driven) -> None:
    driven.epoch([1, 2, 2, 3])
    driven.epoch([2, 3])
    keys = [1, 2, 2, 3, 2, 3]
    assert driven.state() == expected(keys)
    assert driven.state(TWICE) == expected(keys, TWICE)


def test_a_step_sees_what_the_steps_before_it_changed(driven: Driven) -> None:
    driven.epoch([1, 2, 3])
    driven.epoch([1, 1, 2], [1, 1, 4], [3], [1, 3])
    keys = [1, 2, 3, 1, 1, 2, 1, 1, 4, 3, 1, 3]
    assert driven.state() == expected(keys)
    assert driven.state(TWICE) == expected(keys, TWICE)


def test_a_row_that_steps_delete_and_add_again(driven: Driven) -> None:
    driven.epoch([7, 7, 7, 7])
    driven.epoch([7], [7], [7])
    assert driven.state() == {fingerprint(7): (2,)}
    assert {name: log.rows for name, log in driven.trail.operators.items()} == {
        "counts": 1,
        "counts/twice": 1,
    }


def test_steps_that_cancel_out(driven: Driven) -> None:
    driven.epoch([9, 9], [9, 9, 9])
    assert driven.state() == {}
    assert driven.trail.operators["counts"].rows == 0  # type: ignore[index]


def test_steps_that_are_not_committed_leave_no_trace(driven: Driven) -> None:
    driven.epoch([1, 2])
    driven.run([1, 3], [1, 5])
    moment = driven.times().moment(driven.assignment)
    open_shard(driven.task, driven.operator, Shard(0), moment, driven.cache).apply(encode([1]))
    driven.epoch([2], [2])
    assert driven.state() == expected([1, 2, 2, 2])
    driven.epoch([1])
    assert driven.state() == expected([1, 2, 2, 2, 1])


def test_a_segment_has_each_row_once_with_its_last_value(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[pa.RecordBatch] = []
    compose = writing.compose_segment

    def composed(replica: object, path: str, rows: pa.RecordBatch, *rest: object) -> object:
        written.append(rows)
        return compose(replica, path, rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("millrace.epoch.shard.compose_segment", composed)
    driven.run([1, 2], [1], [3, 1])
    rows = written[0]
    prints = [fingerprint(key) for key in (1, 2, 3)]
    assert rows.column(HI).to_pylist() == sorted(hi for hi, _ in prints)
    values = dict(zip(rows.column(HI).to_pylist(), rows.column("n").to_pylist(), strict=True))
    assert values == {fingerprint(1)[0]: 3, fingerprint(2)[0]: 1, fingerprint(3)[0]: 1}
    assert rows.column(DELETED).true_count == 0


def test_merges_do_not_contain_the_epochs_own_steps(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base speaks for the version before the epoch, whatever the steps had laid over it."""
    driven.index_budget = 1
    merged: list[dict[int, int]] = []
    made = writing.merged

    def noted(replica: object, groups: object) -> object:
        base = made(replica, groups)  # type: ignore[arg-type]
        rows = base.rows.slice(0, base.rows.num_rows)
        merged.append(
            dict(zip(rows.column(HI).to_pylist(), rows.column("n").to_pylist(), strict=True))
        )
        return base

    driven.epoch([1, 2, 3])
    driven.epoch([1, 2, 3])
    monkeypatch.setattr(writing, "merged", noted)
    driven.epoch([1], [1, 2])
    found: dict[int, int] = {}
    for rows in merged[: len(merged) // 2]:
        found |= rows
    # As they were before the epoch: two of each, and not three or four.
    assert found.keys() >= {fingerprint(key)[0] for key in (1, 2)}
    assert set(found.values()) == {2}
    assert driven.state() == expected([1, 2, 3, 1, 2, 3, 1, 1, 2])


def test_a_report_says_what_was_written(tmp_path: Path) -> None:
    driven = Driven(str(tmp_path), shards=2)
    keys = [1, 2, 2, 5, 5, 5, 5, 5]
    reports = driven.run(keys)
    assert [r.shard for r in reports] == [0, 1]
    assert sum(r.input_rows for r in reports) == len(keys)
    assert sum(r.counters.get("rows", 0) for r in reports) == len(keys)
    for report in reports:
        assert report.operator == NAME
        assert report.epoch == 1
        own = driven.assignment.groups_of(report.shard).tolist()
        assert set(report.group_rows) <= set(own)
    main = [r.tables[MAIN] for r in reports if r.tables]
    # Key 5 is counted to 5, which is 0, which is no row.
    assert sum(t.changed_rows for t in main) == 3
    assert sum(t.added_rows for t in main) == 2
    assert sum(t.removed_rows for t in main) == 0
    assert sum(sum(r.group_rows.values()) for r in reports) == 6
    driven.commit(reports)
    assert driven.trail.operators["counts"].rows == 2  # type: ignore[index]


def test_a_shard_without_rows_is_idle(tmp_path: Path) -> None:
    driven = Driven(str(tmp_path), shards=KEY_GROUPS)
    driven.epoch([1])
    driven.epoch([1])
    reports = driven.run([1])
    (busy,) = [r for r in reports if r.tables]
    assert set(busy.tables) == {MAIN, TWICE}
    assert busy.input_rows == 1
    idle = [r for r in reports if not r.tables]
    assert len(idle) == KEY_GROUPS - 1
    assert all(
        (r.input_rows, r.heap_bytes, r.group_rows, r.counters) == (0, 0, {}, {}) for r in idle
    )
    assert busy.heap_bytes > 0


def test_no_rows_are_applied_as_such(driven: Driven) -> None:
    moment = driven.times().moment(driven.assignment)
    opened = open_shard(driven.task, driven.operator, Shard(0), moment, driven.cache)
    opened.apply(None)
    report = opened.seal()
    # Nothing changed, so nothing is written.
    assert (report.tables, report.input_rows, report.executor) == ({}, 0, "")
    assert driven.journal.store.list("segments") == []


def test_only_an_operator_with_something_to_do_runs_without_rows(driven: Driven) -> None:
    assert has_work(driven.operator, 1)
    assert not has_work(driven.operator, 0)
    eager = Counting()
    eager.runs_without_rows = True
    assert has_work(eager, 0)


class Careless(Counting):
    """Changes whatever it gets."""

    def apply(
        self, replicas: dict[str, Replica], rows: pa.Table, groups: Int64Array, moment: Moment
    ) -> Change:
        keys = zip(rows.column(HI).to_pylist(), rows.column(LO).to_pylist(), strict=True)
        changed = changed_batch(SCHEMA, dict.fromkeys(keys, (1,)))
        return Change({MAIN: TableChange(changed, 1)}, pa.RecordBatch.from_pydict({}))


def test_rows_of_others_fail_the_epoch(tmp_path: Path) -> None:
    driven = Driven(str(tmp_path), shards=2)
    moment = driven.times().moment(driven.assignment)
    opened = open_shard(driven.task, Careless(), Shard(0), moment, driven.cache)
    foreign = next(key for key in range(100) if driven.part([key], Shard(1)).num_rows)
    group = int(groups_of(encode([foreign]).column(HI).to_numpy(), KEY_GROUPS)[0])
    with pytest.raises(EpochFailedError, match=f"shard 0 of operator 'counts'.*group {group},"):
        opened.apply(encode([foreign]))
    assert driven.journal.store.list("segments") == []


def test_the_memory_budget_is_for_all_tables_together(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = []
    compose = writing.compose_segment

    def composed(*given: object) -> object:
        budgets.append(given[4])
        return compose(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("millrace.epoch.shard.compose_segment", composed)
    driven.index_budget = 1001
    driven.run([1])
    assert budgets == [500, 500]


class Forgetting(Counting):
    """Lets go of the rows with the number 1, and counts two rows of its own as expired."""

    def sweep(self, table: str, moment: Moment) -> Any:
        return lambda rows: rows.column("n").to_numpy() == 1

    def apply(
        self, replicas: dict[str, Replica], rows: pa.Table, groups: Int64Array, moment: Moment
    ) -> Change:
        change = super().apply(replicas, rows, groups, moment)
        return Change(change.tables, change.output, {"expired": 2})


def test_rows_that_a_merge_leaves_out_count_as_expired(driven: Driven) -> None:
    driven.index_budget = 1
    groups = groups_of(encode(range(100)).column(HI).to_numpy(), KEY_GROUPS)
    over, kept, changed = np.flatnonzero(groups == groups[0])[:3].tolist()
    driven.epoch([over, kept, changed])
    driven.epoch([over] * 5 + [kept] + [changed] * 5)
    (report,) = driven.run([changed], operator=Forgetting())
    # Of the two rows with the number 1, one changes; in the other table no row has it.
    assert report.tables[MAIN].expired_rows == report.tables[MAIN].removed_rows == 1
    assert report.tables[TWICE].expired_rows == 0
    assert report.counters == {"expired": 3}
    driven.commit([report])
    assert driven.state() == expected([kept, kept, changed, changed])
    assert driven.trail.operators["counts"].rows == 2  # type: ignore[index]


def test_two_attempts_write_files_of_their_own(driven: Driven) -> None:
    first, second = driven.run([1, 2]), driven.run([1, 2])
    paths = [r.tables[t].segment.path for r in (*first, *second) for t in (MAIN, TWICE)]
    assert len(set(paths)) == 4
    assert sorted(driven.journal.store.list("segments")) == sorted(paths)
    driven.commit(second)
    assert driven.state() == expected([1, 2])


def test_ranges_of_a_task_are_the_assignment(driven: Driven) -> None:
    assignment = Assignment(2, (0, 0, 1, 0, 1, 1, 1, 0))
    task = ShardTask.of(driven.journal, driven.operator, assignment, 1)
    assert task.groups == ("0-1,3,7", "2,4-6")
    assert task.assignment == assignment
    assert ShardTask.of(driven.journal, driven.operator, None, 1).groups == ()


def test_a_task_has_its_operator_by_spec_or_by_code() -> None:
    spec = (
        '{"kind": "aggregate", "keys": [{"name": "k", "type": "string"}], "aggregates": '
        '[{"name": "n", "function": "count", "of": "*", "type": "integer", "options": {}}]}'
    )
    described = ShardTask("l", "q", OperatorName("a"), spec, None, 8, (), 1, False, UNSALTED)
    operator = described.load()
    assert isinstance(operator, AggregateOperator)
    assert operator.name == "a"
    assert [k.name for k in operator.keys] == ["k"]
    code = pickle.dumps((Counting, ()))
    shipped = ShardTask("l", "q", NAME, "", code, 8, (), 1, False, UNSALTED)
    assert isinstance(shipped.load(), Counting)
    # Loaded once: operators keep what they have worked out between epochs.
    assert shipped.load() is shipped.load()


def test_changed_rows_by_key_group() -> None:
    keys = list(range(50))
    rows = pa.table({HI: encode(keys).column(HI)}).to_batches()[0]
    change = Change(
        {"a": TableChange(rows, 0), "b": TableChange(rows.slice(0, 10), 0)},
        pa.RecordBatch.from_pydict({}),
    )
    groups = groups_of(encode(keys).column(HI).to_numpy(), KEY_GROUPS)
    counted = np.bincount(groups, minlength=8) + np.bincount(groups[:10], minlength=8)
    assert changed_rows(change, KEY_GROUPS).tolist() == counted.tolist()
