"""The aggregate that emits all keys: compared with a dict, epoch by epoch."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.driving import fingerprint

from millrace.ids import OperatorName
from millrace.operators.aggregate.complete import CompleteAggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column

NAME = OperatorName("totals")


def operator() -> CompleteAggregateOperator:
    aggregates = [
        AggregateSpec("n", "count", "*", T.IntegerType(), ()),
        AggregateSpec("total", "sum", "ms", T.LongType(), ()),
    ]
    return CompleteAggregateOperator(NAME, [Column("device", T.LongType())], aggregates)


def rows(values: list[tuple[int, int]]) -> Input:
    """A row per value, as partial results of one row each."""
    keys = [key for key, _ in values]
    halves = np.array([fingerprint(key) for key in keys], np.uint64).reshape(-1, 2)
    counts = pa.array([1] * len(keys), pa.int64())
    totals = pa.array([value for _, value in values], pa.int64())
    return Input(
        halves[:, 0].copy(),
        halves[:, 1].copy(),
        (pa.array(keys, pa.int64()),),
        partials=((counts,), (totals,)),
    )


def test_every_epoch_shows_every_key(tmp_path: Path) -> None:
    epochs = Epochs(str(tmp_path / "location"), operator(), 16, shards=2)
    expected: dict[int, tuple[int, int]] = {}
    draw = random.Random(7)
    for number in range(12):
        # Every third epoch brings nothing, and some bring their rows in two steps.
        steps = [
            [(draw.randrange(40), draw.randrange(100)) for _ in range(draw.randrange(1, 9))]
            for _ in range(0 if number % 3 == 2 else 1 + number % 2)
        ]
        for step in steps:
            for key, value in step:
                n, total = expected.get(key, (0, 0))
                expected[key] = (n + 1, total + value)
        times = epochs.times()
        ran = epochs.apply(times, *(rows(step) for step in steps or [[]]))
        epochs.commit([shard.report for shard in ran], times)
        shown = [r for s in ran for change in s.changes for r in change.output.to_pylist()]
        assert len(shown) == len(expected)
        assert {row["device"]: (row["n"], row["total"]) for row in shown} == expected
        if number == 6:
            epochs.restart()


def test_a_worker_gets_the_operator_that_emits_everything() -> None:
    make, arguments = pickle.loads(operator().code())
    assert type(make(*arguments)) is CompleteAggregateOperator
    assert make(*arguments).spec() == operator().spec()
