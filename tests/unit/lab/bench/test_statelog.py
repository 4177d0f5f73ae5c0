"""Aging a location without Spark: its counts are those of the rows drawn, and it merges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

import millrace as mr
from millrace.ids import OperatorName
from millrace.keygroups import group_shift
from millrace.log import Journal, open_store
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace_lab.bench._shards import HeldShards
from millrace_lab.bench._sides.engine import PARTITIONS
from millrace_lab.bench._sides.statelog import StateLog
from millrace_lab.bench._state_layer import fingerprints

KEYS = 300
KEY_GROUPS = 8


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Every key once, as a query of one epoch leaves it."""
    path = str(tmp_path / "location")
    operator = AggregateOperator(
        OperatorName("counts"),
        (Column("key", T.LongType()),),
        (AggregateSpec("n", "count", "*", T.IntegerType(), ()),),
    )
    shards = HeldShards(Journal.create(open_store(path), KEY_GROUPS), operator, PARTITIONS)
    keys = np.arange(KEYS)
    hi, lo = fingerprints(keys)
    owners = np.asarray(shards.assignment.owners)
    shard_of = owners[(hi >> np.uint64(group_shift(KEY_GROUPS))).astype(np.int64)]
    reports = []
    for shard in shards.opened:
        mine = shard_of == shard.shard
        ones = pa.array(np.ones(int(mine.sum()), np.int64))
        shard.apply(Input(hi[mine], lo[mine], (pa.array(keys[mine]),), partials=((ones,),)))
        reports.append(shard.seal())
    shards.commit(reports, "filling", 7)
    return path


def test_aging_counts_what_it_draws_and_merges(location: str, tmp_path: Path) -> None:
    log = StateLog()
    assert log.do_begin(location, rows=200, seed=3) == KEYS
    settled = log.do_settle(at_most=200)
    assert settled > 1
    measured = log.do_measure(epochs=4)
    assert measured["changed_rows"] > 0
    assert 0 < measured["changed"] <= measured["segments"]
    assert measured["manifests"] > 0
    log.do_save(str(tmp_path / "added.npy"))
    added = np.load(tmp_path / "added.npy")
    assert added.sum() == 200 * (settled + 4)
    reader = mr.open(location)
    assert reader.epoch == 1 + settled + 4
    state = reader.to_arrow("counts")
    counts = dict(zip(state["key"].to_pylist(), state["n"].to_pylist(), strict=True))
    assert counts == {key: 1 + int(added[key]) for key in range(KEYS)}
    assert Journal.open(open_store(location)).newest().batch_id == 7
    assert log.do_open(location, warm=location)["rows"] == KEYS


def test_merges_that_do_not_come_are_an_error(location: str) -> None:
    log = StateLog()
    log.do_begin(location, rows=1, seed=3)
    with pytest.raises(RuntimeError, match="did not come within 2 epochs"):
        log.do_settle(at_most=2)
