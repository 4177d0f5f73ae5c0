"""The store of chunks: numbers, whole columns, and what was written before a column changed."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from millrace.state.addresses import address_of
from millrace.state.columns import ColumnStore, words

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int64()), pa.array([f"{n}" for n in numbers])]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_words_are_a_view_that_respects_the_offset() -> None:
    rows = pa.RecordBatch.from_pydict({"w": pa.array([1, 2, 2**64 - 1, 4], pa.uint64())})
    assert words(rows, "w").tolist() == [1, 2, 2**64 - 1, 4]
    assert words(rows.slice(1, 2), "w").tolist() == [2, 2**64 - 1]
    assert words(rows, "w").ctypes.data == rows.column("w").buffers()[1].address


def test_chunks_are_numbered_from_one_and_the_last_released_number_is_used_first() -> None:
    store = ColumnStore(SCHEMA)
    assert [store.add(batch(n)) for n in range(3)] == [1, 2, 3]
    store.release(1)
    store.release(3)
    assert [store.add(batch(n)) for n in range(3)] == [3, 1, 4]


def test_a_number_that_is_used_again_has_another_serial() -> None:
    store, other = ColumnStore(SCHEMA), ColumnStore(SCHEMA)
    first, second = batch(1), batch(2)
    store.add(first)
    ((chunk, serial),) = store.chunks()
    assert store.chunks()[chunk, serial] is first
    other.add(first)
    store.release(chunk)
    assert store.chunks() == {}
    store.add(second)
    ((again, newer),) = store.chunks()
    assert (again, newer > serial) == (chunk, True)
    assert not store.chunks().keys() & other.chunks().keys()
    assert store.chunk(again) is second


def test_a_released_chunk_is_gone() -> None:
    store = ColumnStore(SCHEMA)
    chunk = store.add(batch(5))
    store.release(chunk)
    with pytest.raises(KeyError):
        store.chunk(chunk)
    assert store.values("n")[chunk] == 0
    assert store.mapped_bytes == 0


def test_values_point_at_a_chunks_numbers() -> None:
    store = ColumnStore(SCHEMA)
    rows = batch(5, 6)
    chunk = store.add(rows)
    assert store.values("n")[chunk] == rows.column("n").buffers()[1].address
    assert store.values("n")[0] == 0
    assert store.mapped_bytes == rows.get_total_buffer_size()


def test_columns_are_gathered_in_the_order_they_are_asked_for() -> None:
    store = ColumnStore(SCHEMA)
    chunk = store.add(batch(5, 6))
    rows = np.asarray([address_of(chunk, 1), 0, address_of(chunk, 0)], np.uint64)
    assert [a.to_pylist() for a in store.gather(rows, ["s", "n"])] == [
        ["6", None, "5"],
        [6, None, 5],
    ]


def test_a_column_of_a_narrower_type_is_widened_once() -> None:
    store = ColumnStore(pa.schema([("c", pa.decimal128(20, 2)), ("n", pa.int64())]))
    old = store.add(
        pa.RecordBatch.from_pydict({"c": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2))})
    )
    new = store.add(
        pa.RecordBatch.from_pydict({"c": pa.array([Decimal("2.50")], pa.decimal128(20, 2))})
    )
    rows = np.asarray([address_of(old, 0), address_of(new, 0), address_of(old, 1)], np.uint64)
    (values,) = store.gather(rows, ["c"])
    assert values.to_pylist() == [Decimal("1.25"), Decimal("2.50"), None]
    assert store.column(old, "c").type == pa.decimal128(20, 2)
    assert store.column(old, "c") is store.column(old, "c")
    assert store.column(new, "c").to_pylist() == [Decimal("2.50")]
    assert store.column(old, "n").equals(pa.nulls(2, pa.int64()))
    store.release(old)
    # The number goes to a page that needs no widening.
    again = store.add(
        pa.RecordBatch.from_pydict({"c": pa.array([Decimal("3.75")], pa.decimal128(20, 2))})
    )
    assert again == old
    assert store.column(again, "c").to_pylist() == [Decimal("3.75")]
