"""`top` over random rows, epochs and partitions, against a sorted list of all rows of a key."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.operators.aggregate.combining import combine
from millrace.operators.aggregate.distinct import other_lists
from millrace.operators.lists import list_type

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int32(), st.integers(-3, 3)),
    "doubles": (pa.float64(), st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 2.5, math.nan])),
    "strings": (pa.string(), st.sampled_from(["", "a", "b", "é", "zz"])),
    "decimals": (pa.decimal128(9, 2), st.integers(-200, 200).map(lambda n: decimal.Decimal(n) / 4)),
}


def order(value: Any) -> Any:
    """A sort key in Spark's order: NULL below all, NaN above all."""
    if value is None:
        return (0, 0)
    if isinstance(value, float):
        return (2, 0) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


def largest_first(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (order(row["by"]), order(row["item"])), reverse=True)


def plain(rows: list[Any]) -> list[Any]:
    """Rows that can be compared: NaN is NaN, and 0.0 is -0.0."""
    return [(order(row["by"]), order(row["item"])) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), k=st.integers(1, 5))
def test_the_largest_rows_are_kept_in_order(kind: str, data: st.DataObject, k: int) -> None:
    by_type, values = KINDS[kind]
    row = st.fixed_dictionaries({"by": values, "item": st.none() | st.integers(-2, 2)})
    lists = st.lists(st.none() | st.lists(row, max_size=6), max_size=4)
    groups = data.draw(st.lists(lists, min_size=1, max_size=5))
    kept = list_type(pa.struct([("by", by_type), ("item", pa.int64())]))
    # A state is in order already, as is what Spark sends.
    states = [None if s is None else largest_first(s)[:k] for group in groups for s in group]
    starts = np.concatenate(([0], np.cumsum([len(group) for group in groups])))
    (found,) = combine("top", "best", [pa.array(states, kept)], starts, {"k": k})
    assert found.type == kept
    for group, top in zip(groups, found.to_pylist(), strict=True):
        every = [row for state in group for row in state or []]
        assert plain(top) == plain(largest_first(every)[:k])
    again = found.take(pa.array(np.arange(len(found))))
    assert not other_lists(found, again).any()


@given(
    pairs=st.lists(
        st.tuples(*[st.none() | st.lists(st.none() | st.integers(0, 1), max_size=3)] * 2)
    )
)
def test_lists_are_the_same_or_they_are_not(pairs: list[tuple[Any, Any]]) -> None:
    kind = pa.list_(pa.int64())
    before, after = (pa.array([pair[i] for pair in pairs], kind) for i in (0, 1))
    expected = [(old or []) != (new or []) for old, new in pairs]
    assert other_lists(before, after).tolist() == expected
