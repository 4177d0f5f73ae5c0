"""A join driven by hand, and the plain Python that says what it should do.

Rows are (key, event time or None, id), of the left stream or of the right. Ids differ, so that
every row of the output says which rows it was made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.epochs import TimedEpochs

from millrace.epoch.rows import encode
from millrace.ids import OperatorName
from millrace.operators.as_of.operator import AsOfOperator
from millrace.operators.as_of.spec import AsOfDefinition
from millrace.operators.input import Input
from millrace.operators.join.layout import ANTI, FULL, INNER, LEFT, RIGHT, SEMI
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.operator import Column, Operator

NAME = OperatorName("join")
KEY_GROUPS = 8

Row = tuple[str | None, int | None, int]
"""Key, event time in microseconds, id."""

Emission = list[tuple[str | None, int | None, int | None]]
"""Key, id on the left, id on the right."""


def make_operator(lower_us: int, upper_us: int, how: str) -> JoinOperator:
    definition = JoinDefinition(
        (Column("k", T.StringType()),),
        (Column("l", T.LongType()),),
        (Column("r", T.LongType()),),
        lower_us,
        upper_us,
        how,
    )
    return JoinOperator(NAME, definition)


def make_as_of(tolerance_us: int | None) -> AsOfOperator:
    definition = AsOfDefinition(
        (Column("k", T.StringType()),),
        (Column("l", T.LongType()),),
        (Column("r", T.LongType()),),
        tolerance_us,
    )
    return AsOfOperator(NAME, definition)


def fingerprint_of(key: str | None) -> tuple[int, int]:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def table_of(left: Sequence[Row], right: Sequence[Row], blocks: Sequence[int] = (0,)) -> pa.Table:
    """What Spark's exchange would send.

    Each stream is cut into as many input partitions as there are blocks, the first rows being of
    the first one, and `blocks` is the order in which the partitions' blocks arrive.
    """
    rows = [*left, *right]
    prints = np.asarray([fingerprint_of(key) for key, _, _ in rows], np.uint64).reshape(-1, 2)
    n, m = len(left), len(right)
    parts = [i * len(blocks) // len(side) for side in (left, right) for i in range(len(side))]
    arrival = sorted(range(n + m), key=lambda row: blocks.index(parts[row]))
    sent = encode(
        Input(
            prints[:, 0].copy(),
            prints[:, 1].copy(),
            (pa.array([key for key, _, _ in rows], pa.string()),),
            part=np.asarray(parts, np.int32),
            columns=(pa.array([i for _, _, i in left] + [None] * m, pa.int64()),),
            event_us=pa.array([time for _, time, _ in rows], pa.int64()),
            is_right=pa.array([False] * n + [True] * m, pa.bool_()),
            right=(pa.array([None] * n + [i for _, _, i in right], pa.int64()),),
        )
    )
    return sent.take(pa.array(arrival, pa.int64()))


class TwoStreams(TimedEpochs):
    """A location with one operator over two streams."""

    def __init__(self, url: str, operator: Operator, shards: int = 1) -> None:
        super().__init__(url, operator, KEY_GROUPS, shards=shards)

    def emit(self, *steps: pa.Table) -> Emission:
        """An epoch with rows that come in some steps; what it emits, sorted."""
        return in_order((row["k"], row["l"], row.get("r")) for row in self.send(*steps))


def sided(rows: Sequence[Sequence[Row]]) -> tuple[pa.Table, pa.Table]:
    """The rows of both streams as tables for SQL."""
    left, right = (
        pa.table(
            {
                "k": pa.array([key for key, _, _ in side], pa.string()),
                "t": pa.array([time for _, time, _ in side], pa.int64()),
                "i": pa.array([row for _, _, row in side], pa.int64()),
            }
        )
        for side in rows
    )
    return left, right


def in_order(rows: object) -> Emission:
    return sorted(rows, key=repr)  # type: ignore[call-overload, no-any-return]


@dataclass
class Oracle:
    """A join in plain Python: rows are kept in lists, and every pair is looked at."""

    lower_us: int
    upper_us: int
    how: str
    left: list[Row] = field(default_factory=list)
    right: list[Row] = field(default_factory=list)
    met: set[tuple[str, int]] = field(default_factory=set)
    """Rows that have had a partner: side and id."""
    late_us: int = 0
    late: int = 0
    everything: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    """All rows that were in time."""

    def send(self, left: Sequence[Row], right: Sequence[Row], watermark_us: int) -> Emission:
        """What an epoch emits, sorted."""
        self.late = 0
        found: Emission = []
        new_left = self._in_time(left, LEFT, found)
        new_right = self._in_time(right, RIGHT, found)
        for one in [*self.left, *new_left]:
            for other in [*self.right, *new_right]:
                if (one in new_left or other in new_right) and self._is_pair(one, other):
                    if self.how == SEMI and (LEFT, one[2]) not in self.met:
                        found.append((one[0], one[2], None))
                    if self.how not in (SEMI, ANTI):
                        found.append((one[0], one[2], other[2]))
                    self.met |= {(LEFT, one[2]), (RIGHT, other[2])}
        self.left = self._kept([*self.left, *new_left], LEFT, watermark_us, found)
        self.right = self._kept([*self.right, *new_right], RIGHT, watermark_us, found)
        self.late_us = watermark_us
        return in_order(found)

    def _is_pair(self, one: Row, other: Row) -> bool:
        assert one[1] is not None
        assert other[1] is not None
        return one[0] == other[0] and self.lower_us <= other[1] - one[1] <= self.upper_us

    def _in_time(self, rows: Sequence[Row], side: str, found: Emission) -> list[Row]:
        kept = []
        for key, time, row in rows:
            if time is not None and time <= self.late_us:
                self.late += 1
                continue
            self.everything[side == RIGHT].append((key, time, row))
            if time is None or key is None:
                self._alone((key, time, row), side, found)
            else:
                kept.append((key, time, row))
        return kept

    def _alone(self, row: Row, side: str, found: Emission) -> None:
        if side == LEFT and self.how in (LEFT, FULL, ANTI):
            found.append((row[0], row[2], None))
        if side == RIGHT and self.how in (RIGHT, FULL):
            found.append((row[0], None, row[2]))

    def _kept(self, rows: list[Row], side: str, watermark_us: int, found: Emission) -> list[Row]:
        kept = []
        for row in rows:
            assert row[1] is not None
            last = row[1] + self.upper_us if side == LEFT else row[1] - self.lower_us
            if last > watermark_us:
                kept.append(row)
            elif (side, row[2]) not in self.met:
                self._alone(row, side, found)
        return kept


HOWS = (INNER, LEFT, RIGHT, FULL, SEMI, ANTI)
