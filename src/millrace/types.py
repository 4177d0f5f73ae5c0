"""Spark's types as Arrow types, the way state is stored.

A location describes its columns in Spark's JSON. `arrow_of` reads that JSON directly, so opening a
location needs no PySpark. For the types of a running program PySpark's own conversion stays the
authority (`arrow_type`); a test compares the two.

Invariant: a description never makes this process import a module. PySpark would import the class
that a user-defined type names, so such types are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from pyspark.sql import types as T

_PLAIN: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "byte": ("tinyint", pa.int8()),
    "short": ("smallint", pa.int16()),
    "integer": ("int", pa.int32()),
    "long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "decimal": ("decimal(10,0)", pa.decimal128(10, 0)),
    "string": ("string", pa.string()),
    "binary": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("timestamp_ntz", pa.timestamp("us")),
    "void": ("void", pa.null()),
}
"""Name in JSON -> name in SQL, and the Arrow type."""

_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_TIME = re.compile(r"time\(\s*\d+\s*\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_COLLATED = re.compile(r"string\s+collate\s+(\w+)")
_GEO = re.compile(r"(geometry|geography)(\(.*\))?")
_BINARY_COLLATION = "UTF8_BINARY"

_COLLATIONS = "__COLLATIONS"
"""Where the metadata of a struct's field has the collations of the strings in it."""
_ARROW_METADATA = b"SPARK::metadata::json"


def arrow_of(description: Any, where: str) -> pa.DataType:
    """The Arrow type of a type in Spark's JSON; timestamps are in UTC."""
    found = _arrow(description, where)
    if found is None:
        raise UnsupportedTypeError(
            f"{where} has type {simple_string(description)}, which Spark cannot hand to Python as "
            "Arrow. Cast it to a supported type first."
        )
    return found


def _arrow(description: Any, where: str) -> pa.DataType | None:
    if isinstance(description, str):
        return _arrow_of_name(description)
    _check_nested(description, where)
    if description["type"] == "array":
        element = arrow_of(description["elementType"], where)
        return pa.list_(pa.field("element", element, nullable=description["containsNull"]))
    if description["type"] == "map":
        key = arrow_of(description["keyType"], where)
        value = arrow_of(description["valueType"], where)
        return pa.map_(
            pa.field("key", key, nullable=False),
            pa.field("value", value, nullable=description["valueContainsNull"]),
        )
    return pa.struct([_arrow_field(field, where) for field in description["fields"]])


def _arrow_field(field: Mapping[str, Any], where: str) -> pa.Field:
    metadata = {k: v for k, v in (field.get("metadata") or {}).items() if k != _COLLATIONS}
    return pa.field(
        field["name"],
        arrow_of(field["type"], where),
        nullable=field.get("nullable", True),
        metadata={_ARROW_METADATA: json.dumps(metadata)} if metadata else None,
    )


def _arrow_of_name(name: str) -> pa.DataType | None:
    if name in _PLAIN:
        return _PLAIN[name][1]
    if match := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    if _COLLATED.fullmatch(name):
        return pa.string()
    if _TIME.fullmatch(name):
        return pa.time64("ns")
    if _DAY_TIME.fullmatch(name):
        return pa.duration("us")
    if name == "variant":
        return _VARIANT
    if match := _GEO.fullmatch(name):
        return pa.struct(
            [
                pa.field("srid", pa.int32(), nullable=False),
                pa.field("wkb", pa.binary(), nullable=False, metadata={match[1]: "true"}),
            ]
        )
    return None


def _check_nested(description: Any, where: str) -> None:
    """Raise unless this is an array, a map or a struct."""
    kind = description.get("type") if isinstance(description, Mapping) else None
    if kind == "udt":
        raise UnsupportedTypeError(
            f"{where} has a user-defined type, {simple_string(description)}. Millrace does not "
            "load the classes that a location names. Convert the column to a plain type first."
        )
    if kind not in ("array", "map", "struct"):
        raise UnsupportedTypeError(
            f"{where} has type {simple_string(description)}, which this Millrace does not know. "
            "Upgrade it."
        )


def simple_string(description: Any) -> str:
    """A type in Spark's JSON as SQL writes it, for people."""
    if isinstance(description, str):
        return _PLAIN[description][0] if description in _PLAIN else description
    if not isinstance(description, Mapping):
        return repr(description)
    kind = description.get("type")
    if kind == "array":
        return f"array<{simple_string(description['elementType'])}>"
    if kind == "map":
        key, value = description["keyType"], description["valueType"]
        return f"map<{simple_string(key)},{simple_string(value)}>"
    if kind == "struct":
        fields = ",".join(f"{f['name']}:{simple_string(f['type'])}" for f in description["fields"])
        return f"struct<{fields}>"
    return str(description.get("pyClass") or description.get("class") or kind)


def collated_parts(name: str, description: Any) -> Iterator[tuple[str, str]]:
    """The strings with a collation in a column, outside of maps: the way to each, and its type."""
    if isinstance(description, str):
        match = _COLLATED.fullmatch(description)
        if match and match[1] != _BINARY_COLLATION:
            yield name, description
    elif description["type"] == "array":
        yield from collated_parts(f"{name}[]", description["elementType"])
    elif description["type"] == "struct":
        for field in description["fields"]:
            path = f"{name}.{field['name']}"
            # A string inside a struct is plain "string"; its field's metadata has the collation.
            collations = (field.get("metadata") or {}).get(_COLLATIONS, {})
            for way, collation in collations.items():
                suffix = way.removeprefix(field["name"]).replace(".element", "[]")
                if collation.rpartition(".")[2] != _BINARY_COLLATION:
                    yield path + suffix, f"string collate {collation.rpartition('.')[2]}"
            yield from collated_parts(path, field["type"])


def arrow_type(data_type: T.DataType, where: str) -> pa.DataType:
    """The Arrow type of a Spark type; timestamps are in UTC."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(data_type, timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise UnsupportedTypeError(
            f"{where} has type {data_type.simpleString()}, which Spark cannot hand to Python as "
            "Arrow. Cast it to a supported type first."
        ) from error


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of rows; every column may be NULL."""
    return pa.schema(
        [pa.field(f.name, arrow_type(f.dataType, f"column {f.name!r}")) for f in schema.fields]
    )


def to_json(data_type: T.DataType) -> Any:
    """A type as a location keeps it."""
    return data_type.jsonValue()


def from_json(description: Any) -> T.DataType:
    """PySpark's type of a description; refuses user-defined types, which would load a class."""
    from pyspark.sql import types as T

    _refuse_user_defined(description)
    field = {"name": "x", "type": description, "nullable": True, "metadata": {}}
    return T.StructField.fromJson(field).dataType


def _refuse_user_defined(description: Any) -> None:
    """Raise if there is a user-defined type anywhere in a description."""
    if isinstance(description, Mapping):
        if description.get("type") == "udt":
            _check_nested(description, "a column")
        for part in ("elementType", "keyType", "valueType"):
            _refuse_user_defined(description.get(part))
        for field in description.get("fields", ()):
            _refuse_user_defined(field.get("type"))


def conform(array: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> pa.Array:
    """One contiguous array of exactly this type; Spark may send another time zone's name."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array if array.type == data_type else array.cast(data_type)
