"""Gathering rows of any type from any number of pages, against plain Python lists."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import UnsupportedTypeError
from millrace.state.addresses import DELETED_BIT, ROW_BITS
from millrace.state.columns import ColumnStore
from millrace.state.gathering import Pointers, gatherer_of

UTC = dt.UTC
LEAF = pa.struct([("a", pa.int8()), ("b", pa.string())])
DEEP = pa.map_(
    pa.string(),
    pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.list_(pa.bool_()))), ("leaf", LEAF)])),
)

CASES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None, False, True, True, None, False, False, True, True]),
    (pa.int8(), [-128, 127, None, 0]),
    (pa.int16(), [-(2**15), 2**15 - 1, None]),
    (pa.int32(), [-(2**31), 2**31 - 1, None]),
    (pa.int64(), [-(2**63), 2**63 - 1, None]),
    (pa.uint8(), [0, 255, None]),
    (pa.uint16(), [0, 2**16 - 1]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**64 - 1, None]),
    (pa.float32(), [1.5, -0.0, float("inf"), None]),
    (pa.float64(), [1e300, 5e-324, float("-inf"), None]),
    (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01"), None]),
    (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), None]),
    (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal("-0." + "1" * 38), None]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(1969, 12, 31, tzinfo=UTC), None]),
    (pa.timestamp("us"), [dt.datetime(2024, 2, 29, 12, 0, 0, 1), None]),
    (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1), None]),
    (pa.time64("us"), [dt.time(23, 59, 59, 999_999), None]),
    (pa.string(), ["", "a", None, "żółw 🐢", "x" * 1000]),
    (pa.binary(), [b"", b"\0\xff", None, b"x" * 70]),
    (pa.null(), [None, None]),
    (pa.list_(pa.int64()), [[], [1], None, [None, 2, 3], list(range(100))]),
    (pa.list_(pa.list_(pa.string())), [[[]], [["a", None], None, []], None, []]),
    (LEAF, [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    (pa.struct([("s", pa.struct([("l", pa.list_(LEAF))]))]), [
        {"s": {"l": [{"a": 1, "b": "x"}, None]}},
        {"s": {"l": None}},
        {"s": None},
        None,
    ]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], None, [("", 0)]]),
    (pa.map_(pa.int32(), LEAF), [[(1, {"a": 1, "b": None}), (2, None)], None]),
    (DEEP, [
        [
            ("k", [{"m": [(1, [True, None]), (2, None)], "leaf": {"a": 7, "b": "z"}}, None]),
            ("l", []),
        ],
        [("k", None)],
        [],
        None,
        [("x", [{"m": None, "leaf": None}, {"m": [], "leaf": {"a": None, "b": ""}}])],
    ]),
    (
        pa.list_(pa.map_(pa.string(), pa.list_(LEAF))),
        [[[("q", [None, {"a": 0, "b": "b"}])], None], None],
    ),
]  # fmt: skip


def page(data_type: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    """A batch as a segment gives it: through Arrow IPC, so that its arrays start at offset 0.

    It is written from the middle of a longer array, as pages are.
    """
    padded = pa.array([*values, *values, *values], data_type)
    schema = pa.schema([pa.field("c", data_type)])
    batch = pa.RecordBatch.from_arrays([padded], schema=schema).slice(len(values), len(values))
    return pa.ipc.read_record_batch(batch.serialize(), schema)


def address(chunk: int, row: int) -> int:
    return chunk << ROW_BITS | row


def gathered(store: ColumnStore, addresses: list[int], name: str = "c") -> list[Any]:
    (array,) = store.gather(np.asarray(addresses, np.uint64), [name])
    array.validate(full=True)
    assert array.type == store.schema.field(name).type
    values: list[Any] = array.to_pylist()
    return values


@pytest.mark.parametrize(("data_type", "values"), CASES, ids=[str(t)[:40] for t, _ in CASES])
def test_every_type(data_type: pa.DataType, values: list[Any]) -> None:
    """Rows of several pages, mixed, repeated, with rows that are not there in between."""
    store = ColumnStore(pa.schema([("c", data_type)]))
    pages = [values, list(reversed(values)), [v for v in values if v is not None], [None] * 3]
    chunks = [(store.add(page(data_type, vs)), vs) for vs in pages if vs]
    known = [(address(c, i), v) for c, vs in chunks for i, v in enumerate(vs)]
    rng = np.random.default_rng(len(values))
    for size in (0, 1, 9, 200):
        picks = [known[i] for i in rng.integers(0, len(known), size)]
        asked = [0, *(a for a, _ in picks), 0]
        assert gathered(store, asked) == [None, *(v for _, v in picks), None]
    deleted = [a | int(DELETED_BIT) for a, _ in known]
    assert gathered(store, deleted) == [v for _, v in known]


@pytest.mark.parametrize(("data_type", "values"), CASES, ids=[str(t)[:40] for t, _ in CASES])
def test_a_page_without_the_column_gives_nulls(data_type: pa.DataType, values: list[Any]) -> None:
    store = ColumnStore(pa.schema([("c", data_type), ("n", pa.int64())]))
    with_it = store.add(page(data_type, values))
    without = store.add(pa.RecordBatch.from_arrays([pa.array([5, 6, 7])], names=["n"]))
    asked = [address(without, 2), address(with_it, 0), address(without, 0)]
    assert gathered(store, asked) == [None, values[0], None]
    assert gathered(store, asked, "n") == [7, None, 5]


@pytest.mark.parametrize(("data_type", "values"), CASES, ids=[str(t)[:40] for t, _ in CASES])
def test_released_chunks_are_reused_without_a_trace(
    data_type: pa.DataType, values: list[Any]
) -> None:
    store = ColumnStore(pa.schema([("c", data_type)]))
    kept = store.add(page(data_type, values))
    for turn in range(40):
        rotated = values[turn % len(values) :] + values[: turn % len(values)]
        full = store.add(page(data_type, rotated))
        assert full <= 3
        asked = [address(full, i) for i in range(len(rotated))] + [address(kept, 0)]
        assert gathered(store, asked) == [*rotated, values[0]]
        store.release(full)
        # The number goes to a page that lacks the column.
        bare = store.add(pa.RecordBatch.from_arrays([pa.array([1])], names=["other"]))
        assert bare == full
        assert gathered(store, [address(bare, 0)]) == [None]
        store.release(bare)
    assert store.mapped_bytes == store.chunk(kept).get_total_buffer_size()


def test_more_chunks_than_the_tables_start_with() -> None:
    store = ColumnStore(pa.schema([("c", pa.string())]))
    chunks = [store.add(page(pa.string(), [f"{n}", None])) for n in range(100)]
    assert len(set(chunks)) == 100
    asked = [address(c, row) for c in chunks for row in (0, 1)]
    assert gathered(store, asked) == [v for n in range(100) for v in (f"{n}", None)]


@pytest.mark.parametrize(
    "data_type", [pa.large_string(), pa.binary(8), pa.dictionary(pa.int8(), pa.string())]
)
def test_types_that_spark_never_sends_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match="cannot be kept in state"):
        ColumnStore(pa.schema([("c", data_type)]))


def test_a_shard_gathers_at_most_2_gib_of_strings() -> None:
    store = ColumnStore(pa.schema([("c", pa.string())]))
    chunk = store.add(page(pa.string(), ["x" * 4096]))
    asked = np.full(2**19, address(chunk, 0), np.uint64)
    with pytest.raises(UnsupportedTypeError, match=r"2147483648 bytes of strings.*2 GiB"):
        store.gather(asked, ["c"])


def test_pointers_grow_and_keep_what_was_set() -> None:
    pointers = Pointers()
    assert pointers.array.tolist() == [0] * 16
    pointers.set_pointer(15, 7)
    assert len(pointers.array) == 16
    pointers.set_pointer(16, 8)
    assert (len(pointers.array), pointers.array[15], pointers.array[16]) == (32, 7, 8)
    pointers.set_pointer(100, 9)
    assert (len(pointers.array), pointers.array[15], pointers.array[100]) == (101, 7, 9)
    buffer = pa.py_buffer(b"abc")
    pointers.set(3, buffer)
    assert pointers.array[3] == buffer.address
    for nothing in (None, pa.py_buffer(b"")):
        pointers.set(3, nothing)
        assert pointers.array[3] == 0


def test_an_array_without_nulls_has_no_bitmap() -> None:
    store = ColumnStore(pa.schema([("c", pa.int64()), ("b", pa.bool_())]))
    batch = pa.RecordBatch.from_pydict({"c": [1, 2], "b": [True, False]})
    chunk = store.add(batch)
    for name in ("c", "b"):
        (whole,) = store.gather(np.asarray([address(chunk, 1)], np.uint64), [name])
        (partly,) = store.gather(np.asarray([address(chunk, 1), 0], np.uint64), [name])
        assert whole.buffers()[0] is None
        assert (whole.null_count, partly.null_count) == (0, 1)


def test_the_widths_of_values() -> None:
    types = [pa.int8(), pa.int16(), pa.float32(), pa.int64(), pa.decimal128(9, 2)]
    assert [gatherer_of(t).width for t in types] == [1, 2, 4, 8, 16]  # type: ignore[attr-defined]
