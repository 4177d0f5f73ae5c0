"""A processor's tables, filled from rows as Spark's state has them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

import millrace as mr
from millrace import types
from millrace.epoch import rows as wire
from millrace.ids import OperatorName
from millrace.interchange.spark_checkpoint import _tables
from millrace.interchange.spark_state import TIMERS, Filled
from millrace.interchange.writing import OperatorState, Reached, StateWriter
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import UNSALTED
from millrace.log.segment import HI, LO
from millrace.operators.operator import Column
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas

SOON = 4_000_000_000_000
"""Milliseconds since 1970: far ahead, so that nothing has expired yet."""


class Visits(mr.Processor):
    total = mr.Value("long", ttl=mr.hours(1))
    pages = mr.Map("string", "long", ttl=mr.hours(1))
    recent = mr.List("long")
    idle = mr.EventTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return ()

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Any:
        return ()


def pair(kind: T.DataType) -> T.StructType:
    return T.StructType().add("value", kind).add("until", T.LongType())


COLUMNS = (
    Column("total", pair(T.LongType())),
    Column(
        "pages",
        T.ArrayType(
            T.StructType()
            .add("key", T.StringType())
            .add("value", T.LongType())
            .add("until", T.LongType())
        ),
    ),
    Column("recent", T.ArrayType(pair(T.LongType()))),
    Column(TIMERS, T.ArrayType(T.LongType())),
)


def filled(rows: list[dict[str, Any]]) -> Filled:
    keys = pa.array([row["user"] for row in rows])
    hi, lo = fingerprints([keys], UNSALTED)
    table = {HI: hi.view(np.int64), LO: lo.view(np.int64), wire.key(0): keys}
    for column in COLUMNS:
        kind = types.arrow_type(column.type, column.name)
        table[column.name] = pa.array([row.get(column.name) for row in rows], kind)
    return Filled(pa.table(table), COLUMNS)


def test_every_kind_of_state(tmp_path: Path) -> None:
    target = make_operator(
        OperatorName("visits"),
        Schemas(
            [Column("user", T.StringType())],
            [Column("user", T.StringType())],
            T.StructType().add("user", T.StringType()),
        ),
        Visits(),
    )
    rows = [
        {
            "user": "ann",
            "total": {"value": 7, "until": SOON},
            "pages": [
                {"key": "/", "value": 1, "until": SOON + 1},
                {"key": "/a", "value": 2, "until": SOON + 2},
                {"key": "/old", "value": 3, "until": 5},
            ],
            "recent": [{"value": v, "until": None} for v in (3, 1, 2)],
            TIMERS: [60_000],
        },
        {"user": "bob", "total": {"value": 1, "until": 5}, TIMERS: [1000, 2000]},
        {"user": None, "recent": [{"value": 9, "until": None}]},
    ]
    tables = _tables(target, filled(rows), UNSALTED)
    writer = StateWriter(str(tmp_path), 16, 1, UNSALTED)
    writer.operator(target.name, OperatorState(target.spec(), tables))
    writer.commit(Reached())
    with mr.open(str(tmp_path)) as reader:
        shown = {row["user"]: row for row in reader.to_arrow("visits").to_pylist()}
        assert dict(shown["ann"].pop("pages")) == {"/": 1, "/a": 2}, "one had expired in Spark"
        assert shown["ann"] == {"user": "ann", "total": 7, "recent": [3, 1, 2]}
        assert shown["bob"]["total"] is None, "it had expired in Spark"
        assert shown[None]["recent"] == [9]
        timers = reader.to_arrow("visits", state="timers").to_pylist()
        found = {(t["user"], t["label"], t["fires_at"]) for t in timers}
        assert found == {
            ("ann", "", dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)),
            ("bob", "1000", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
            ("bob", "2000", dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)),
        }
        got = reader.get(["ann", None], "visits", columns=["total"])
        assert got.column("total").to_pylist() == [7, None]
