"""A window operator driven by hand, and the plain Python that says what it should do.

Rows are (key, event time or None, value). What Spark does before a shard, one partial row per key,
pane and input partition, is done here in Python.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.epochs import TimedEpochs
from tests.unit.operators.aggregate.folding import partial_rows

from millrace.epoch import rows as wire
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.reducers import resolve
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column, Operator
from millrace.operators.window.emission import EARLY, UPDATE, Emission
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition

NAME = OperatorName("windows")
KEY_GROUPS = 8
KEY = Column("k", T.StringType())

Row = tuple[str | None, int | None, int | None]
"""Key, event time in microseconds, value."""

FUNCTIONS: list[tuple[str, dict[str, Any]]] = [
    ("count", {}),
    ("sum", {}),
    ("max", {}),
    ("mean", {}),
    ("variance", {"sample": True}),
    ("first", {"ignore_nulls": True}),
    ("last", {"ignore_nulls": False}),
]


def make_operator(
    windows: Windows, emission: Emission, lengths: tuple[int, ...] = ()
) -> WindowOperator:
    aggregates = tuple(
        AggregateSpec(f"{function}_v", function, "v", T.LongType(), tuple(options.items()))
        for function, options in FUNCTIONS
    )
    definition = WindowDefinition((KEY,), windows, aggregates, emission, lengths)
    return WindowOperator(NAME, definition, [KEY, Column("v", T.LongType())])


def fingerprint_of(key: str | None) -> tuple[int, int]:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def prints_of(keys: Sequence[pa.Array]) -> tuple[Any, Any]:
    prints = np.asarray([fingerprint_of(key) for key in keys[0].to_pylist()], np.uint64)
    return prints[:, 0].copy(), prints[:, 1].copy()


def partial_table(operator: WindowOperator, partitions: Sequence[Sequence[Row]]) -> pa.Table:
    """What Spark's exchange would send."""
    reducers = [
        resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": True})
        for a in operator.definition.aggregates
    ]
    listed: list[dict[str, Any]] = []
    schema: dict[str, pa.DataType] = {HI: pa.int64(), LO: pa.int64(), wire.PART: pa.int32()}
    schema |= {wire.key(0): pa.string(), wire.PANE: pa.int64(), wire.COUNT: pa.int64()}
    for i, reducer in enumerate(reducers):
        for j in range(len(partial_rows(reducer, operator.definition.aggregates[i].function, []))):
            schema[wire.partial(i, j)] = reducer.fields[j].type
    for part, rows in enumerate(partitions):
        grouped: dict[tuple[str | None, int | None], list[Any]] = {}
        for key, time, value in rows:
            pane = None if time is None else operator.windows.pane_of(time)
            grouped.setdefault((key, pane), []).append(value)
        for (key, pane), values in grouped.items():
            hi, lo = np.asarray(fingerprint_of(key), np.uint64).view(np.int64).tolist()
            row: dict[str, Any] = {HI: hi, LO: lo, wire.PART: part, wire.key(0): key}
            row |= {wire.PANE: pane, wire.COUNT: len(values)}
            for i, reducer in enumerate(reducers):
                function = operator.definition.aggregates[i].function
                for j, partial in enumerate(partial_rows(reducer, function, values)):
                    row[wire.partial(i, j)] = partial
            listed.append(row)
    return pa.Table.from_pylist(listed, schema=pa.schema(list(schema.items())))


class Windowed(TimedEpochs):
    """A location with one operator over event time."""

    def __init__(self, url: str, operator: Operator, shards: int = 1) -> None:
        super().__init__(url, operator, KEY_GROUPS, shards=shards)

    @property
    def rows(self) -> int:
        return self.rows_of()


@dataclass
class Oracle:
    """Windows in plain Python: every row of every open window is kept."""

    windows: Windows
    emission: Emission
    rows: dict[tuple[str | None, int], list[tuple[int, Any]]] = field(default_factory=dict)
    """Key and pane -> the epoch and value of its rows, in order."""
    due: dict[tuple[str | None, int], int] = field(default_factory=dict)
    late_us: int = 0
    since_us: int = 0
    late: int = 0
    """Rows of the last epoch that were late."""
    epoch: int = 0

    def window_ends(self, pane: int) -> list[int]:
        size, slide = self.windows.size_us, self.windows.slide_us
        last = pane - (pane - self.windows.offset_us) % slide
        starts = [last - i * slide for i in range(size // slide + 1)]
        return [start + size for start in starts if start <= pane < start + size]

    def values(self, key: str | None, end: int) -> list[Any]:
        start = end - self.windows.size_us
        panes = range(start, end, self.windows.pane_us)
        return [value for pane in panes for _, value in self.rows.get((key, pane), ())]

    def send(
        self, rows: Sequence[Row], watermark_us: int, processing_us: int
    ) -> dict[tuple[str | None, int, bool], list[Any]]:
        """The windows that an epoch emits, with all their values; whether they are final."""
        self.late = 0
        self.epoch += 1
        changed = set()
        for key, time, value in rows:
            if time is None:
                continue
            pane = self.windows.pane_of(time)
            if max(self.window_ends(pane)) <= self.late_us:
                self.late += 1
                continue
            self.rows.setdefault((key, pane), []).append((self.epoch, value))
            changed.add((key, pane))
        found: dict[tuple[str | None, int, bool], list[Any]] = {}
        if self.emission.mode == UPDATE:
            for key, pane in changed:
                for end in self.window_ends(pane):
                    if end > self.late_us:
                        found[key, end, False] = self.values(key, end)
        else:
            for key, pane in self.rows:
                for end in self.window_ends(pane):
                    if self.late_us < end <= watermark_us:
                        found[key, end, True] = self.values(key, end)
        if self.emission.mode == EARLY:
            due = {p for p, at in self.due.items() if at <= processing_us}
            self.due = {p: at for p, at in self.due.items() if p not in due}
            self.due |= dict.fromkeys(changed - due, self.emission.next_due(processing_us))
            for key, pane in due:
                for end in self.window_ends(pane):
                    if end > watermark_us:
                        found[key, end, False] = self.values(key, end)
        open_panes = [p for p in self.rows if max(self.window_ends(p[1])) > watermark_us]
        self.rows = {p: self.rows[p] for p in open_panes}
        self.due = {p: at for p, at in self.due.items() if p in self.rows}
        self.late_us = watermark_us
        return found


def shown(values: list[Any]) -> list[Any]:
    known = [v for v in values if v is not None]
    return [
        len(known),
        sum(known) if known else None,
        max(known, default=None),
        statistics.fmean(known) if known else None,
        statistics.variance(known) if len(known) > 1 else None,
        known[0] if known else None,
        values[-1],
    ]


def micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def same(got: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(got, float) and math.isclose(got, expected, abs_tol=1e-9)
    return bool(got == expected)
