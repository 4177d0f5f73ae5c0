"""The aggregate that emits nothing: its state is that of one that emits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.operators.aggregate.test_complete import NAME, rows

import millrace as mr
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.silent import SilentAggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.types import arrow_schema


def operator(kind: type[AggregateOperator]) -> AggregateOperator:
    aggregates = [
        AggregateSpec("n", "count", "*", T.IntegerType(), ()),
        AggregateSpec("total", "sum", "ms", T.LongType(), ()),
    ]
    return kind(NAME, [Column("device", T.LongType())], aggregates)


def test_its_state_is_there_to_be_read_and_nothing_comes_out(tmp_path: Path) -> None:
    def state(kind: type[AggregateOperator]) -> tuple[list[dict[str, Any]], int]:
        location = str(tmp_path / kind.__name__)
        epochs = Epochs(location, operator(kind), 16, shards=2)
        emitted = 0
        for values in ([(1, 5), (2, 7)], [(2, 1), (3, 4)], [(1, 0)]):
            times = epochs.times()
            ran = epochs.apply(times, rows(values))
            epochs.commit([shard.report for shard in ran], times)
            outputs = [change.output for shard in ran for change in shard.changes]
            wanted = arrow_schema(epochs.operator.output_schema)
            assert {output.schema.remove_metadata() for output in outputs} == {wanted}
            emitted += sum(output.num_rows for output in outputs)
        with mr.open(location) as reader:
            found = reader.to_arrow(NAME).to_pylist()
        return sorted(found, key=lambda row: row["device"]), emitted

    silent, nothing = state(SilentAggregateOperator)
    loud, changed = state(AggregateOperator)
    assert silent == loud
    assert [(row["device"], row["n"], row["total"]) for row in silent] == [
        (1, 2, 5),
        (2, 2, 8),
        (3, 1, 4),
    ]
    assert (nothing, changed) == (0, 5)


def test_a_worker_gets_the_operator_that_emits_nothing() -> None:
    made = operator(SilentAggregateOperator)
    code = made.code()
    assert code is not None
    make, arguments = pickle.loads(code)
    assert type(make(*arguments)) is SilentAggregateOperator
    assert make(*arguments).spec() == made.spec() == operator(AggregateOperator).spec()
    assert operator(AggregateOperator).code() is None
