"""Joins on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.event_time import Duration, check_event_time
from millrace.api.intervals import check_how, parse_tolerance, parse_within
from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import JoinError
from millrace.operators import Operator
from millrace.operators.as_of.operator import AsOfOperator
from millrace.operators.as_of.spec import AsOfDefinition
from millrace.operators.input import Input
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.lookup.layout import HOWS as LOOKUP_HOWS
from millrace.operators.lookup.operator import LookupOperator
from millrace.operators.lookup.spec import LookupDefinition
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_us
from millrace.testing.epochs import (
    NAME,
    START,
    Emitted,
    OperatorHarness,
    check_columns,
    columns_of,
)


class Streams:
    """The two streams of a join: their columns, the key, and their event times."""

    def __init__(
        self,
        on: str | Sequence[str],
        left: str | T.StructType,
        right: str | T.StructType,
        left_time: str | None,
        right_time: str | None,
    ) -> None:
        names = [on] if isinstance(on, str) else list(on)
        sides = [{f.name: f.dataType for f in parse_schema(s).fields} for s in (left, right)]
        self.times = left_time, right_time
        for side, time in zip(sides, self.times, strict=True):
            check_columns([*names, *([time] if time else [])], side)
            if time is not None:
                check_event_time(time, side[time])
        for name in names:
            if sides[0][name] != sides[1][name]:
                raise JoinError(
                    f"on={on!r}: {name!r} is of type {sides[0][name].simpleString()} on the left "
                    f"and {sides[1][name].simpleString()} on the right."
                )
        self.keys = tuple(Column(name, sides[0][name]) for name in names)
        self.left, self.right = (
            tuple(Column(name, kind) for name, kind in side.items() if name not in names)
            for side in sides
        )

    def input(
        self,
        left: Sequence[dict[str, Any]],
        right: Sequence[dict[str, Any]],
        fingerprints: Any,
    ) -> Input:
        """Rows of both streams, those of the left one first."""
        every = [*left, *right]
        keys = columns_of(self.keys, every)
        hi, lo = fingerprints(list(keys))
        times = [
            None if time is None or row.get(time) is None else to_us(row[time])
            for rows, time in zip((left, right), self.times, strict=True)
            for row in rows
        ]
        return Input(
            hi,
            lo,
            keys,
            part=np.zeros(len(every), np.int32),
            columns=columns_of(self.left, [*left, *({} for _ in right)]),
            event_us=pa.array(times, pa.int64()),
            is_right=pa.array(np.arange(len(every)) >= len(left)),
            right=columns_of(self.right, [*({} for _ in left), *right]),
        )


class TwoStreamHarness(OperatorHarness[Operator]):
    """An operator over two streams."""

    def __init__(
        self, operator: Operator, streams: Streams, start: dt.datetime, shards: int
    ) -> None:
        self._streams = streams
        super().__init__(operator, streams.keys, start, shards)

    def send(
        self,
        left: Iterable[dict[str, Any]] = (),
        right: Iterable[dict[str, Any]] = (),
    ) -> Emitted:
        """Run an epoch with these rows of the two streams; returns what it emitted."""
        return self._run(encode(self._streams.input(list(left), list(right), self._fingerprints)))


class JoinHarness(TwoStreamHarness):
    """`left.join(right, on, within=within, how=how)` over rows you give.

    The streams may have no names in common but those of the key.
    """

    def __init__(
        self,
        *,
        on: str | Sequence[str],
        left: str | T.StructType,
        right: str | T.StructType,
        left_time: str,
        right_time: str,
        within: tuple[Duration, Duration],
        how: str = "inner",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        streams = Streams(on, left, right, left_time, right_time)
        definition = JoinDefinition(
            streams.keys, streams.left, streams.right, *parse_within(within), check_how(how)
        )
        super().__init__(JoinOperator(NAME, definition), streams, start, shards)


class AsOfHarness(TwoStreamHarness):
    """`left.as_of(right, on, tolerance=tolerance)` over rows you give."""

    def __init__(
        self,
        *,
        on: str | Sequence[str],
        left: str | T.StructType,
        right: str | T.StructType,
        left_time: str,
        right_time: str,
        tolerance: Duration | None = None,
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        streams = Streams(on, left, right, left_time, right_time)
        definition = AsOfDefinition(
            streams.keys, streams.left, streams.right, parse_tolerance(tolerance)
        )
        super().__init__(AsOfOperator(NAME, definition), streams, start, shards)


class LookupHarness(TwoStreamHarness):
    """`left.lookup(right.key_by(on).latest(), on, how=how)` over rows you give.

    With `right_time`, the newest row of the right stream is the one with the latest event time,
    else the one that came last.
    """

    def __init__(
        self,
        *,
        on: str | Sequence[str],
        left: str | T.StructType,
        right: str | T.StructType,
        right_time: str | None = None,
        how: str = "left",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        streams = Streams(on, left, right, None, right_time)
        definition = LookupDefinition(
            streams.keys, streams.left, streams.right, check_how(how, LOOKUP_HOWS)
        )
        super().__init__(LookupOperator(NAME, definition), streams, start, shards)
