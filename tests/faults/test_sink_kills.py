"""The driver is killed between any two steps of a sink with a marker; each batch is there once."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests import processes
from tests.faults import driver, sink_program
from tests.faults.lives import EPOCHS, Case, Truth
from tests.stress import few
from tests.targets import KINDS, MakeTarget, Target

from millrace import hooks
from millrace_lab.faults import crashes

CRASH_BATCH = 1

# Point -> how many batches are in the target when the driver dies there in batch 1.
HELD = {hooks.SINK_BEGINS: 1, hooks.SINK_WRITTEN: 1, hooks.SINK_COMMITTED: 2}


def plain(rows: Iterable[dict[str, Any]], names: list[str]) -> Counter[tuple[Any, ...]]:
    """Rows as text: Redis has nothing else."""
    texts = ([row.get(name) for name in names] for row in rows)
    return Counter(tuple(None if v is None else str(v) for v in row) for row in texts)


def assert_holds(target: Target, batches: list[pa.Table], key: Iterable[str]) -> None:
    names = batches[0].column_names
    rows = [row for batch in batches for row in batch.to_pylist()]
    if target.upserts:
        rows = list({tuple(row[name] for name in key): row for row in rows}.values())
    assert plain(target.rows(), names) == plain(rows, names)


@pytest.mark.parametrize(
    ("kind", "point"),
    few(
        itertools.product(KINDS, hooks.SINK_POINTS),
        ("delta append", hooks.SINK_WRITTEN),
    ),
)
def test_between_any_two_steps(
    make_target: MakeTarget, tmp_path: Path, kind: str, point: str
) -> None:
    target = make_target(kind)
    options = target.options(sink_program.KEY)
    program = processes.start(
        "tests.faults.sink_program",
        target.sink,
        json.dumps(options),
        log=tmp_path / "log",
        **crashes.environment(f"{point}@{CRASH_BATCH}"),
    )
    code = program.wait()
    assert code == -signal.SIGKILL, f"ended with {code}:\n{program.output()}"
    held = [sink_program.batch(i) for i in range(HELD[point])]
    assert_holds(target, held, sink_program.KEY)
    sink_program.write_all(target.sink, options)
    every = [sink_program.batch(i) for i in range(sink_program.BATCHES)]
    assert_holds(target, every, sink_program.KEY)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("delta append", (hooks.SINK_COMMITTED,)),
        ("delta upsert", (hooks.SINK_WRITTEN,)),
        ("iceberg append", (hooks.SINK_COMMITTED,)),
        ("postgres append", (hooks.SINK_WRITTEN,)),
        ("postgres upsert", (hooks.SINK_WRITTEN, hooks.SINK_COMMITTED)),
        ("redis upsert", (hooks.SINK_COMMITTED,)),
    ],
    ids=str,
)
def test_a_query_that_is_killed(
    spark: SparkSession,
    truth: Truth,
    tmp_path: Path,
    make_target: MakeTarget,
    kind: str,
    points: tuple[str, ...],
) -> None:
    target = make_target(kind)
    (tmp_path / "options.json").write_text(json.dumps(target.options(driver.KEYS)))
    case = Case(spark, truth, tmp_path, target.sink, "options.json")
    for point in points:
        case.die_at(f"{point}@{CRASH_BATCH}")
        assert case.committed() == 1
        held = [truth.outputs[epoch] for epoch in range(1, HELD[point] + 1)]
        assert_holds(target, held, driver.KEYS)
    case.finish_here()
    case.assert_state_exact()
    assert_holds(target, [truth.outputs[epoch] for epoch in range(1, EPOCHS + 1)], driver.KEYS)
