"""Which changes of a processor's states a location can follow.

States and timers may be added, and start from empty; a struct may get fields; a number may get
wider. Anything else is refused, and the difference is named. Changing a TTL's length or the
processor's code is not a change of state.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from millrace import types
from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.evolution import ADVICE, check_keys
from millrace.operators.process.kinds import KINDS

_WIDER: list[type[T.DataType]] = [T.ByteType, T.ShortType, T.IntegerType, T.LongType]


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    states = {spec["name"]: spec for spec in new["states"]}
    for state in old.get("deleted", ()):
        if state in states:
            # Rows that were not rewritten since still hold it.
            raise SchemaChangedError(
                f"state {state!r} of operator {name!r} was deleted. Give the new one another name."
            )
    known = {spec["name"] for spec in old["states"]}
    for state, spec in states.items():
        if spec["kind"] == "broadcast" and state not in known:
            raise SchemaChangedError(
                f"operator {name!r} has the new broadcast state {state!r}. Its stream is a source "
                "of the query, and Spark's offsets in the location are of the sources it began "
                f"with. {ADVICE}"
            )
    for before in old["states"]:
        state = before["name"]
        now = states.get(state)
        if now is None:
            if state in new.get("deleted", ()):
                continue
            raise SchemaChangedError(
                f"operator {name!r} no longer has the {before['kind']} state {state!r}. {ADVICE}"
            )
        if now["kind"] != before["kind"]:
            raise SchemaChangedError(
                f"state {state!r} of operator {name!r} was a {before['kind']} and is now a "
                f"{now['kind']}. {ADVICE}"
            )
        if before.get("ttl") and now.get("ttl") and before["ttl"][1] != now["ttl"][1]:
            raise SchemaChangedError(
                f"state {state!r} of operator {name!r} had a TTL in {before['ttl'][1]} time and "
                f"has it now in {now['ttl'][1]} time. {ADVICE}"
            )
        pairs = zip(before.get("types", []), now.get("types", []), strict=True)
        for n, (was, becomes) in enumerate(pairs):
            was_type, new_type = types.from_json(was), types.from_json(becomes)
            is_entry_key = n == 0 and KINDS[now["kind"]].has_entry_keys
            fits = was_type == new_type if is_entry_key else _widens(was_type, new_type)
            if not fits:
                raise SchemaChangedError(
                    f"state {state!r} of operator {name!r} was of type {was_type.simpleString()} "
                    f"and is now of type {new_type.simpleString()}. {ADVICE}"
                )


def _widens(old: T.DataType, new: T.DataType) -> bool:
    """Whether every value of the old type is one of the new."""
    if old == new:
        return True
    if type(old) in _WIDER and type(new) in _WIDER:
        return _WIDER.index(type(old)) <= _WIDER.index(type(new))
    if isinstance(old, T.FloatType) and isinstance(new, T.DoubleType):
        return True
    if isinstance(old, T.IntegralType) and isinstance(new, T.DoubleType):
        return not isinstance(old, T.LongType)
    if isinstance(old, T.DecimalType) and isinstance(new, T.DecimalType):
        digits = new.precision - new.scale
        return new.scale >= old.scale and digits >= old.precision - old.scale
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        return _widens(old.elementType, new.elementType)
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        return old.keyType == new.keyType and _widens(old.valueType, new.valueType)
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        fields = {f.name: f for f in new.fields}
        kept = all(
            f.name in fields and _widens(f.dataType, fields[f.name].dataType) for f in old.fields
        )
        added = [f for f in new.fields if f.name not in old.names]
        return kept and all(f.nullable for f in added)
    return False
