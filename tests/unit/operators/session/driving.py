"""A session operator driven by hand, and the plain Python that says what it should do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.unit.operators.aggregate.folding import partial_rows
from tests.unit.operators.window.driving import KEY, NAME, Row, fingerprint_of

from millrace.epoch import rows as wire
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.reducers import resolve
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.operators.session.operator import SessionOperator
from millrace.operators.session.spec import SessionDefinition
from millrace.operators.window.emission import EARLY, UPDATE, Emission

Functions = list[tuple[str, dict[str, Any]]]

UNORDERED: Functions = [("count", {}), ("sum", {}), ("max", {}), ("mean", {})]
ORDERED: Functions = [
    ("count", {}),
    ("first", {"ignore_nulls": True}),
    ("last", {"ignore_nulls": False}),
    ("collect_list", {}),
]


def make_operator(gap_us: int, emission: Emission, functions: Functions) -> SessionOperator:
    aggregates = tuple(
        AggregateSpec(f"{function}_v", function, "v", T.LongType(), tuple(options.items()))
        for function, options in functions
    )
    definition = SessionDefinition((KEY,), gap_us, aggregates, emission)
    return SessionOperator(NAME, definition, [KEY, Column("v", T.LongType())])


def piece_table(
    operator: SessionOperator, partitions: Sequence[tuple[int, Sequence[Row]]], late_us: int
) -> pa.Table:
    """What Spark's exchange would send for the rows of some input partitions."""
    specs = operator.definition.aggregates
    reducers = [
        resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": True}) for a in specs
    ]
    listed: list[dict[str, Any]] = []
    schema: dict[str, pa.DataType] = {HI: pa.int64(), LO: pa.int64(), wire.PART: pa.int32()}
    schema |= {wire.key(0): pa.string(), wire.COUNT: pa.int64()}
    schema |= {wire.FIRST: pa.int64(), wire.LAST: pa.int64()}
    for i, reducer in enumerate(reducers):
        for j in range(len(partial_rows(reducer, specs[i].function, []))):
            schema[wire.partial(i, j)] = reducer.fields[j].type
    gap = operator.gap_us
    for part, rows in partitions:
        grouped: dict[Any, list[tuple[int | None, Any]]] = {}
        for key, time, value in rows:
            piece = None if time is None else time if operator.needs_order else time // gap
            is_late = time is not None and time + gap <= late_us
            grouped.setdefault((key, piece, is_late), []).append((time, value))
        for (key, _, _), members in grouped.items():
            hi, lo = np.asarray(fingerprint_of(key), np.uint64).view(np.int64).tolist()
            times = [time for time, _ in members if time is not None]
            row: dict[str, Any] = {HI: hi, LO: lo, wire.PART: part, wire.key(0): key}
            row |= {wire.COUNT: len(members)}
            row |= {wire.FIRST: min(times, default=None), wire.LAST: max(times, default=None)}
            for i, reducer in enumerate(reducers):
                values = [value for _, value in members]
                for j, partial in enumerate(partial_rows(reducer, specs[i].function, values)):
                    row[wire.partial(i, j)] = partial
            listed.append(row)
    return pa.Table.from_pylist(listed, schema=pa.schema(list(schema.items())))


@dataclass
class Session:
    """A session with all its values, in order of its spans."""

    start: int
    end: int
    values: list[Any]
    due: int | None = None


@dataclass
class Oracle:
    """Sessions in plain Python."""

    gap_us: int
    emission: Emission
    open: dict[str | None, list[Session]] = field(default_factory=dict)
    late_us: int = 0
    since_us: int = 0
    late: int = 0

    def step(
        self, partitions: Sequence[tuple[int, Sequence[Row]]], now_us: int
    ) -> list[tuple[str | None, Session]]:
        """Merge rows with what is open; the sessions that changed."""
        spans: dict[str | None, list[tuple[int, int, Session]]] = {}
        for part, rows in partitions:
            for key, time, value in rows:
                if time is None:
                    continue
                if time + self.gap_us <= self.late_us:
                    self.late += 1
                    continue
                alone = Session(time, time + self.gap_us, [value])
                spans.setdefault(key, []).append((time, part, alone))
        changed = []
        for key, came in spans.items():
            both = came + [(s.start, -1, s) for s in self.open.get(key, [])]
            both.sort(key=lambda span: span[:2])
            groups: list[list[tuple[int, int, Session]]] = []
            end = -1
            for span in both:
                if not groups or span[0] > end:
                    groups.append([])
                    end = span[2].end
                groups[-1].append(span)
                end = max(end, span[2].end)
            self.open[key] = []
            for group in groups:
                if all(part < 0 for _, part, _ in group):
                    self.open[key].append(group[0][2])
                    continue
                members = [session for _, _, session in group]
                values = [value for session in members for value in session.values]
                merged = Session(group[0][0], max(s.end for s in members), values)
                if self.emission.mode == EARLY:
                    due = [s.due for s in members if s.due is not None and s.due <= now_us]
                    merged.due = max(due, default=self.emission.next_due(now_us))
                self.open[key].append(merged)
                changed.append((key, merged))
        return changed

    def send(
        self, steps: Sequence[Sequence[tuple[int, Sequence[Row]]]], watermark_us: int, now_us: int
    ) -> dict[tuple[str | None, int, int, bool], list[Any]]:
        """The sessions that an epoch emits, with their values; whether they are final."""
        self.late = 0
        found: dict[tuple[str | None, int, int, bool], list[Any]] = {}
        for rows in steps:
            for key, s in self.step(rows, now_us):
                if self.emission.mode == UPDATE:
                    found[key, s.start, s.end, False] = s.values
        for key, sessions in self.open.items():
            for s in sessions:
                if self.emission.mode == EARLY and s.due is not None and s.due <= now_us:
                    s.due = None
                    if s.end > watermark_us:
                        found[key, s.start, s.end, False] = s.values
                if self.emission.mode != UPDATE and s.end <= watermark_us:
                    found[key, s.start, s.end, True] = s.values
        self.open = {
            key: [s for s in sessions if s.end > watermark_us]
            for key, sessions in self.open.items()
        }
        self.late_us, self.since_us = watermark_us, now_us
        return found

    @property
    def rows(self) -> dict[tuple[str | None, int, int], list[Any]]:
        return {(k, s.start, s.end): s.values for k, found in self.open.items() for s in found}
