"""Random columns: their Spark types, nested ones too, and a few values of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as T

from millrace import types
from millrace.epoch import rows as wire
from millrace.operators.operator import Column

SIMPLE: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (T.BooleanType(), st.booleans()),
    "byte": (T.ByteType(), st.integers(-128, 127)),
    "int": (T.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (T.LongType(), st.integers(-(2**63), 2**63 - 1)),
    "double": (T.DoubleType(), st.floats(allow_nan=False)),
    "string": (T.StringType(), st.text(max_size=5)),
    "binary": (T.BinaryType(), st.binary(max_size=5)),
    "decimal": (T.DecimalType(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: _cents(n))),
    "date": (T.DateType(), st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    "timestamp": (
        T.TimestampType(),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    ),
}


def _cents(number: int) -> Decimal:
    return Decimal(number).scaleb(-2)


@dataclass(frozen=True)
class Kind:
    """The type of a column, and what its values are drawn from."""

    type: T.DataType
    values: st.SearchStrategy[Any]


def _struct(fields: Sequence[Kind]) -> Kind:
    names = [f"f{number}" for number in range(len(fields))]
    whole = T.StructType([T.StructField(n, f.type) for n, f in zip(names, fields, strict=True)])
    values = st.fixed_dictionaries(
        {n: st.none() | f.values for n, f in zip(names, fields, strict=True)}
    )
    return Kind(whole, values)


def _list(element: Kind) -> Kind:
    return Kind(T.ArrayType(element.type), st.lists(st.none() | element.values, max_size=3))


SCALARS = st.sampled_from([Kind(*kind) for kind in SIMPLE.values()])
KINDS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(_struct) | inner.map(_list),
    max_leaves=4,
)
"""Of values and keys alike: Spark groups by any of them."""


@dataclass(frozen=True)
class Drawn:
    """A column: its type, and values that rows have in turn."""

    name: str
    type: T.DataType
    values: tuple[Any, ...]

    @property
    def arrow(self) -> pa.DataType:
        return types.arrow_type(self.type, self.name)

    def array(self, places: Sequence[int | None]) -> pa.Array:
        """A value per place; NULL where there is none."""
        return pa.array([None if p is None else self.at(p) for p in places], self.arrow)

    def at(self, place: int) -> Any:
        return self.values[place % len(self.values)]

    def seen(self, place: int | None) -> Any:
        """The value as it comes back from Arrow."""
        return self.array([place])[0].as_py()


def columns(prefix: str, least: int = 0) -> st.SearchStrategy[tuple[Drawn, ...]]:
    """Columns with any values, NULLs among them."""

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[Drawn, ...]:
        kinds = draw(st.lists(KINDS, min_size=least, max_size=3))
        return tuple(
            Drawn(
                f"{prefix}{number}",
                kind.type,
                tuple(draw(st.lists(st.none() | kind.values, min_size=1, max_size=5))),
            )
            for number, kind in enumerate(kinds)
        )

    return drawn()


def key_columns(keys: int) -> st.SearchStrategy[tuple[Drawn, ...]]:
    """Columns that together have this many different keys, none with a NULL of its own."""

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[Drawn, ...]:
        many = SCALARS.filter(lambda kind: not isinstance(kind.type, T.BooleanType))
        first = draw(many | KINDS.filter(lambda kind: isinstance(kind.type, T.StructType)))
        values = st.lists(first.values, min_size=keys, max_size=keys, unique_by=_plain)
        made = [Drawn("k0", first.type, tuple(draw(values)))]
        if draw(st.booleans()):
            second = draw(KINDS)
            made.append(Drawn("k1", second.type, (draw(second.values),)))
        return tuple(made)

    return drawn()


@dataclass(frozen=True)
class TypedKeys:
    """Keys of drawn types, each of which stands for one of some letters, or for NULL."""

    letters: str
    columns: tuple[Drawn, ...]

    @property
    def described(self) -> tuple[Column, ...]:
        return tuple(Column(c.name, c.type) for c in self.columns)

    def place(self, letter: str | None) -> int | None:
        return None if letter is None else self.letters.index(letter)

    def sent(self, table: pa.Table) -> pa.Table:
        """Rows as they travel, with these keys instead of letters."""
        at = table.schema.get_field_index(wire.key(0))
        places = [self.place(letter) for letter in table.column(at).to_pylist()]
        table = table.remove_column(at)
        for number, column in enumerate(self.columns):
            table = table.append_column(wire.key(number), column.array(places))
        return table

    def letter(self, row: dict[str, Any]) -> str | None:
        """The letter that the key of a row stands for."""
        shown = {column.name: row[column.name] for column in self.columns}
        for letter in (None, *self.letters):
            if shown == {c.name: c.seen(self.place(letter)) for c in self.columns}:
                return letter
        raise AssertionError(f"no key of the test is {shown}")


def typed_keys(letters: str) -> st.SearchStrategy[TypedKeys]:
    return key_columns(len(letters)).map(lambda columns: TypedKeys(letters, columns))


def _plain(value: Any) -> str:
    # Zero has two signs, and is one key. Fields of a struct are drawn in any order.
    if isinstance(value, dict):
        return repr([(name, _plain(value[name])) for name in sorted(value)])
    return repr(value).replace("-0.0", "0.0")
