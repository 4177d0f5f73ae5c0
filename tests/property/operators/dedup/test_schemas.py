"""Deduplication of rows of any type: keys and values of every kind, nested and NULL.

Which rows go on is `test_dedup`'s; here each of them has columns of drawn types.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.property.operators.dedup.test_dedup import EPOCH, SECOND, START, Oracle, Row, table_of
from tests.property.operators.schemas import Drawn, TypedKeys, columns, typed_keys
from tests.unit.operators.window.driving import NAME, Windowed

from millrace import clock
from millrace.epoch import rows as wire
from millrace.operators.dedup.layout import EVENT
from millrace.operators.dedup.operator import DedupOperator
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.operator import Column


@settings(max_examples=settings().max_examples // 2)
@given(
    keys=typed_keys("abcde"),
    values=columns("x"),
    epochs=st.lists(EPOCH, min_size=2, max_size=5),
    shards=st.integers(1, 3),
)
def test_rows_of_any_type_go_on_as_they_came(
    keys: TypedKeys, values: tuple[Drawn, ...], epochs: list[Any], shards: int
) -> None:
    definition = DedupDefinition(keys.described, EVENT, 3 * SECOND)
    beside = [Column("v", T.LongType()), *(Column(c.name, c.type) for c in values)]
    operator = DedupOperator(NAME, definition, [*keys.described, *beside])
    driven = Windowed(f"memory://typed-dedup-{clock.fresh_id()}", operator, shards)
    oracle = Oracle(definition)
    letters: list[str | None] = []
    watermark = START
    for partitions, step, _ in epochs:
        rows: list[list[Row]] = []
        for partition in partitions:
            rows.append([(*row, len(letters) + i) for i, row in enumerate(partition)])
            letters += [letter for letter, _ in partition]
        driven.watermark_us = watermark
        emitted = driven.send(sent(keys, values, rows))
        assert sorted(row["v"] for row in emitted) == oracle.send(rows, watermark, 0)
        for row in emitted:
            assert keys.letter(row) == letters[row["v"]]
            assert {c.name: row[c.name] for c in values} == {
                c.name: c.seen(row["v"]) for c in values
            }
        assert driven.rows == len(oracle.keys)
        watermark += step


def sent(keys: TypedKeys, values: tuple[Drawn, ...], rows: list[list[Row]]) -> pa.Table:
    """What Spark's exchange would send."""
    table = table_of(rows).select([0, 1, 2, 3])
    listed = [row for partition in rows for row in partition]
    places = [keys.place(letter) for letter, _, _ in listed]
    numbers = [number for _, _, number in listed]
    arrays = [column.array(places) for column in keys.columns]
    arrays += [pa.array(numbers, pa.int64()), *(column.array(numbers) for column in values)]
    for number, array in enumerate(arrays):
        table = table.append_column(wire.column(number), array)
    return table
