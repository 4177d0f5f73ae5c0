"""The lookup over random rows, epochs, parallelism and orders of arrival, against a dict."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.unit.operators.join.driving import NAME, TwoStreams, in_order, table_of

from millrace import clock
from millrace.log.segment import encoding
from millrace.operators.lookup.operator import LookupOperator
from millrace.operators.lookup.spec import LookupDefinition
from millrace.operators.operator import Column
from millrace.state import merging

KEYS = st.none() | st.sampled_from(["a", "b", "c", ""])
ROWS = st.lists(st.tuples(KEYS, st.none() | st.integers(1, 6)), max_size=6)
BLOCKS = st.permutations([0, 1, 2])
"""In which order the blocks of a shuffle arrive."""
EPOCH = st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=2)


@given(
    how=st.sampled_from(["left", "inner"]),
    epochs=st.lists(EPOCH, min_size=2, max_size=6),
    data=st.data(),
)
def test_every_row_sees_the_newest(how: str, epochs: list[Any], data: st.DataObject) -> None:
    columns = (Column("l", T.LongType()),), (Column("r", T.LongType()),)
    definition = LookupDefinition((Column("k", T.StringType()),), *columns, how)
    known: dict[str, tuple[int, int]] = {}
    number = 0
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = TwoStreams(f"memory://lookup-{clock.fresh_id()}", LookupOperator(NAME, definition))
        for steps in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            tables, expected = [], []
            for left, right in steps:
                numbered = []
                for rows in (left, right):
                    numbered.append([(*row, number + i) for i, row in enumerate(rows)])
                    number += len(rows)
                tables.append(table_of(*numbered, data.draw(BLOCKS, "blocks")))
                for key, time, row in numbered[1]:
                    if key is not None and (time or 0) >= known.get(key, (0, 0))[0]:
                        known[key] = (time or 0, row)
                for key, _, row in numbered[0]:
                    partner = known.get(key)
                    if partner is not None or how == "left":
                        expected.append((key, row, partner[1] if partner else None))
            assert driven.emit(*tables) == in_order(expected)
            assert driven.rows_of() == len(known)
