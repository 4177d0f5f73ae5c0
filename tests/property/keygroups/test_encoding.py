"""Two keys have one encoding exactly when Spark would group them together."""

from __future__ import annotations

import decimal
import itertools
import math
import struct
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.keygroups.encoding import encoded
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import UNSALTED

BYTES = st.binary(max_size=3) | st.sampled_from([bytes(127), bytes(128), b"\x01", b"\x00\x00"])
FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, -1.5, math.inf, 5e-324])

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-2, 2)),
    (pa.int16(), st.integers(-2, 2)),
    (pa.int32(), st.integers(-2, 2) | st.sampled_from([256, 65536, -(2**31)])),
    (pa.int64(), st.integers(-2, 2) | st.sampled_from([2**32, 2**63 - 1, -(2**63)])),
    (pa.float32(), st.sampled_from([0.0, -0.0, math.nan, 1.5])),
    (pa.float64(), FLOATS),
    (pa.decimal128(9, 2), st.integers(-3, 3).map(lambda n: decimal.Decimal(n).scaleb(-2))),
    (
        pa.decimal128(38, 2),
        st.sampled_from([0, 1, -1, 2**64, 10**37]).map(
            lambda n: decimal.Context(prec=40).scaleb(decimal.Decimal(n), -2)
        ),
    ),
    (pa.string(), st.text("a\x00\x01é", max_size=3)),
    (pa.binary(), BYTES),
    (pa.date32(), st.dates()),
]


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and its values, NULL among them."""
    kind = draw(st.sampled_from(["leaf", "leaf", "struct", "list"] if depth else ["leaf"]))
    if kind == "leaf":
        data_type, values = draw(st.sampled_from(LEAVES))
    elif kind == "struct":
        parts = draw(st.lists(types(depth - 1), min_size=1, max_size=3))
        data_type = pa.struct([(f"f{i}", part) for i, (part, _) in enumerate(parts)])
        values = st.fixed_dictionaries({f"f{i}": v for i, (_, v) in enumerate(parts)})
    else:
        part, inner = draw(types(depth - 1))
        data_type, values = pa.list_(part), st.lists(inner, max_size=3)
    return data_type, st.none() | values


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Array]:
    columns = draw(st.lists(types(), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(values for _, values in columns)), min_size=1, max_size=12))
    return [pa.array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(columns)]


def grouped(value: Any) -> Any:
    """What equals another exactly if Spark groups the two together."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value + 0.0)
    if isinstance(value, dict):
        return tuple(grouped(part) for part in value.values())
    if isinstance(value, list):
        return ["list", *map(grouped, value)]
    return value if value is None else (type(value).__name__, value)


@given(tables())
def test_keys_are_equal_exactly_when_their_encodings_are(columns: list[pa.Array]) -> None:
    data, starts = encoded(columns)
    found = [data[i:j].tobytes() for i, j in itertools.pairwise(starts)]
    listed = zip(*(column.to_pylist() for column in columns), strict=True)
    keys = [[grouped(value) for value in row] for row in listed]
    hi, lo = fingerprints(columns, UNSALTED)
    for i in range(len(keys)):
        for j in range(i):
            same = keys[i] == keys[j]
            assert (found[i] == found[j]) == same
            assert ((hi[i], lo[i]) == (hi[j], lo[j])) == same
            # No key's encoding is the beginning of another's: parts can be put in a row.
            assert found[i].startswith(found[j]) == same


@given(tables(), st.data())
def test_slices(columns: list[pa.Array], drawn: st.DataObject) -> None:
    first = drawn.draw(st.integers(0, len(columns[0])))
    whole, starts = encoded(columns)
    part, part_starts = encoded([column.slice(first) for column in columns])
    assert part.tobytes() == whole[starts[first] :].tobytes()
    assert (part_starts == starts[first:] - starts[first]).all()
