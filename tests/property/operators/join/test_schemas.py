"""Joins of rows of any type: keys and values of every kind, nested and NULL, come out as they came.

Which rows are pairs is `test_join`'s; here each of them has columns of drawn types beside its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.property.operators.join.test_join import EPOCH, INTERVALS, START
from tests.property.operators.schemas import Drawn, columns, key_columns
from tests.unit.operators.join.driving import (
    HOWS,
    NAME,
    Emission,
    Oracle,
    Row,
    TwoStreams,
    fingerprint_of,
    in_order,
)

from millrace import clock
from millrace.epoch.rows import encode
from millrace.log.segment import encoding
from millrace.operators.input import Input
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.operator import Column
from millrace.state import merging

KEYS = ("a", "b", "c", "")
"""The keys of `test_join`; each stands for one of the drawn type."""


class Typed:
    """Rows of `test_join` with columns of drawn types."""

    def __init__(
        self, keys: Sequence[Drawn], left: Sequence[Drawn], right: Sequence[Drawn]
    ) -> None:
        self.keys, self.left, self.right = keys, left, right

    def operator(self, interval: tuple[int, int], how: str) -> JoinOperator:
        sides = (
            (Column(id_, T.LongType()), *(Column(c.name, c.type) for c in drawn))
            for id_, drawn in (("l", self.left), ("r", self.right))
        )
        keys = tuple(Column(c.name, c.type) for c in self.keys)
        return JoinOperator(NAME, JoinDefinition(keys, *sides, *interval, how))

    def table(self, left: Sequence[Row], right: Sequence[Row]) -> pa.Table:
        """What Spark's exchange would send."""
        rows = [*left, *right]
        prints = np.asarray([fingerprint_of(key) for key, _, _ in rows], np.uint64).reshape(-1, 2)
        places = [None if key is None else KEYS.index(key) for key, _, _ in rows]
        lefts: list[int | None] = [*(i for _, _, i in left), *([None] * len(right))]
        rights: list[int | None] = [*([None] * len(left)), *(i for _, _, i in right)]
        return encode(
            Input(
                prints[:, 0].copy(),
                prints[:, 1].copy(),
                tuple(c.array(places) for c in self.keys),
                columns=(pa.array(lefts, pa.int64()), *(c.array(lefts) for c in self.left)),
                event_us=pa.array([time for _, time, _ in rows], pa.int64()),
                is_right=pa.array([False] * len(left) + [True] * len(right), pa.bool_()),
                right=(pa.array(rights, pa.int64()), *(c.array(rights) for c in self.right)),
            )
        )

    def understood(self, rows: Sequence[dict[str, Any]], keys: dict[int, str | None]) -> Emission:
        """Emitted rows as ids, after a look at all that they have beside; `keys` by id."""
        found: Emission = []
        for row in rows:
            left, right = row["l"], row.get("r")
            key = keys[right if left is None else left]
            place = None if key is None else KEYS.index(key)
            wanted = {c.name: c.seen(place) for c in self.keys}
            wanted |= {c.name: c.seen(left) for c in self.left}
            if "r" in row:
                wanted |= {c.name: c.seen(right) for c in self.right}
            assert {name: row[name] for name in wanted} == wanted
            assert row.keys() - {"l", "r"} == wanted.keys()
            found.append((key, left, right))
        return in_order(found)


TYPED = st.builds(Typed, key_columns(len(KEYS)), columns("x"), columns("y"))


@given(
    typed=TYPED,
    interval=INTERVALS,
    how=st.sampled_from(HOWS),
    epochs=st.lists(EPOCH, min_size=2, max_size=5),
    data=st.data(),
)
def test_rows_of_any_type_come_out_as_they_came(
    typed: Typed, interval: tuple[int, int], how: str, epochs: list[Any], data: st.DataObject
) -> None:
    oracle = Oracle(*interval, how)
    keys: dict[int, str | None] = {}
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = TwoStreams(f"memory://typed-{clock.fresh_id()}", typed.operator(interval, how))
        watermark = START
        for steps, passed in [*epochs, ([], 10_000_000_000), ([], 0)]:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            tables = []
            both: tuple[list[Row], list[Row]] = ([], [])
            for step in steps:
                sides = []
                for side, rows in enumerate(step):
                    sides.append([(*row, len(keys) + i) for i, row in enumerate(rows)])
                    keys |= {number: key for key, _, number in sides[-1]}
                    both[side].extend(sides[-1])
                tables.append(typed.table(*sides))
            emitted = typed.understood(driven.send(*tables), keys)
            assert emitted == oracle.send(*both, watermark)
            watermark += passed
