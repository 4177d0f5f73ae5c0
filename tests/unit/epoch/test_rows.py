"""The table in which rows travel: what is encoded is decoded, whatever chunks it comes in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.epoch import rows
from millrace.operators.input import Input

HI = np.asarray([1, 2**63, 2**64 - 1], np.uint64)
LO = np.asarray([0, 7, 2**63 + 1], np.uint64)
NAMES, NUMBERS = pa.array(["a", None, "c"]), pa.array([1, 2, 3])
ENTRIES = pa.array([None, {"key": "k", "value": 1}, None])


def listed(given: Input) -> dict[str, Any]:
    """All fields as plain lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return value.tolist() if isinstance(value, np.ndarray) else value and value.to_pylist()

    return {f.name: plain(getattr(given, f.name)) for f in dataclasses.fields(given)}


def test_an_aggregates_rows() -> None:
    given = Input(HI, LO, (NAMES,), partials=((NUMBERS,), (NUMBERS, NAMES)))
    assert listed(rows.decode(rows.encode(given))) == listed(given)
    assert rows.decode(rows.encode(given)).hi.dtype == np.uint64


def test_a_processors_rows_in_several_chunks() -> None:
    given = Input(
        HI,
        LO,
        (NAMES, NUMBERS),
        np.asarray([0, 1, 0], np.int32),
        columns=(NUMBERS, NAMES, NUMBERS),
        event_us=pa.array([5, None, 6]),
        initial=(NAMES,),
        is_initial=pa.array([True, False, False]),
        broadcast=(ENTRIES, ENTRIES),
    )
    table = rows.encode(given)
    cut = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    # In any order: Spark's side adds columns in an order of its own.
    shuffled = cut.select(sorted(cut.column_names))
    assert listed(rows.decode(shuffled)) == listed(given)
    assert rows.decode(table.slice(0, 0)).num_rows == 0


def test_more_than_ten_columns_keep_their_order() -> None:
    columns = tuple(pa.array([i, i, i]) for i in range(12))
    decoded = rows.decode(rows.encode(Input(HI, LO, (NAMES,), columns=columns)))
    assert [column[0].as_py() for column in decoded.columns] == list(range(12))


def test_a_column_that_two_streams_share() -> None:
    given = Input(HI, LO, (NAMES,), columns=(NUMBERS, NAMES), right=(NAMES, NUMBERS, NAMES))
    table = rows.encode(given).drop_columns([rows.column(1), rows.right(2)])
    decoded = rows.decode(table.append_column(rows.shared(1, 2), NAMES))
    assert listed(decoded) == listed(given)
