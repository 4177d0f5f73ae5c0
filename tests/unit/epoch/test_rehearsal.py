"""After a rehearsal, no epoch waits for a kernel to be loaded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.driving import fingerprint, words
from tests.unit.epoch.counting import KEY_GROUPS, Driven, expected

import millrace as mr
from millrace.epoch.rehearsal import rehearse
from millrace.ids import OperatorName
from millrace.jit import KERNELS
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.state.index import MIN_SLOTS
from millrace.testing import DedupHarness, JoinHarness, SessionHarness, WindowHarness

KNOWN = {
    name: found
    for name, found in KERNELS.items()
    if name.startswith(("millrace.state.", "millrace.operators."))
}


def loaded() -> set[tuple[str, object]]:
    return {(name, types) for name, found in KNOWN.items() for types in found.signatures}


@pytest.fixture
def rehearsed() -> set[tuple[str, object]]:
    """What a process without any kernels has loaded after a rehearsal."""
    for found in KNOWN.values():
        found._reset_overloads()
    assert loaded() == set()
    rehearse()
    return loaded()


def test_an_index_that_grows_and_merges_load_nothing(
    tmp_path: Path, rehearsed: set[tuple[str, object]]
) -> None:
    many = list(range(3 * KEY_GROUPS * MIN_SLOTS))
    driven = Driven(str(tmp_path))
    driven.epoch([1, 2])
    driven.epoch(many)
    driven.index_budget = 1
    driven.epoch([1], [2, 3])
    driven.epoch([1])
    assert driven.state() == expected([1, 2, *many, 1, 2, 3, 1])
    assert loaded() - rehearsed == set()


def test_rows_in_one_piece_and_in_several_load_nothing(
    tmp_path: Path, rehearsed: set[tuple[str, object]]
) -> None:
    count = AggregateSpec("n", "count", "*", T.LongType(), ())
    operator = AggregateOperator(OperatorName("a"), [Column("k", T.LongType())], [count])
    epochs = Epochs(str(tmp_path), operator, KEY_GROUPS, index_budget=1)
    ones = pa.array([1] * 20)

    def rows(keys: range) -> Input:
        prints = [fingerprint(key) for key in keys]
        hi, lo = words(hi for hi, _ in prints), words(lo for _, lo in prints)
        return Input(hi, lo, (pa.array(keys),), np.zeros(20, np.int32), ((ones,),))

    epochs.epoch(rows(range(20)))
    epochs.epoch(rows(range(10, 30)), rows(range(20)))
    assert loaded() - rehearsed == set()


NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = {"key": "k", "schema": "k long, at timestamp, n long", "event_time": "at"}
TOTALS = {"count": mr.count(), "total": mr.sum("n")}

HARNESSES: dict[str, Callable[[], Any]] = {
    "window": lambda: WindowHarness(**SCHEMA, size="1 minute", aggregates=TOTALS),
    "sliding": lambda: WindowHarness(
        **SCHEMA, size="2 minutes", slide="1 minute", aggregates=TOTALS
    ),
    "session": lambda: SessionHarness(**SCHEMA, gap="10 seconds", aggregates=TOTALS),
    "dedup": lambda: DedupHarness(**SCHEMA, watermark="10 seconds"),
    "join": lambda: JoinHarness(
        on="k",
        left="k long, at timestamp, n long",
        right="k long, then timestamp, m long",
        left_time="at",
        right_time="then",
        within=("-10 seconds", "0 seconds"),
        how="left",
    ),
}


@pytest.mark.parametrize("kind", HARNESSES)
def test_operators_load_nothing(kind: str, rehearsed: set[tuple[str, object]]) -> None:
    harness = HARNESSES[kind]()
    emitted = 0
    for minute in (0, 1, 1, 5, 3):
        rows = [
            {"k": i % 7, "at": NOON + mr.minutes(minute) + mr.seconds(i), "n": i} for i in range(40)
        ]
        others = [{"k": r["k"], "then": r["at"], "m": r["n"]} for r in rows]
        emitted += len(harness.send(rows, others) if kind == "join" else harness.send(rows))
        if minute != 3:
            emitted += len(harness.advance_watermark(NOON + mr.minutes(minute)))
    assert emitted
    assert loaded() - rehearsed == set()


def test_best_rows_load_nothing(tmp_path: Path, rehearsed: set[tuple[str, object]]) -> None:
    row = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.LongType())])
    best = AggregateSpec("top", "top", "a", row, (("k", 3),))
    operator = AggregateOperator(OperatorName("a"), [Column("k", T.LongType())], [best])
    epochs = Epochs(str(tmp_path), operator, KEY_GROUPS, index_budget=1)
    prints = [fingerprint(key) for key in range(20)]
    hi, lo = words(hi for hi, _ in prints), words(lo for _, lo in prints)
    for number in range(3):
        listed = [[{"a": key * number, "b": number}] * (key % 4) for key in range(20)]
        rows = pa.array(listed, pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])))
        epochs.epoch(Input(hi, lo, (pa.array(range(20)),), partials=((rows,),)))
    assert loaded() - rehearsed == set()
